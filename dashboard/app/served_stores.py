"""What a server shows: stores that are up to date before the first visitor comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from npuscope.profile import Source, compare_ranks, open_tables

# Where the server is told what it serves: a JSON object of `ServedStores`.
ENVIRONMENT = "NPUSCOPE_DASHBOARD"


class Place(msgspec.Struct, frozen=True):
    """A store or an exported file; `title` tells it from others."""

    path: str
    title: str


class ServedStores(msgspec.Struct, frozen=True):
    """What a server shows, and how it starts; `run` is looked at first, `strategies` is the file
    that a search wrote."""

    places: list[Place]
    lang: str = "en"
    run: str | None = None
    memory_bytes: int | None = None
    strategies: str | None = None


def ready(
    sources: Sequence[Source],
    *,
    say: Callable[[str], None],
    lang: str,
    strategies: Path | None = None,
) -> ServedStores:
    """Read what is not read yet and compare all ranks, with progress; `say` gets what to tell.

    Raises NpuscopeError.
    """
    targets: list[Path] = []
    run = None
    for source in sources:
        with open_tables(source) as data:
            for message in data.messages:
                say(message)
            if data.result is not None and not data.result.is_complete:
                failed = len(data.result.failures) + len(data.result.problems)
                say(f"{source.path}: not everything was read ({failed}): see `npuscope doctor`")
            run = run or (data.result.run if data.result else source.run)
            compare_ranks(data, is_needed=False)
            targets.append(data.target.resolve())
    titles = _titles([source.path.resolve() for source in sources])
    places = {str(target): title for target, title in zip(targets, titles, strict=True)}
    memory_bytes = sources[0].memory_bytes
    file = None if strategies is None else str(strategies.resolve())
    return ServedStores([Place(*pair) for pair in places.items()], lang, run, memory_bytes, file)


def environment_of(stores: ServedStores) -> dict[str, str]:
    """The environment of a server that shows this."""
    return {ENVIRONMENT: msgspec.json.encode(stores).decode()}


def _titles(paths: Sequence[Path]) -> list[str]:
    """Last names of paths, with as much of what is above as tells each from the others."""
    depths = [1] * len(paths)
    for _ in range(max((len(path.parts) for path in paths), default=0)):
        titles = ["/".join(path.parts[-n:]) for path, n in zip(paths, depths, strict=True)]
        count = Counter(titles)
        if max(count.values(), default=0) < 2:
            break
        depths = [n + (count[title] > 1) for n, title in zip(depths, titles, strict=True)]
    return titles
