"""What several answers of a command need is computed once for its connection, and what takes long
once for each version of its store.

Only where the tables of a connection stay as they are: who opened it says so with `remember`, and
whoever gives it other views says `forget`. All other connections compute each time.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import duckdb

if TYPE_CHECKING:  # who reads profiles asks for no frame
    from npuscope.collector.store.answers import Answers

Params = ParamSpec("Params")
Value = TypeVar("Value")
Answer = Callable[Concatenate[duckdb.DuckDBPyConnection, Params], Value]
# What takes less of the processors is computed again as fast as a file is found and read.
WORTH_S = 0.05


@dataclass(slots=True)
class _Memory:
    """What a connection was asked, by question; `store`: whose files it has; `views`: what was
    added to them; `answers`: where that store keeps its own."""

    store: Path | None
    results: dict[tuple[Hashable, ...], Any] = field(default_factory=dict)
    views: str = ""
    answers: Answers | None = None


_MEMORIES: WeakKeyDictionary[duckdb.DuckDBPyConnection, _Memory] = WeakKeyDictionary()


def remember(con: duckdb.DuckDBPyConnection, store: Path | None = None) -> None:
    """From here on answers stay as long as the connection does, and those of `memoize` in the store
    whose tables alone it has, where they took long.

    For one command or one question: what a connection is asked over days would fill the memory.
    """
    _MEMORIES.setdefault(con, _Memory(store))


@contextmanager
def question_of(
    con: duckdb.DuckDBPyConnection, cursor: duckdb.DuckDBPyConnection
) -> Iterator[None]:
    """Until it is answered, a cursor of `con`, with the same views, remembers as `con` does."""
    memory = _MEMORIES.get(con)
    if memory is None:
        yield
        return
    if memory.answers is None and memory.store is not None:
        memory.answers = _answers(con, memory.store)
    _MEMORIES[cursor] = replace(memory, results={})
    try:
        yield
    finally:
        _MEMORIES.pop(cursor, None)


def forget(con: duckdb.DuckDBPyConnection, views: str = "") -> None:
    """Its views are about to be others: those of that name, which follow from the store alone."""
    if con in _MEMORIES:
        memory = _MEMORIES[con]
        memory.results.clear()
        memory.views = views


def memoize(answer: Answer[Params, Value]) -> Answer[Params, Value]:
    """What a function returns is computed once for each connection and arguments and, where it
    took long, once for each version of the store and of the rules.

    It depends on the arguments and on the connection's tables alone. Its argument `known`, if it
    has one, is what the caller has at hand: it spares time and changes no answer. For frames,
    records of this room, texts and numbers, and lists of these (see `pack`).
    """
    return _remember(answer, is_kept=True)


def latest(answer: Answer[Params, Value]) -> Answer[Params, Value]:
    """As `memoize`, for the arguments of the last two questions and never in the store: what is
    large, and asked of one capture after the other, or of two side by side."""
    return _remember(answer, most=2)


def _remember(
    answer: Answer[Params, Value], *, is_kept: bool = False, most: int | None = None
) -> Answer[Params, Value]:
    signature = inspect.signature(answer)

    @wraps(answer)
    def answered(
        con: duckdb.DuckDBPyConnection, /, *args: Params.args, **kwargs: Params.kwargs
    ) -> Value:
        memory = _MEMORIES.get(con)
        if memory is None:
            return answer(con, *args, **kwargs)
        call = signature.bind(con, *args, **kwargs)
        call.arguments.pop("known", None)
        call.apply_defaults()
        key = (answer.__module__, answer.__qualname__, *map(_hashable, call.args[1:]),
               *((name, _hashable(value)) for name, value in call.kwargs.items()))  # fmt: skip
        if key not in memory.results:
            if is_kept and memory.store is not None:
                result = _from_store(con, memory, key, lambda: answer(con, *args, **kwargs))
            else:
                result = answer(con, *args, **kwargs)
            if most is not None:
                mine = [other for other in memory.results if other[:2] == key[:2]]
                for other in mine[: len(mine) - most + 1]:
                    del memory.results[other]
            memory.results[key] = result
        copied: Value = _copy(memory.results[key])
        return copied

    return answered


def _from_store(
    con: duckdb.DuckDBPyConnection, memory: _Memory, key: Hashable, compute: Callable[[], Value]
) -> Value:
    """An answer as the store keeps it, else computed, and kept where that took long."""
    # Only here: what asks nothing that takes long needs no digest of all rules.
    from npuscope.collector.store.answers import keep_answer, read_answer

    from .packing import pack, unpack

    if memory.answers is None:
        memory.answers = _answers(con, memory.store)
    question = f"{memory.views}\0{key!r}"
    content = read_answer(memory.answers, question)
    if content is not None:
        try:
            answer: Value = unpack(content)
        except ValueError:
            pass
        else:
            return answer
    began_s = time.process_time()
    result = compute()
    if time.process_time() - began_s >= WORTH_S:
        try:
            content = pack(result)
        except TypeError:  # it holds what files do not
            return result
        keep_answer(memory.answers, question, content)
    return result


def _answers(con: duckdb.DuckDBPyConnection, path: Path | None) -> Answers:
    from npuscope.collector.store import store
    from npuscope.collector.store.answers import Answers

    from .rules import version_of_all

    assert path is not None
    return Answers(path, store.version(path, store.opened_over(con, path)), version_of_all())


def _copy(answer: Any) -> Any:
    """What is put into one answer is not in the next."""
    if isinstance(answer, list | dict):
        return answer.copy()
    if type(answer) is tuple:
        return tuple(map(_copy, answer))
    clone = getattr(answer, "clone", None)  # a frame's
    return clone() if clone is not None else answer


def _hashable(value: Any) -> Hashable:
    """Lists, dictionaries and records as tuples; 1 and True, which are equal, are told apart."""
    if isinstance(value, list | tuple):
        return (type(value), *map(_hashable, value))
    if isinstance(value, dict):
        return (dict, *((name, _hashable(one)) for name, one in value.items()))
    if is_dataclass(value):
        return (type(value), *(_hashable(getattr(value, one.name)) for one in fields(value)))
    return (type(value), value)
