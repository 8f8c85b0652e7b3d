-- What stands on each kind of track: a query per kind over the canonical tables of one rank.
--
-- Slices have key_a and key_b (which track), start_ns and end_ns (cut at the window), name, category, args (members of
-- a JSON object) and flow (members of the event that tie it to others). Counters have name, timestamp_ns and args.
-- The rank and the window are variables, so that they are constants to the planner.

-- name: macros
create or replace temp macro is_chosen(a, b, c) as
    a = getvariable('timeline_run') and b = getvariable('timeline_capture') and c = getvariable('timeline_rank');
-- Overlaps the window, or lies in it where it has no length.
create or replace temp macro is_inside(s, d) as
    d >= 0 and s < getvariable('timeline_to_ns')
    and (s >= getvariable('timeline_from_ns') or s + d > getvariable('timeline_from_ns'));
create or replace temp macro cut_start(s) as greatest(s, getvariable('timeline_from_ns'));
create or replace temp macro cut_end(s, d) as least(s + d, getvariable('timeline_to_ns'));
-- Decimal microseconds of ns, exactly.
create or replace temp macro us(ns) as
    cast(cast(ns as decimal(15, 0)) * cast(0.001 as decimal(3, 3)) as varchar);
create or replace temp macro far_us(ns) as
    concat(case when ns < 0 then '-' end, abs(ns) // 1000, '.', right(cast(1000 + abs(ns) % 1000 as varchar), 3));
create or replace temp macro whole(s, d) as
    case when s < getvariable('timeline_from_ns') or s + d > getvariable('timeline_to_ns')
        then concat('"whole duration (us)":', far_us(d)) end;
create or replace temp macro tied(direction, kind, id) as
    case when id is not null and getvariable('timeline_has_host')
        then concat(',"bind_id":"0x', to_hex(hash(kind, id, getvariable('timeline_rank'))), '","', direction, '":true')
        end;

-- name: steps
select null as key_a, null as key_b,
    cut_start(start_ns) as start_ns, cut_end(start_ns, end_ns - start_ns) as end_ns,
    concat('step ', step) as name, 'step' as category,
    concat_ws(',',
        '"step":' || step,
        '"computing (us)":' || far_us(computing_ns),
        '"exposed communication (us)":' || far_us(exposed_communication_ns),
        '"masked communication (us)":' || far_us(overlapped_ns),
        '"free (us)":' || far_us(free_ns),
        '"bubble (us)":' || far_us(bubble_ns),
        '"masking ratio":' || masking_ratio,
        '"start (ns)":"' || start_ns || '"',
        whole(start_ns, end_ns - start_ns)
    ) as args,
    null as flow
from (
    select step, coalesce(w.start_ns, f.start_ns) as start_ns,
        coalesce(w.end_ns, f.end_ns) as end_ns,
        computing_ns, exposed_communication_ns, overlapped_ns, free_ns, bubble_ns, masking_ratio
    from (
        select step, coalesce(min(window_start_ns), min(device_start_ns)) as start_ns,
            coalesce(max(window_end_ns), max(device_end_ns)) as end_ns
        from steps where is_chosen(run, capture, rank) and step is not null group by step
    ) as w
    full join (
        select * from step_summary where is_chosen(run, capture, rank) and step is not null
    ) as f using (step)
)
where is_inside(start_ns, end_ns - start_ns)
    and step between getvariable('timeline_first_step') and getvariable('timeline_last_step')

-- name: overlap
select lane as key_a, cast(p.name = 'masked communication' as integer) as key_b,
    p.start_ns, p.end_ns, p.name, 'overlap' as category,
    '"step":' || step as args,
    null as flow
from (_pieces) as p join overlap_labels as l using (label)
where coalesce(
    step between getvariable('timeline_first_step') and getvariable('timeline_last_step'),
    not getvariable('timeline_has_chosen_steps')
)

-- name: kernels
select device_id as key_a, stream_id as key_b,
    cut_start(start_ns) as start_ns, cut_end(start_ns, dur_ns) as end_ns,
    coalesce(name, type, 'kernel') as name,
    case when is_compute then 'kernel' else 'task' end as category,
    concat_ws(',',
        '"step":' || step,
        '"type":' || to_json(type),
        '"core":' || to_json(core),
        '"blocks":' || block_count,
        '"mix blocks":' || mix_block_count,
        '"input shapes":' || to_json(input_shapes),
        '"input types":' || to_json(input_dtypes),
        '"input formats":' || to_json(input_formats),
        '"output shapes":' || to_json(output_shapes),
        '"output types":' || to_json(output_dtypes),
        '"output formats":' || to_json(output_formats),
        '"state":' || to_json(op_state),
        '"task id":' || task_id,
        '"connection id":' || to_json(connection_id),
        whole(start_ns, dur_ns)
    ) as args,
    tied('flow_in', 'launch', connection_id) as flow
from kernels
where is_chosen(run, capture, rank) and is_inside(start_ns, dur_ns)

-- name: communication
select n.number as key_a, null as key_b,
    cut_start(start_ns) as start_ns, cut_end(start_ns, dur_ns) as end_ns,
    coalesce(name, op_type, 'communication') as name, 'communication' as category,
    concat_ws(',',
        '"step":' || step,
        '"type":' || to_json(op_type),
        '"group":' || to_json(n.label),
        '"size (bytes)":' || size_bytes,
        '"elements":' || element_count,
        '"data type":' || to_json(data_type),
        '"algorithm":' || to_json(algorithm),
        '"relay":' || relay,
        '"retry":' || retry,
        '"connection id":' || to_json(connection_id),
        whole(start_ns, dur_ns)
    ) as args,
    tied('flow_in', 'launch', connection_id) as flow
from comm_ops as c join timeline_groups as n on n.group_hash is not distinct from c.group_hash
where is_chosen(run, capture, rank) and is_inside(start_ns, dur_ns)

-- name: marks
select process_id as key_a, thread_id as key_b,
    cut_start(start_ns) as start_ns, cut_end(start_ns, dur_ns) as end_ns,
    coalesce(name, kind, 'mark') as name, 'mark' as category,
    concat_ws(',', '"kind":' || to_json(kind), '"domain":' || to_json(domain), whole(start_ns, dur_ns)) as args,
    null as flow
from marks
where is_chosen(run, capture, rank) and is_inside(start_ns, dur_ns)

-- name: device_marks
select null as key_a, null as key_b,
    cut_start(device_start_ns) as start_ns, cut_end(device_start_ns, device_dur_ns) as end_ns,
    coalesce(name, kind, 'mark') as name, 'mark' as category,
    concat_ws(',',
        '"kind":' || to_json(kind), '"domain":' || to_json(domain), whole(device_start_ns, device_dur_ns)
    ) as args,
    null as flow
from marks
where is_chosen(run, capture, rank) and is_inside(device_start_ns, device_dur_ns)

-- name: host
select process_id as key_a, thread_id as key_b,
    cut_start(start_ns) as start_ns, cut_end(start_ns, dur_ns) as end_ns,
    coalesce(name, kind, 'call') as name, coalesce(kind, 'call') as category,
    concat_ws(',',
        '"level":' || to_json(level),
        '"input shapes":' || to_json(input_shapes),
        '"input types":' || to_json(input_dtypes),
        '"sequence":' || sequence_number,
        '"forward thread":' || forward_thread_id,
        '"module":' || to_json(module),
        '"connection id":' || to_json(connection_id),
        '"call stack":' || to_json(call_stack),
        whole(start_ns, dur_ns)
    ) as args,
    case kind
        when 'api' then tied('flow_out', 'launch', connection_id)
        when 'enqueue' then tied('flow_out', 'queue', connection_id)
        when 'dequeue' then tied('flow_in', 'queue', connection_id) end as flow
from host_ops
where is_chosen(run, capture, rank) and is_inside(start_ns, dur_ns)

-- name: memory
-- Of what came before the window, the last of each curve is true at its start.
with _facts as (
    select component, source, device_id, timestamp_ns, allocated_bytes, reserved_bytes, active_bytes
    from memory
    where is_chosen(run, capture, rank) and component is not null
        and timestamp_ns < getvariable('timeline_to_ns')
), _telling as (
    select component, source, device_id
    from _facts group by all
    having bool_or(coalesce(allocated_bytes, 0) <> 0 or coalesce(reserved_bytes, 0) <> 0)
), _visible as (
    select * from _facts where timestamp_ns >= getvariable('timeline_from_ns')
    union all
    select component, source, device_id, getvariable('timeline_from_ns'),
        arg_max(allocated_bytes, timestamp_ns), arg_max(reserved_bytes, timestamp_ns),
        arg_max(active_bytes, timestamp_ns)
    from _facts where timestamp_ns < getvariable('timeline_from_ns')
    group by component, source, device_id
)
select concat(
        case when source = 'module' then 'memory of module ' else 'memory ' end, component,
        case when getvariable('timeline_has_devices') then ' of device ' || device_id end
    ) as name,
    timestamp_ns,
    concat_ws(',',
        '"allocated (bytes)":' || allocated_bytes,
        '"reserved (bytes)":' || reserved_bytes,
        '"active (bytes)":' || active_bytes
    ) as args
from _visible as s semi join _telling as t
    on t.component = s.component and t.source is not distinct from s.source
    and t.device_id is not distinct from s.device_id
where coalesce(allocated_bytes, reserved_bytes, active_bytes) is not null

-- name: counters
with _facts as (
    select name, coalesce(series, 'value') as series, device_id, timestamp_ns, value
    from counters
    where is_chosen(run, capture, rank) and name is not null and isfinite(value)
        and timestamp_ns < getvariable('timeline_to_ns')
), _telling as (
    select name, series, device_id from _facts group by all having bool_or(value <> 0)
), _visible as (
    select * from _facts where timestamp_ns >= getvariable('timeline_from_ns')
    union all
    select name, series, device_id, getvariable('timeline_from_ns'), arg_max(value, timestamp_ns)
    from _facts where timestamp_ns < getvariable('timeline_from_ns')
    group by name, series, device_id
)
select concat(name, case when getvariable('timeline_has_devices') then ' of device ' || device_id end) as name,
    timestamp_ns, concat(to_json(series), ':', value) as args
from _visible as s semi join _telling as t
    on t.name = s.name and t.series = s.series and t.device_id is not distinct from s.device_id
