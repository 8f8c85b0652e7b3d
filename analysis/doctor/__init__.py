"""What was recorded, what is missing, what that allows, and what to record next time."""
