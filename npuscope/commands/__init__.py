"""The verbs of the command line: a folder for each group of `--help`, a file for each verb."""
