-- Host side, the framework: operators, Python frames and the task queue, for rows $low to $high.

-- Operators and Python frames. `_stack_of` and `_stack` hold each distinct call stack once.
insert into host_ops by name
with word as materialized (
    select id, value, regexp_matches(value, '[A-Za-z]') as lettered from _string
    where id in (select unnest([inputShapes, inputDtypes]) from _pytorch_api
                 where rowid between $low and $high)
),
event as (
    select p.*, name.value as name_text, case kind.name when 'op' then 'operator' else 'python' end as kind
    from _pytorch_api as p
    join _enum as kind on kind.kind = 'api' and kind.id = p.type and kind.name in ('op', 'trace')
    left join _string as name on name.id = p.name
    where p.rowid between $low and $high and not coalesce(starts_with(name.value, 'ProfilerStep#'), false)
)
select
    e.kind, e.name_text as name, e.globalTid >> 32 as process_id, e.globalTid & 4294967295 as thread_id,
    e.startNs as start_ns, e.durNs as dur_ns,
    e.sequenceNumber as sequence_number, nullif(e.fwdThreadId, 0) as forward_thread_id,
    -- Builds of early 2025 write the two into each other's column; shapes never have letters.
    replace(replace(case when shape.lettered then dtype.value else shape.value end, e'\r', ''), e'\n', '') as input_shapes,
    replace(replace(case when shape.lettered then shape.value else dtype.value end, e'\r', ''), e'\n', '') as input_dtypes,
    stack.frames as call_stack
from event as e
left join word as shape on shape.id = e.inputShapes
left join word as dtype on dtype.id = e.inputDtypes
left join _stack_of as chain on chain.id = e.callchainId
left join _stack as stack on stack.key = chain.key;

-- Enqueue and dequeue carry one id each, which pairs them.
insert into host_ops by name
select
    case when name.value ilike 'dequeue%' then 'dequeue' else 'enqueue' end as kind,
    name.value as name, p.globalTid >> 32 as process_id, p.globalTid & 4294967295 as thread_id,
    p.startNs as start_ns, p.durNs as dur_ns,
    cast((select min(c.connectionId) from _connection_ids as c where c.id = p.connectionId) as varchar) as connection_id
from _pytorch_api as p
join _enum as kind on kind.kind = 'api' and kind.id = p.type and kind.name = 'queue'
left join _string as name on name.id = p.name
where p.rowid between $low and $high;
