"""What uneven load costs a step."""
