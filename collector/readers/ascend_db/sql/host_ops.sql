-- Host side: framework operators, Python frames, the task queue, CANN interfaces and garbage collection, for what
-- began from $low to $high. `_stack_of` and `_stack` hold each distinct call stack once; enqueue and dequeue carry
-- one id each, in `_queue_call`, which pairs them.
create or replace temp table _ordered as
with framework as (
    select p.*, k.name as event
    from _pytorch_api as p
    join _enum as k on k.kind = 'api' and k.id = p.type and k.name in ('op', 'trace', 'queue')
    where p.startNs between $low and $high
        and not (k.name <> 'queue' and p.name is not null and p.name in (select id from _word where is_step))
),
queue_call as (
    select * from _queue_call
    where id between (select min(connectionId) from framework where event = 'queue')
        and (select max(connectionId) from framework where event = 'queue')
),
event as (
    select f.* exclude (connectionId), q.connectionId
    from framework as f left join queue_call as q on f.event = 'queue' and q.id = f.connectionId
    union all by name
    select 'api' as event, a.*, level.name as level
    from _cann_api as a
    left join _enum as level on level.kind = 'api' and level.id = a.type
    where a.startNs between $low and $high
    union all by name
    select 'gc' as event, globalTid, startNs, durNs from _gc_record where startNs between $low and $high
)
select * from event order by startNs;

insert into host_ops by name
select
    case e.event
        when 'op' then 'operator'
        when 'trace' then 'python'
        when 'queue' then case when name.is_dequeue then 'dequeue' else 'enqueue' end
        else e.event end as kind,
    case e.level when 'hccl' then 'communication' else e.level end as level,
    case when e.event = 'gc' then 'GC' else name.value end as name,
    e.globalTid >> 32 as process_id, e.globalTid & 4294967295 as thread_id,
    e.startNs as start_ns, e.durNs as dur_ns,
    cast(e.connectionId as varchar) as connection_id,
    e.sequenceNumber as sequence_number, nullif(e.fwdThreadId, 0) as forward_thread_id,
    -- Builds of early 2025 write the two into each other's column; shapes never have letters.
    case when shape.lettered then dtype.cell else shape.cell end as input_shapes,
    case when shape.lettered then shape.cell else dtype.cell end as input_dtypes,
    stack.frames as call_stack
from _ordered as e
left join _word as name on name.id = e.name
left join _word as shape on shape.id = e.inputShapes
left join _word as dtype on dtype.id = e.inputDtypes
left join _stack_of as chain on chain.id = e.callchainId
left join _stack as stack on stack.key = chain.key;
