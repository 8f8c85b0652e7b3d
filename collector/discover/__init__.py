"""Which folders are captures, which rank each is, and which format each file has."""
