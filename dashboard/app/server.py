"""The process that serves the pages: Streamlit, kept from asking the outside for anything.

python -m npuscope.dashboard.app.server MAIN.py --server.port 8501 ...
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamlit.components.v2.manifest_scanner import ComponentManifest


def _unknown_address() -> str | None:
    return None


def _no_components(max_workers: int | None = None) -> list[tuple[ComponentManifest, Path]]:
    return []


def main() -> None:
    """Run Streamlit's own command line."""
    from streamlit import net_util
    from streamlit.components.v2 import manifest_scanner
    from streamlit.runtime.pages_manager import PagesManager
    from streamlit.web import cli

    from .warming import begin

    # A page elsewhere that tries to connect would make the server ask a site on the internet for
    # its own address, to compare: it never serves by that one.
    net_util.get_external_ip = _unknown_address
    # Streamlit would run scripts of a folder `pages` by themselves, without main.py and its menu,
    # until somebody has opened main.py: a link to a page is often the first visit.
    PagesManager.uses_pages_directory = False
    # Streamlit would read what every installed package says of itself, in search of components:
    # these pages use none.
    manifest_scanner.scan_component_manifests = _no_components
    begin()
    cli.main(["run", *sys.argv[1:]], prog_name="npuscope dashboard")


if __name__ == "__main__":
    main()
