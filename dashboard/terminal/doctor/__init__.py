"""What the doctor says, as terminal tables."""
