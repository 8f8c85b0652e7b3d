"""A described training job, written as captures with known truths."""
