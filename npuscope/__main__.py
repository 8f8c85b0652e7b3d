"""`python -m npuscope`."""

from npuscope.cli import main

main()
