"""What reports and pages say, in the reader's language."""
