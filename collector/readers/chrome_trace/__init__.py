"""What every Chrome trace is, whoever wrote it: one JSON array of events of any size."""
