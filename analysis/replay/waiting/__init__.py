"""Which operations of a device wait for which, told from what was recorded."""
