-- From staged Kineto events to canonical tables. kineto.py runs the parts by name.
--
-- What ran on the device is joined to the call that launched it by the GPU's correlation, and to the framework's
-- operator by PyTorch's "External id" ("external id" before torch 1.13). Both are unique within a file.

-- name: places
create or replace temp table _kineto_device_label as
select pid, any_value(try_cast(regexp_extract(text, '(\d+)\s*$', 1) as integer)) as device_id
from _kineto_label where regexp_matches(text, '(?i)^gpu') group by pid;

-- One rank is one device, that of most tasks: another one's kernels would hide this one's communication. A task that
-- tells none stays.
create or replace temp table _kineto_own_device as
select try_cast(coalesce(device_id, pid) as integer) as device_id from _kineto_device
where try_cast(coalesce(device_id, pid) as integer) is not null
group by 1 order by count(*) desc, 1 limit 1;

create or replace temp view _kineto_elsewhere as
select *, try_cast(coalesce(device_id, pid) as integer) as task_device_id from _kineto_device
where try_cast(coalesce(device_id, pid) as integer) <> (select device_id from _kineto_own_device);

create or replace temp view _kineto_own as
select * replace (coalesce(external_id, older_external_id) as external_id) from _kineto_device
where try_cast(coalesce(device_id, pid) as integer)
    is not distinct from (select device_id from _kineto_own_device)
    or try_cast(coalesce(device_id, pid) as integer) is null;

create or replace temp view _kineto_task as
select d.category, d.name, try_cast(coalesce(d.device_id, d.pid) as integer) as device_id,
    coalesce(d.stream_id, d.tid) as stream_id, d.start_ns, d.dur_ns, d.correlation, d.external_id,
    c.name is not null as is_comm
from _kineto_own d
left join _kineto_comm_kernel c on d.category = 'kernel' and c.name = d.name;

-- Operators that launched something.
create or replace temp table _kineto_operator as
select external_id, min_by(name, start_ns) as name, min_by(tid, start_ns) as thread_id, min(start_ns) as start_ns
from _kineto_host
where kind = 'operator' and external_id in (
    select external_id from _kineto_own union select coalesce(external_id, older_external_id) from _kineto_api)
group by external_id;

-- A driver's call stands inside the runtime's that made it, under the same correlation.
create or replace temp table _kineto_call as
select correlation, min_by(name, start_ns) as name, min_by(tid, start_ns) as thread_id, min(start_ns) as start_ns,
    max(start_ns + dur_ns) as end_ns, min_by(coalesce(external_id, older_external_id), start_ns) as external_id
from _kineto_api
where correlation in (select correlation from _kineto_own)
group by correlation;

-- Before torch 2.2 a kernel does not tell its collective, and all-to-all's is called SendRecv as point to point's is:
-- the operator around its call does (nccl:all_to_all inside of c10d::alltoall_base_).
create or replace temp table _kineto_around as
select c.correlation, max_by(h.op_type, h.start_ns) as op_type
from (
    select *, unnest(['c10d', 'nccl']) as family from _kineto_call where correlation in (
        select d.correlation from _kineto_own d join _kineto_comm_kernel k on k.name = d.name
        where d.collective is null and coalesce(k.op_type, 'batchSendRecv') = 'batchSendRecv')) c
asof join (
    select h.tid, left(h.name, 4) as family, h.start_ns, h.start_ns + h.dur_ns as end_ns, k.op_type
    from _kineto_host h join _kineto_collective k on k.collective = h.name
    where h.kind = 'operator' and k.op_type is not null) h
    on h.tid = c.thread_id and h.family = c.family and h.start_ns <= c.start_ns
where c.start_ns < h.end_ns
group by c.correlation;

-- name: kernels
insert into kernels by name
select t.device_id, t.stream_id, t.name, o.name as type,
    case t.category when 'copy' then 'MEMCPY' when 'fill' then 'MEMSET' end as core,
    t.category = 'kernel' as is_compute, t.start_ns, t.dur_ns, t.correlation as connection_id
from _kineto_task t
left join _kineto_call c on t.external_id is null and c.correlation = t.correlation
left join _kineto_operator o on t.category = 'kernel' and o.external_id = coalesce(t.external_id, c.external_id)
where not t.is_comm;

-- name: comm_ops
-- PyTorch's name of the collective tells most; several together (coalesced) have none but the kernel's. Elements
-- are counted as HCCL does: what a rank contributes, or gets where that is less than what it gives.
insert into comm_ops by name
with facts as (
    select d.*, k.algorithm, t.data_type as type_name, t.width_bytes,
        coalesce(c.op_type, a.op_type, k.op_type) as op_type
    from _kineto_own d
    join _kineto_comm_kernel k on d.category = 'kernel' and k.name = d.name
    left join _kineto_collective c on c.collective = d.collective
    left join _kineto_around a on a.correlation = d.correlation and coalesce(k.op_type, 'batchSendRecv') = 'batchSendRecv'
    left join _kineto_data_type t on t.dtype = d.data_type
), counts as (
    select *, case when op_type in ('reduceScatter', 'reduceScatterV', 'scatter', 'receive')
        then coalesce(out_count, in_count) else coalesce(in_count, out_count) end as element_count
    from facts
)
select try_cast(coalesce(c.device_id, c.pid) as integer) as device_id, coalesce(c.stream_id, c.tid) as stream_id,
    row_number() over (order by c.start_ns, c.name, c.correlation) - 1 as op_id, c.name, c.op_type, g.group_hash,
    c.start_ns, c.dur_ns, c.algorithm, nullif(c.type_name, '') as data_type, c.element_count,
    try_cast(cast(c.element_count as hugeint) * c.width_bytes as bigint) as size_bytes,
    try_cast(c.group_size as integer) as group_size, c.correlation as connection_id
from counts c
left join _kineto_group g on g.group_name = c.group_name;

-- name: untold
select count(*) from _kineto_own d
join _kineto_comm_kernel k on d.category = 'kernel' and k.name = d.name and k.op_type = 'batchSendRecv'
where d.collective is null and not exists (
    select 1 from _kineto_host h join _kineto_collective c on c.collective = h.name where h.kind = 'operator');

-- name: launches
insert into launches by name
select t.correlation as connection_id, c.name as api_name, c.thread_id as api_thread_id, c.start_ns as api_start_ns,
    c.end_ns as api_end_ns, o.name as operator_name, o.thread_id as operator_thread_id, o.start_ns as operator_start_ns,
    case when t.is_comm then 'communication' when t.category = 'kernel' then 'kernel' else 'task' end as target,
    t.name as target_name, t.device_id, t.stream_id, t.start_ns as device_start_ns, t.start_ns - c.start_ns as latency_ns
from _kineto_task t
join _kineto_call c on c.correlation = t.correlation
left join _kineto_operator o on o.external_id = coalesce(t.external_id, c.external_id);

-- name: unbound
select count(*) from _kineto_own
where exists (from _kineto_api) and (correlation is null or correlation not in (select correlation from _kineto_call));

-- name: elsewhere
select task_device_id, count(*) from _kineto_elsewhere group by 1 order by 1;

-- name: steps
-- A step's range on the device: from the first start to the last end of what was launched within it, but not
-- ending before the host's. Without calls the device's own range of the step tells.
insert into steps by name
with host as (
    select cast(regexp_extract(name, '(\d+)$', 1) as bigint) as step, min(start_ns) as start_ns,
        max(start_ns + dur_ns) as end_ns
    from _kineto_step group by 1
), own as (
    select cast(regexp_extract(name, '(\d+)$', 1) as bigint) as step, min(start_ns) as start_ns,
        max(start_ns + dur_ns) as end_ns
    from _kineto_range
    where pid is null or pid not in (select pid from _kineto_elsewhere where pid is not null)
    group by 1
), step_launches as (
    select h.step, min(t.start_ns) as start_ns, max(t.start_ns + t.dur_ns) as end_ns
    from (select c.start_ns as called_ns, d.start_ns, d.dur_ns
          from _kineto_call c join _kineto_own d on d.correlation = c.correlation) t
    asof join host h on t.called_ns >= h.start_ns
    where t.called_ns < h.end_ns
    group by h.step
)
select coalesce(h.step, o.step) as step, h.start_ns as window_start_ns, h.end_ns as window_end_ns,
    coalesce(l.start_ns, o.start_ns, h.start_ns) as device_start_ns,
    greatest(h.end_ns, coalesce(l.end_ns, o.end_ns)) as device_end_ns
from host h
full join own o on o.step = h.step
left join step_launches l on l.step = h.step;

-- name: marks
insert into marks by name
select 'profiler_step' as kind, name, pid as process_id, tid as thread_id, start_ns, dur_ns from _kineto_step;

-- name: host_ops
-- Shapes are lists of lists: [[8, 64], [], [[2], [3]]] -> 8,64;;2;3
insert into host_ops by name
select h.kind, h.name, h.pid as process_id, h.tid as thread_id, h.start_ns, h.dur_ns,
    nullif(h.sequence_number, -1) as sequence_number, nullif(h.forward_thread_id, 0) as forward_thread_id,
    translate(replace(translate(h.input_shapes, e' \t\r\n', ''), '],[', ';'), '[]"', '') as input_shapes,
    translate(replace(translate(h.input_dtypes, e' \t\r\n', ''), '","', ';'), '[]"', '') as input_dtypes,
    regexp_replace(h.call_stack, ';\s*', e'\n', 'g') as call_stack, h.module, h.flops
from _kineto_host h;

insert into host_ops by name
select 'api' as kind, 'runtime' as level, name, pid as process_id, tid as thread_id, start_ns, dur_ns,
    correlation as connection_id
from _kineto_api;

-- name: memory
insert into memory by name
select try_cast(device_id as integer) as device_id, 'record' as source, 'PTA' as component, timestamp_ns,
    allocated_bytes, reserved_bytes
from _kineto_memory where timestamp_ns is not null and coalesce(allocated_bytes, reserved_bytes) is not null;

-- name: counters
insert into counters by name
select l.device_id, c.name, c.series, c.timestamp_ns, c.value
from _kineto_counter c left join _kineto_device_label l on l.pid = c.pid;
