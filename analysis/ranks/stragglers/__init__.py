"""Who is slow, what that costs the others, and why."""
