"""Where kernels of findings come from: the framework's operator that launched most of their time,
with its module or the line of source below which it was called, as far as those were recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import duckdb

from npuscope.messages import Message, join

from ..replay.changes import changed_kernels
from ..scope import Scope
from ..wording import percent
from .finding import Finding

# The innermost frame of a stack that is not the framework's own, else the innermost.
_LAUNCHES = """
    with _kernels as (
        select run, capture, rank, connection_id, dur_ns from kernels
        {where} and is_compute and coalesce(type, name) in (select unnest(?)) and dur_ns > 0
    ),
    _calls as (  -- one of a graph launches many kernels, each with a row of its own
        select distinct run, capture, rank, connection_id, operator_name, operator_thread_id,
            operator_start_ns
        from launches semi join _kernels using (run, capture, rank, connection_id)
        where target = 'kernel'
    ),
    _launches as (
        select l.operator_name, k.dur_ns, h.module, string_split(h.call_stack, e'\\n') as frames
        from _kernels as k
        join _calls as l on l.run = k.run and l.capture = k.capture and l.rank = k.rank
            and l.connection_id = k.connection_id
        left join (select * from host_ops where module is not null or call_stack is not null) as h
            on h.run = k.run and h.capture = k.capture and h.rank = k.rank
            and h.name = l.operator_name and h.thread_id is not distinct from l.operator_thread_id
            and h.start_ns = l.operator_start_ns
    ),
    _places as (
        select operator_name, dur_ns,
            coalesce(module, list_filter(frames, lambda frame: not regexp_matches(
                frame, '(site|dist)-packages|torch_npu|[/\\\\]torch[/\\\\]|<frozen|<built-in'
            ))[1], frames[1]) as place
        from _launches
    )
    select operator_name, place, sum(dur_ns) as ns, (select sum(dur_ns) from _places) as every_ns
    from _places where operator_name is not null
    group by operator_name, place
    order by ns desc, operator_name, place nulls last limit 1"""


def with_origins(
    con: duckdb.DuckDBPyConnection, scope: Scope, findings: Sequence[Finding]
) -> Iterator[Finding]:
    """Findings of one capture; those about types of kernels say what launched most of them."""
    clause, values = scope.where()
    for one in findings:
        types = changed_kernels(one.changes)
        rows = (
            con.execute(_LAUNCHES.format(where=clause), [*values, types]).fetchall()
            if types
            else []
        )
        for operator, place, own_ns, every_ns in rows:
            share = percent(own_ns / every_ns)
            remark = Message("{operator} launches {share} of it.", operator=operator, share=share)
            if place is not None:
                remark = Message(
                    "{operator} launches {share} of it, at {place}.",
                    operator=operator, share=share, place=place.strip(),
                )  # fmt: skip
            one = replace(one, statement=join((one.statement, remark), " "))
        yield one
