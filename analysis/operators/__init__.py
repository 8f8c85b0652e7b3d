"""What operators cost, and what they could give back."""
