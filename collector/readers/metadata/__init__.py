"""What files say of a rank, its machine and its job, beside any event."""
