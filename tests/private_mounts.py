"""Commands run with file systems of their own, mounted for them alone."""

from __future__ import annotations

import functools
import subprocess

import pytest


@functools.cache
def _unshare() -> tuple[str, ...] | None:
    """How this user gets mounts of its own, as root or in a user namespace; None: not at all."""
    for options in (("-m",), ("-r", "-m")):
        command = ["unshare", *options, "mount", "-t", "tmpfs", "none", "/mnt"]
        try:
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                return ("unshare", *options)
        except FileNotFoundError:
            return None
    return None


def in_private_mounts(script: str, *arguments: str) -> list[str]:
    """The command that runs a shell script, as root of its own mounts. Skips where none can be."""
    unshare = _unshare()
    if unshare is None:
        pytest.skip("this system lets nobody mount a file system of their own")
    return [*unshare, "sh", "-ec", script, "sh", *arguments]
