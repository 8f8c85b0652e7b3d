-- From staged trace events to canonical tables. trace_view.py runs the parts by name.
--
-- Processes are known by the names that metadata gives them, never by their ids; a flow's ends are bound to
-- slices by (pid, tid, time), which agree to the ns.

-- name: places
-- Framework slices need no metadata: their category tells what they are.
create or replace temp view _trace_host_op as
select kind, name, pid as process_id, tid as thread_id, start_ns, dur_ns, connection_id,
    nullif(sequence_number, -1) as sequence_number, nullif(forward_thread_id, 0) as forward_thread_id,
    input_shapes, input_dtypes, call_stack, module, flops
from _trace_host;

create or replace temp macro _is_computing(task_type, name) as
    is_compute_row(task_type, name)
    and regexp_matches(task_type, '(?i)(ai_?core|ai_?vec|aic|aiv|ai_?cpu|dsa)') and not task_type ilike '%hccl%';

create or replace temp table _trace_process as
with labels as (
    select pid, any_value(text) filter (label = 'process_name') as name,
        any_value(text) filter (label = 'process_labels') as label
    from _trace_label where pid is not null group by pid
)
select pid, name, label,
    try_cast(regexp_extract(label, 'NPU\s*:?\s*(\d+)', 1) as integer) as device_id,
    case when regexp_matches(name, '(?i)^(hccl|communication)\b') then 'communication'   -- Communication(HCCL), too
         when starts_with(name, 'Ascend Hardware') then 'hardware'
         when name = 'Overlap Analysis' then 'overlap'
         when name = 'CANN' then 'cann'
         when name = 'Python GC' then 'gc'
         when name in ('Python', 'MindSpore') then 'framework'
         when regexp_matches(name, '(?i)ms(prof)?_?tx') then 'marks' end as kind
from labels;

-- stream_id, plane_id: as the thread's name says; group_name: as far as the name tells one.
create or replace temp table _trace_thread as
with labels as (
    select pid, tid, any_value(text) as name
    from _trace_label where label = 'thread_name' and pid is not null and tid is not null group by pid, tid
)
select pid, tid, name,
    try_cast(regexp_extract(name, '^Stream (\d+)$', 1) as bigint) as stream_id,
    try_cast(regexp_extract(name, '^Plane (\d+)$', 1) as integer) as plane_id,
    regexp_full_match(name, '(Group .* )?Communication( Kernel)?') as is_group,
    nullif(regexp_extract(name, '^Group (.*\D.*) Communication$', 1), '') as group_name
from labels;

-- The operating system's id of the framework process; CANN's own process ids are made up.
create or replace temp table _trace_os_process as
select case when count(distinct process_id) = 1 then any_value(process_id) end as process_id
from (select distinct process_id from _trace_host_op where kind in ('operator', 'python', 'enqueue', 'dequeue')
      union select pid from _trace_step);

-- name: comm_places
-- Operations stand on a group's thread; where metadata is lost, HCCL's name for them tells.
create or replace temp table _trace_op as
select row_number() over (order by o.start_ns, o.pid, o.tid, o.name) - 1 as op_id, o.*, p.device_id, t.group_name
from _trace_other o
left join _trace_process p on p.pid = o.pid
left join _trace_thread t on t.pid = o.pid and t.tid = o.tid
where (p.kind = 'communication' and coalesce(t.is_group, starts_with(o.name, 'hcom_')))
    or (p.name is null and starts_with(o.name, 'hcom_') and coalesce(o.data_type, o.algorithm) is not null);

-- Thread ids of planes follow their group's.
create or replace temp table _trace_plane_group as
with groups_of as (
    select pid, tid from _trace_thread where is_group union select pid, tid from _trace_op
)
select p.pid, p.tid, coalesce(max(g.tid) filter (g.tid <= p.tid), min(g.tid)) as group_tid
from (select distinct pid, tid from _trace_plane) p left join groups_of g on g.pid = p.pid
group by p.pid, p.tid;

-- name: marks
insert into marks by name
select 'profiler_step' as kind, name, pid as process_id, tid as thread_id, start_ns, dur_ns from _trace_step;

insert into marks by name
with arrow as (
    select s.id, s.pid, s.tid, s.at_ns, min(f.at_ns) as device_start_ns, min_by(d.dur_ns, f.at_ns) as device_dur_ns
    from _trace_flow s
    left join _trace_flow f on f.category = 'MsTx' and f.side = 'f' and f.id = s.id
    left join _trace_device d on d.pid = f.pid and d.tid = f.tid and d.start_ns = f.at_ns
    where s.category = 'MsTx' and s.side = 's'
    group by all
)
select 'mstx' as kind, o.name, o.domain, o.pid as process_id, o.tid as thread_id, o.start_ns, o.dur_ns,
    coalesce(a.id, o.connection_id) as connection_id, a.device_start_ns, a.device_dur_ns
from _trace_other o
left join _trace_process p on p.pid = o.pid
left join arrow a on a.pid = o.pid and a.tid = o.tid and a.at_ns = o.start_ns
where coalesce(p.kind, '') not in ('communication', 'hardware', 'overlap', 'framework', 'gc')
    and (p.kind = 'marks' or a.id is not null or o.domain is not null or o.event_type is not null);

-- name: counters
-- In the databases' units: msprof's MB and KB are of 1024, and their bytes are cut to whole ones there. A hit rate
-- stands as a fraction beside its "%"; one above 1 tells that it is none.
insert into counters by name
with fraction as (
    select coalesce(max(value) <= 1, false) as is_one from _trace_counter where series = 'Hit Rate(%)'
)
select p.device_id, c.name, _counted_as(c.name, c.series) as series, c.timestamp_ns,
    case when _bytes_of(c.name, c.series) is not null then trunc(c.value * _bytes_of(c.name, c.series))
         when c.series = 'Hit Rate(%)' and f.is_one then c.value * 100
         else c.value end as value
from fraction f, _trace_counter c left join _trace_process p on p.pid = c.pid;

-- name: kernels
-- Without a kernel table: the device's tasks that compute. HCCL's wrapper kernels stand beside them.
insert into kernels by name
select p.device_id, coalesce(t.stream_id, d.tid) as stream_id, d.task_id,
    nullif(d.context_id, 4294967295) as context_id, nullif(d.model_id, 4294967295) as model_id, d.name,
    task_core(d.task_type) as core,
    is_compute_row(null, d.name) as is_compute, d.start_ns, d.dur_ns, d.connection_id
from _trace_device d
left join _trace_process p on p.pid = d.pid
left join _trace_thread t on t.pid = d.pid and t.tid = d.tid
where _is_computing(d.task_type, d.name) or regexp_matches(d.name, '(AicpuKernel|AivKernel)$');

-- name: kernel_places
-- One instant may differ by 1 ns between the files: kernels are met within 2 ns, by the buckets of 4 ns that
-- this range touches.
create or replace temp table _trace_kernel as
select rowid as kernel, start_ns, stream_id, name, unnest(list_distinct([(start_ns - 2) // 4, (start_ns + 2) // 4])) as bucket
from kernels;

-- name: kernel_connections
create or replace temp table _trace_kernel_connection as
select k.kernel, any_value(d.connection_id) as connection_id
from _trace_device d
join _trace_kernel k on k.bucket = d.start_ns // 4 and k.name = d.name and abs(k.start_ns - d.start_ns) <= 2
where d.connection_id is not null
group by k.kernel;

update kernels set connection_id = c.connection_id
from _trace_kernel_connection c where c.kernel = kernels.rowid;
drop table _trace_kernel_connection;

-- name: kernel_streams
-- Tables of Level0 tell neither streams nor tasks: the timeline does.
create or replace temp table _trace_kernel_stream as
select k.kernel, any_value(coalesce(t.stream_id, d.tid)) as stream_id, any_value(d.task_id) as task_id,
    any_value(nullif(d.context_id, 4294967295)) as context_id, any_value(nullif(d.model_id, 4294967295)) as model_id
from _trace_device d
join _trace_kernel k on k.bucket = d.start_ns // 4 and k.name = d.name and abs(k.start_ns - d.start_ns) <= 2
left join _trace_thread t on t.pid = d.pid and t.tid = d.tid
group by k.kernel having count(distinct (d.pid, d.tid, d.task_id, d.context_id)) = 1;

update kernels set stream_id = s.stream_id, task_id = s.task_id, context_id = s.context_id, model_id = s.model_id
from _trace_kernel_stream s where s.kernel = kernels.rowid;
drop table _trace_kernel_stream;

-- name: device_tasks
-- What else the device did. Parts of communication operations stand among its tasks, too: with the operation's
-- connection, or at the time of a task on a plane.
insert into device_tasks by name
select p.device_id, coalesce(t.stream_id, d.tid) as stream_id, d.task_id, d.name as type, d.start_ns, d.dur_ns,
    d.connection_id
from _trace_device d
left join _trace_process p on p.pid = d.pid
left join _trace_thread t on t.pid = d.pid and t.tid = d.tid
where not coalesce(_is_computing(d.task_type, d.name), false)
    and not regexp_matches(d.name, '(AicpuKernel|AivKernel)$') and not starts_with(d.name, 'PROFILING_')
    and (d.connection_id is null
        or d.connection_id not in (select connection_id from _trace_op where connection_id is not null))
    and not exists (from _trace_plane l where l.start_ns = d.start_ns and l.plane_task_id = d.task_id)
order by 2, d.start_ns;

-- name: launches
-- One row per arrow that ends on the device.
create or replace temp table _trace_arrow as
with start as (   -- one start may have several ends
    select id, min(at_ns) as launched_ns, min_by(pid, at_ns) as from_pid, min_by(tid, at_ns) as from_tid
    from _trace_flow where category = 'HostToDevice' and side = 's' group by id
), task as (
    select pid, tid, start_ns, any_value(name) as name, any_value(connection_id) as connection_id,
        any_value(task_type) as task_type
    from (
        select pid, tid, start_ns, name, connection_id, task_type from _trace_device
        union all by name
        select pid, tid, start_ns, name, connection_id from _trace_op
    ) group by pid, tid, start_ns
)
select row_number() over () as arrow, f.id, f.pid, f.tid, f.at_ns, s.launched_ns, s.from_pid, s.from_tid,
    t.name, t.connection_id, t.task_type, p.device_id, p.kind = 'communication' or g.is_group as is_communication,
    case when p.kind = 'communication' then null else coalesce(g.stream_id, f.tid) end as stream_id
-- The same arrow may be written twice, as by slices that both have what crosses their border.
from (select distinct id, pid, tid, at_ns from _trace_flow where category = 'HostToDevice' and side = 'f') f
join start s on s.id = f.id
left join task t on t.pid = f.pid and t.tid = f.tid and t.start_ns = f.at_ns
left join _trace_process p on p.pid = f.pid
left join _trace_thread g on g.pid = f.pid and g.tid = f.tid;

insert into launches by name
with kernel as (
    select distinct a.arrow
    from _trace_arrow a
    join _trace_kernel k on k.bucket = a.at_ns // 4 and abs(k.start_ns - a.at_ns) <= 2
        and (k.stream_id = a.stream_id or k.name = a.name)
), api as (   -- a level's call wraps the next level's: of those that begin together the node's launch tells
    select pid, tid, start_ns, min_by(name, rank) as name, min(rank) as rank, min_by(dur_ns, rank) as dur_ns,
        min_by(connection_id, rank) as connection_id
    from (
        select c.*, case when ends_with(name, '@launch') then -1 else dur_ns end as rank
        from _trace_api c
        semi join _trace_arrow a on a.from_pid = c.pid and a.from_tid = c.tid and a.launched_ns = c.start_ns
    )
    group by pid, tid, start_ns
), launching as (   -- older arrows start within the call, not with it: then the task's connection id tells
    select a.arrow, min_by(struct_pack(
        name := c.name, start_ns := c.start_ns, dur_ns := c.dur_ns, connection_id := c.connection_id
    ), c.start_ns) as call
    from _trace_arrow a
    join _trace_api c on c.connection_id = a.connection_id and c.pid = a.from_pid and c.tid = a.from_tid
        and a.launched_ns between c.start_ns and c.start_ns + c.dur_ns
    group by a.arrow
), queued as (
    select id, pid, tid, at_ns from _trace_flow where category = 'async_npu' and side = 's'
), operator_at as (   -- MindSpore gives its operators no category
    select process_id, thread_id, start_ns, min_by(name, dur_ns) as name
    from (
        select process_id, thread_id, start_ns, name, dur_ns from _trace_host_op where kind = 'operator'
        union all
        select o.pid, o.tid, o.start_ns, o.name, o.dur_ns
        from _trace_other o join _trace_process p on p.pid = o.pid and p.kind = 'framework'
    )
    semi join queued on queued.pid = process_id and queued.tid = thread_id and queued.at_ns = start_ns
    group by all
), operator as (   -- two that begin on the device together share their arrows' id
    select f.pid, f.tid, f.at_ns, min_by(o.name, (s.at_ns, s.tid)) as name,
        min_by(s.tid, (s.at_ns, s.tid)) as thread_id, min(s.at_ns) as start_ns
    from _trace_flow f
    join queued s on s.id = f.id
    left join operator_at o on o.process_id = s.pid and o.thread_id = s.tid and o.start_ns = s.at_ns
    where f.category = 'async_npu' and f.side = 'f'
    group by f.pid, f.tid, f.at_ns
), common as (
    select id from queued group by id having count(*) > 1
), begins as (
    select *, row_number() over (partition by id order by at_ns, tid) as place, count(*) over (partition by id) as count
    from queued semi join common using (id)
), step_launches as (
    select a.arrow, f.id, row_number() over (partition by f.id order by a.launched_ns, a.arrow) as place,
        count(*) over (partition by f.id) as count
    from (
        select distinct id, pid, tid, at_ns from _trace_flow semi join common using (id)
        where category = 'async_npu' and side = 'f'
    ) f
    join _trace_arrow a using (pid, tid, at_ns)
), together as (   -- of those, as many calls as operators: a queue keeps their order
    select l.arrow, o.name, b.tid as thread_id, b.at_ns as start_ns
    from step_launches l
    join begins b using (id, place, count)
    left join operator_at o on o.process_id = b.pid and o.thread_id = b.tid and o.start_ns = b.at_ns
)
select coalesce(a.connection_id, l.call.connection_id, c.connection_id, a.id) as connection_id,
    regexp_replace(coalesce(l.call.name, c.name), '^\w+@', '') as api_name, a.from_tid as api_thread_id,
    a.launched_ns as api_start_ns,
    coalesce(l.call.start_ns + l.call.dur_ns, c.start_ns + c.dur_ns) as api_end_ns,
    case when t.arrow is null then o.name else t.name end as operator_name,
    coalesce(t.thread_id, o.thread_id) as operator_thread_id, coalesce(t.start_ns, o.start_ns) as operator_start_ns,
    case when a.is_communication then 'communication'
         when k.arrow is not null then 'kernel' else 'task' end as target,
    a.name as target_name, a.device_id, a.stream_id, a.at_ns as device_start_ns,
    a.at_ns - a.launched_ns as latency_ns
from _trace_arrow a
left join kernel k on k.arrow = a.arrow
left join launching l on l.arrow = a.arrow
left join api c on c.pid = a.from_pid and c.tid = a.from_tid and c.start_ns = a.launched_ns
left join operator o on o.pid = a.pid and o.tid = a.tid and o.at_ns = a.at_ns
left join together t on t.arrow = a.arrow;
-- Tables that follow need the memory: what does not fit is written to disk and read again.
drop table _trace_arrow;
drop table _trace_kernel;

-- name: unbound
select count(distinct (id, pid, tid, at_ns)) from _trace_flow
where category = 'HostToDevice' and side = 'f'
    and id not in (select id from _trace_flow where category = 'HostToDevice' and side = 's');

-- name: untyped
select count(*) from _trace_other o
join _trace_process p on p.pid = o.pid and p.kind = 'hardware'
join _trace_thread t on t.pid = o.pid and t.tid = o.tid and t.stream_id is not null;

-- name: steps
-- A step's range on the device: from the first start to the last end of what was launched within it, but not
-- ending before the host's. Arrows from framework operators tell best (a queued call may run in a later step's
-- time); without them, those from CANN's calls.
insert into steps by name
with host as (
    select cast(regexp_extract(name, '(\d+)$', 1) as bigint) as step, min(start_ns) as start_ns,
        max(start_ns + dur_ns) as end_ns
    from _trace_step group by 1
), arrow as (
    select id, pid, tid, at_ns, side from _trace_flow
    where category = case when exists (from _trace_flow where category = 'async_npu') then 'async_npu' else 'HostToDevice' end
), task as (
    select pid, tid, start_ns, max(dur_ns) as dur_ns
    from (select pid, tid, start_ns, dur_ns from _trace_device union all select pid, tid, start_ns, dur_ns from _trace_op)
    group by pid, tid, start_ns
), device as (
    select h.step, min(f.at_ns) as start_ns, max(f.at_ns + coalesce(t.dur_ns, 0)) as end_ns
    from arrow s
    asof join host h on s.at_ns >= h.start_ns
    join arrow f on f.side = 'f' and f.id = s.id
    left join task t on t.pid = f.pid and t.tid = f.tid and t.start_ns = f.at_ns
    where s.side = 's' and s.at_ns < h.end_ns
    group by h.step
)
select h.step, h.start_ns as window_start_ns, h.end_ns as window_end_ns,
    coalesce(d.start_ns, h.start_ns) as device_start_ns, greatest(h.end_ns, d.end_ns) as device_end_ns
from host h left join device d on d.step = h.step;

-- name: iterations
-- Where the framework marks no steps, iterations of whole graphs are: slices on a thread of their own.
insert into _iterations by name
select {iteration}, o.start_ns, o.start_ns + o.dur_ns as end_ns
from _trace_other o join _trace_thread t on t.pid = o.pid and t.tid = o.tid
where o.name like 'Iteration %' and step is not null;

-- name: comm_ops
-- The kernel table knows the step of an operation.
insert into comm_ops by name
with facts as (
    select o.op_id, min_by(r.step, abs(r.start_ns - o.start_ns)) as step
    from _trace_op o join {comm_rows} r on r.name = o.name and same_time(o, r)
    group by o.op_id
), task as (
    select d.connection_id, arg_min(coalesce(t.stream_id, d.tid), d.start_ns) as stream_id
    from _trace_device d left join _trace_thread t on t.pid = d.pid and t.tid = d.tid
    where d.connection_id in (select connection_id from _trace_op)
    group by d.connection_id
)
select r.step, o.device_id, task.stream_id, o.op_id, o.name, comm_op_type(o.name) as op_type, g.group_hash, o.start_ns, o.dur_ns,
    cell(o.algorithm) as algorithm, nullif(cell(o.data_type), 'INVALID_TYPE') as data_type, o.element_count,
    try_cast(cast(o.element_count as hugeint) * type_bytes(o.data_type) as bigint) as size_bytes,
    case when lower(o.relay) in ('yes', 'true', '1') then true when lower(o.relay) in ('no', 'false', '0') then false end as relay,
    case when lower(o.retry) in ('yes', 'true', '1') then true when lower(o.retry) in ('no', 'false', '0') then false end as retry,
    try_cast(nullif(o.group_size, 4294967295) as integer) as group_size, o.connection_id
from _trace_op o
left join facts r on r.op_id = o.op_id
left join task on task.connection_id = o.connection_id
left join _trace_group g on g.group_name = o.group_name;

-- name: comm_tasks
-- Two operations of a group may run at once. A task stands a second time among the hardware's, there with the
-- connection that its operation was launched by; where that is not to be had, the task belongs to the operation
-- of its group that began last.
create or replace temp table _trace_task_connection as
select start_ns, task_id, any_value(connection_id) as connection_id
from _trace_device where task_id is not null and connection_id is not null
group by start_ns, task_id having count(distinct connection_id) = 1;

create or replace temp table _trace_connected_op as
select pid, tid, connection_id, any_value(op_id) as op_id, any_value(name) as name
from _trace_op where connection_id is not null
group by pid, tid, connection_id having count(*) = 1;

insert into comm_tasks by name
select coalesce(c.op_id, o.op_id) as op_id, coalesce(c.name, o.name) as op_name, g.group_hash,
    try_cast(coalesce(t.plane_id, s.tid - s.group_tid - 1) as integer) as plane_id, cell(s.plane_task_type) as task_type,
    nullif(s.plane_stream_id, 4294967295) as stream_id, nullif(s.plane_task_id, 4294967295) as task_id, s.start_ns, s.dur_ns,
    nullif(cell(s.transport), 'INVALID_TYPE') as transport, nullif(cell(s.link), 'INVALID_TYPE') as link,
    try_cast(some_id(s.src_group_rank) as integer) as src_group_rank,
    try_cast(some_id(s.dst_group_rank) as integer) as dst_group_rank,
    case when s.size_bytes >= 0 then s.size_bytes end as size_bytes,
    nullif(cell(s.plane_data_type), 'INVALID_TYPE') as data_type,
    nullif(cell(s.notify_id), '18446744073709551615') as notify_id
from (select p.*, h.group_tid from _trace_plane p join _trace_plane_group h on h.pid = p.pid and h.tid = p.tid) s
left join _trace_thread t on t.pid = s.pid and t.tid = s.tid
left join _trace_thread n on n.pid = s.pid and n.tid = s.group_tid
left join _trace_group g on g.group_name = n.group_name
left join _trace_task_connection k on k.start_ns = s.start_ns and k.task_id = s.plane_task_id
left join _trace_connected_op c on c.pid = s.pid and c.tid = s.group_tid and c.connection_id = k.connection_id
asof left join _trace_op o on o.pid = s.pid and o.tid = s.group_tid and s.start_ns >= o.start_ns;
drop table _trace_task_connection;
drop table _trace_connected_op;

-- name: host_rows
create or replace temp macro _call_name(name) as regexp_replace(name, '^\w+@', '');

create or replace temp macro _api_level(level, name) as
    case lower(coalesce(level, regexp_extract(name, '^(\w+)@', 1)))
        when 'hccl' then 'communication' when 'ascendcl' then 'acl' when 'ge' then 'model'
        else lower(nullif(coalesce(level, regexp_extract(name, '^(\w+)@', 1)), '')) end;

create or replace temp macro _other_level(name) as
    case lower(regexp_extract(name, '^(\w+)@', 1))
        when 'ascendcl' then 'acl' when 'hccl' then 'communication' when 'ge' then 'model' when 'api' then null
        else nullif(lower(regexp_extract(name, '^(\w+)@', 1)), '') end;

create or replace temp macro _bytes_of(name, series) as
    case when regexp_matches(name, '^(HBM|LLC|DDR|APP|Device)\b')
         then case when ends_with(series, '(MB/s)') then 1 << 20 when series = 'KB' then 1 << 10 end end;

create or replace temp macro _counted_as(name, series) as
    case when _bytes_of(name, series) is null then series
         else regexp_replace(series, '[KM]B(/s\)|$)', 'B\1') end;

-- name: host_words
select unnest([kind, name]) as word from (select distinct kind, name from _trace_host)
union all select unnest([_api_level(level, name), _call_name(name)]) from (select distinct level, name from _trace_api)
union all select unnest([name, _other_level(name), _call_name(name)]) from (select distinct name from _trace_other)
union all select unnest(['api', 'gc', 'operator'])
union all select unnest([input_shapes, input_dtypes, module])
    from (select distinct input_shapes, input_dtypes, module from _trace_host)

-- name: counter_words
select unnest([name, _counted_as(name, series)]) as word from (select distinct name, series from _trace_counter)

-- name: host_ops
insert into host_ops by name from _trace_host_op;

insert into host_ops by name
select 'api' as kind, _api_level(a.level, a.name) as level, _call_name(a.name) as name,
    coalesce(r.process_id, a.pid) as process_id, a.tid as thread_id, a.start_ns, a.dur_ns, a.connection_id
from _trace_api a, _trace_os_process r;

-- Slices without a category or CANN's arguments, by their process.
insert into host_ops by name
select case p.kind when 'gc' then 'gc' when 'framework' then 'operator' else 'api' end as kind,
    case when p.kind = 'cann' or p.kind is null then _other_level(o.name) end as level,
    case when p.kind in ('gc', 'framework') then o.name else _call_name(o.name) end as name,
    case when p.kind in ('gc', 'framework') then o.pid else coalesce(r.process_id, o.pid) end as process_id,
    o.tid as thread_id, o.start_ns, o.dur_ns, o.connection_id
from _trace_other o
left join _trace_process p on p.pid = o.pid, _trace_os_process r
where p.kind in ('gc', 'framework', 'cann')
    or (p.name is null and regexp_matches(o.name, '^(AscendCL|Runtime|Model|Node|Communication|Hccl|GE|Api)@'));
