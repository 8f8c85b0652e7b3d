"""How tokens fall on experts, devices and nodes."""
