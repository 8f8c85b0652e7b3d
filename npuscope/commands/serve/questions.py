"""What programs may ask of the profiles they were given: questions, their answers page by page.

Text of a profile (names of kernels, paths) is data: it stands in JSON strings only, at most so
long, with whatever a terminal would obey spelled out.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from npuscope.analysis import query
from npuscope.analysis.catalog import metrics
from npuscope.analysis.experts.load.load_rows import By as ExpertKey
from npuscope.analysis.flops.model.describe import presets
from npuscope.analysis.operators.answers import OperatorKey
from npuscope.analysis.wording import numbers, shell_word
from npuscope.capture import Capture, MfuKey
from npuscope.commands.serve.select_pages import SelectPages
from npuscope.console.printable import json_text, visible
from npuscope.dashboard.results import json_ready
from npuscope.errors import UsageError
from npuscope.profile import place_of

if TYPE_CHECKING:
    from npuscope.analysis.metric import Column

Schema = dict[str, Any]
MOST_ROWS = 200
USUAL_ROWS = 40
# Of an answer's rows as JSON, some 8,000 tokens; notes have a fifth of it beside.
MOST_CHARACTERS = 24_000
MOST_NOTES_CHARACTERS = MOST_CHARACTERS // 5
MOST_OF_A_TEXT = 300
MOST_OF_A_LIST = MOST_CHARACTERS // 5
_TYPES = {
    "bigint": "integer", "integer": "integer", "ubigint": "integer", "double": "number",
    "boolean": "boolean", "varchar": "string",
}  # fmt: skip


def _key(values: Iterable[str]) -> Schema:
    return {"type": "string", "enum": [*values], "description": "what rows are by"}


def _count(least: int, description: str) -> Schema:
    """An integer from `least` on that the engine's integers hold."""
    bounds = {"minimum": least, "maximum": _MOST, "description": description}
    return {"type": "integer", **bounds}


_MOST = (1 << 53) - 1  # what JSON of any program has exactly
_RANK = _count(0, "only this global rank")
_STEP = _count(-_MOST, "only this step")
_CHANGES: Schema = {
    "type": "array",
    "items": {"type": "string"},
    "minItems": 1,
    "description": "TARGET=VALUE, durations times VALUE: rank:5=median, comm:ep=0.5, host:free",
}
# No files: these could lie anywhere.
_MODEL: Schema = {
    "type": "string", "enum": [*presets()], "description": "preset of the trained model",
}  # fmt: skip
_TOKENS = _count(1, "of the whole job, with model")
_SQL: Schema = {"type": "string", "description": "one SELECT in DuckDB's SQL; `show tables`"}
_NAME: Schema = {"type": "string", "description": "which of the given profiles"}
_OFFSET = _count(0, "rows to leave out in front")
_LIMIT: Schema = {
    "type": "integer", "minimum": 1, "maximum": MOST_ROWS,
    "description": f"rows at most, {USUAL_ROWS} if it is left out",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    """A method of `Capture`, the command that answers the same, and what it takes by name."""

    name: str
    command: str
    takes: Mapping[str, Schema] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    about: str = ""

    @property
    def description(self) -> str:
        """What it tells, in the catalog's words."""
        metrics = _metrics_of(self.command)
        return self.about or " ".join(dict.fromkeys(one.meaning for one in metrics))

    def input_schema(self, profiles: Iterable[str]) -> Schema:
        """JSON schema of its arguments, where these profiles may be asked about."""
        names = [*profiles]
        properties = {
            "profile": {**_NAME, "enum": names}, **self.takes, "offset": _OFFSET, "limit": _LIMIT
        }  # fmt: skip
        required = [*self.required, *(["profile"] if len(names) > 1 else [])]
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    def output_schema(self) -> Schema:
        """JSON schema of its answers; columns with unit and meaning as the catalog has them."""
        columns: dict[str, Schema] = {}
        for metric in _metrics_of(self.command):
            for column in metric.columns:
                columns.setdefault(column.name, _column(column))
        rows = {"type": "array", "items": {"type": "object", "properties": columns}}
        return {
            "type": "object",
            "properties": {
                "rows": rows,
                "row_count": {"type": "integer", "description": "of all pages"},
                "next_offset": {"type": ["integer", "null"], "description": "null: no more rows"},
                "notes": {"type": "array", "items": {"type": "string"}},
                "evidence": {"type": "string", "description": "the command that prints the same"},
            },
            "required": ["rows", "row_count", "next_offset", "notes", "evidence"],
        }

    def words(self, place: str, arguments: Mapping[str, Any]) -> str:
        """The command line that answers the same."""
        verb, *options = self.command.split()
        words_here: list[str] = []
        for name, value in arguments.items():
            if name in ("changes", "text"):
                # An option begins with a dash, and a comment of SQL does.
                words = value if isinstance(value, list) else [value]
                words_here += [f" {one}" if one.startswith("-") else one for one in words]
            else:
                words_here += [f"--{name.replace('_', '-')}", str(value)]
        text = shlex.join([*options, *words_here, "--json"])
        return f"npuscope {verb} {shell_word(place)} {text}"


_PLACE = {"rank": _RANK, "step": _STEP}
QUESTIONS: tuple[Question, ...] = (
    Question("findings", "findings"),
    Question("facts", "doctor", about="What was recorded: ranks, chips, versions, parallel sizes."),
    Question("steps", "steps", _PLACE),
    Question("kernels", "kernels", {"by": _key(get_args(query.KernelKey)), **_PLACE}),
    Question("comm", "comm", {"by": _key(get_args(query.CommKey)), **_PLACE}),
    Question(
        "mfu", "mfu",
        {"model": _MODEL, "tokens_per_step": _TOKENS, "by": _key(get_args(MfuKey)), **_PLACE},
    ),
    Question("waterfall", "mfu --waterfall", _PLACE),
    Question("operators", "operators", {"by": _key(get_args(OperatorKey)), **_PLACE}),
    Question("experts", "experts", {"by": _key(get_args(ExpertKey)), **_PLACE}),
    Question("ranks", "ranks", _PLACE),
    Question("memory", "memory", {"by": _key(get_args(query.MemoryKey)), "rank": _RANK}),
    Question("whatif", "whatif", {"changes": _CHANGES}, ("changes",)),
    Question("doctor", "doctor"),
    Question(
        "sql", "sql", {"text": _SQL}, ("text",),
        "Rows of one SELECT over the canonical tables and metrics; no files, no settings.",
    ),
)  # fmt: skip


class Profiles:
    """Profiles that may be asked about, and no others; each is opened when it is first asked.

    Answers may be asked from several threads.
    """

    def __init__(self, places: Iterable[Path]) -> None:
        self._places = {place_of(place): place for place in places}
        self._open: dict[str, Capture] = {}
        self._selects: dict[str, SelectPages] = {}
        self._opening = threading.Lock()

    @property
    def names(self) -> list[str]:
        """As they were given."""
        return [*self._places]

    def close(self) -> None:
        """Close all of them."""
        for pages in self._selects.values():
            pages.close()
        for job in self._open.values():
            job.close()

    def answer(self, question: Question, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A page of an answer, as the question's `output_schema` says. Raises NpuscopeError."""
        # JSON writes 3 as 3.0, too.
        values: dict[str, Any] = dict(arguments)
        for key, value in arguments.items():
            if isinstance(value, float):
                values[key] = int(value)
        name = values.pop("profile", self.names[0])
        offset, limit = values.pop("offset", 0), values.pop("limit", USUAL_ROWS)
        job = self._capture(name)
        evidence = question.words(name, values)
        if question.name == "sql":
            page_rows, count = self._select_pages(name, job).page(values["text"], offset, limit)
        else:
            if question.name == "whatif":
                frame = job.whatif(*values["changes"])
            else:
                frame = getattr(job, question.name)(**values)
            if frame.is_empty():
                _require(job, values)
            page_rows, count = query.rows(frame.slice(offset, limit)), frame.height
        rows = _within(map(_row, page_rows), MOST_CHARACTERS)
        notes = job.notes(*values.get("changes", ()))
        end = offset + len(rows)
        return {
            "rows": rows,
            "row_count": count,
            "next_offset": end if end < count else None,
            "notes": _within(map(bound_texts, notes), MOST_NOTES_CHARACTERS),
            "evidence": evidence,
        }

    def _select_pages(self, name: str, job: Capture) -> SelectPages:
        with self._opening:
            if name not in self._selects:
                self._selects[name] = SelectPages(job.path)
            return self._selects[name]

    def _capture(self, name: str) -> Capture:
        place = self._places.get(name)
        if place is None:
            names = ", ".join(self.names)
            raise UsageError(f"{bound_texts(name)} is none of the given profiles: {names}")
        with self._opening:
            if name not in self._open:
                self._open[name] = Capture(place)
            return self._open[name]


def bound_texts(value: Any) -> Any:
    """A value whose texts obey nothing, and are at most so long."""
    if isinstance(value, str):
        text = visible(value)
        return text if len(text) <= MOST_OF_A_TEXT else text[: MOST_OF_A_TEXT - 3] + "..."
    if isinstance(value, dict):
        return {bound_texts(name): bound_texts(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [bound_texts(one) for one in value]
    return value


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as JSON has it, with lists and objects as their cut text where they are long."""
    record = {
        name: _cut(value, MOST_OF_A_LIST) for name, value in bound_texts(json_ready(row)).items()
    }
    if len(json_text(record)) > MOST_CHARACTERS:
        record = {name: _cut(value, MOST_OF_A_TEXT) for name, value in record.items()}
    return record


def _cut(value: Any, most_characters: int) -> Any:
    if not isinstance(value, dict | list) or len(text := json_text(value)) <= most_characters:
        return value
    return text[: most_characters - 3] + "..."


def _require(job: Capture, values: Mapping[str, Any]) -> None:
    """As the commands do, raise UsageError where a rank or step is asked for that is not there."""
    steps = job.steps()
    for name in ("rank", "step"):
        if (value := values.get(name)) is not None:
            there = steps[name].drop_nulls().unique().to_list()
            if value not in there:
                raise UsageError(f"no {name} {value} here: there is {numbers(there) or 'none'}")


def _within(values: Iterable[Any], most_characters: int) -> list[Any]:
    """The first of the values whose JSON is so long together; one at least."""
    items: list[Any] = []
    left = most_characters
    for value in values:
        left -= len(json_text(value))
        if left < 0 and items:
            break
        items.append(value)
    return items


@cache
def _metrics_of(command: str) -> tuple[Any, ...]:
    """Metrics that a command answers with, by whatever key."""
    names = (command, f"{command} --by ")
    return tuple(
        metric
        for metric in metrics()
        if any(one == names[0] or one.startswith(names[1]) for one in metric.commands)
    )


def _column(column: Column) -> Schema:
    kind = _TYPES.get(column.type)
    unit = f"[{column.unit}] " if column.unit else ""
    column_schema: Schema = {"description": f"{unit}{column.meaning}"}
    return {"type": [kind, "null"], **column_schema} if kind else column_schema
