"""`python -m npuscope`, and what the command `npuscope` starts."""

import os
import signal


def _leave(*_: object) -> None:
    os._exit(130)


# Imports take the first second and leave nothing to tidy up; `main` hears Ctrl-C itself. Whoever
# is started with it ignored, as behind `&` in a script, goes on ignoring it.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _leave)

from npuscope.import_path import current_folder_last  # noqa: E402 - it takes time, too

current_folder_last()

from npuscope.cli import main  # noqa: E402 - its own imports are meant

if __name__ == "__main__":
    main()
