"""What the host does while the device is free, and how far it runs ahead."""
