"""What-ifs of a capture that change more than durations by a factor."""
