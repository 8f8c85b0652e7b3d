"""Who belongs to a communication group, and what it is for."""
