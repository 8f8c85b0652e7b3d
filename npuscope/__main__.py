"""`python -m npuscope`."""

from npuscope.import_path import current_folder_last

current_folder_last()

from npuscope.cli import main  # noqa: E402 - its own imports are meant

main()
