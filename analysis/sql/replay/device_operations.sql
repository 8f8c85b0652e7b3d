-- Which operations did the devices of a capture run, on one clock, and when did the host launch them?
--
-- Compute kernels, communication operations and other tasks (role 'record', 'wait' or 'other': events between
-- streams, copies, tasks of cores that no kernel table names) with a start and a duration, by rank and start. A wait
-- is the instant at which its stream went on. Times are those that the
-- clock of the reference host would have read: see clocks. A rank that nothing joins keeps its own clock, and
-- is_joined is false. `instance` numbers what ranks do together; NULL: it is not sure which operations are one. Of the
-- ranks from $first to $last: a rank's rows depend on no other's, so that many ranks are read some at a time.
with
_aligned as (
    select unnest(ranks) as rank, reference_ns,
        case when list_contains(ranks, reference_rank) then 0 else offset_ns end as offset_ns,
        case when list_contains(ranks, reference_rank) then 0 else coalesce(drift_ppm, 0) / 1e6 end as drift
    from clocks where run = $run and capture = $capture
),
_clocks as (
    select rank, coalesce(reference_ns, 0) as reference_ns, coalesce(offset_ns, 0) as offset_ns,
        coalesce(drift, 0) as drift, offset_ns is not null as is_joined, kept_steps
    from (
        select rank, any_value(kept_steps) as kept_steps from ranks where run = $run and capture = $capture group by rank
    )
    left join _aligned using (rank)
),
_launches as (
    select rank, connection_id, target, 
        min(if(target = 'communication', coalesce(api_end_ns, api_start_ns), api_start_ns)) as launch_ns, any_value(stream_id) as stream_id
    from launches
    where connection_id is not null and run = $run and capture = $capture and rank between $first and $last
    group by all
),
_meetings as (
    select rank, name, start_ns, any_value(instance) as instance, any_value(kind) as kind,
        bool_and(is_complete) as is_complete, any_value(rank_count) as rank_count,
        any_value(group_size) as group_size
    from arrivals where run = $run and capture = $capture and rank between $first and $last group by all
),
_all as (
    select 'kernel' as target, null as role, rank, step, start_ns, dur_ns, stream_id, coalesce(type, name) as type, name, core,
        input_shapes as shapes, false as is_communication, connection_id,
        cast(null as bigint) as instance, cast(null as varchar) as kind, cast(null as boolean) as is_complete,
        cast(null as integer) as rank_count, cast(null as integer) as group_size, cast(null as bigint) as op_id,
        cast(null as varchar) as group_hash, cast(null as bigint) as size_bytes
    from kernels
    where is_compute and start_ns is not null and dur_ns >= 0 and run = $run and capture = $capture
        and rank between $first and $last
    union all
    select 'communication', null, rank, step, start_ns, dur_ns, comm_ops.stream_id, op_type, name, null, null, true, connection_id, instance,
        kind, is_complete, rank_count, coalesce(_meetings.group_size, comm_ops.group_size), op_id, group_hash, size_bytes
    from comm_ops left join _meetings using (rank, name, start_ns)
    where comm_ops.start_ns is not null and dur_ns >= 0
        and comm_ops.run = $run and comm_ops.capture = $capture and comm_ops.rank between $first and $last
    union all by name
    select 'task' as target,
        case when type ilike 'event_wait%' then 'wait' when type ilike 'event_record%' then 'record' else 'other' end
            as role,
        rank, if(role = 'wait', start_ns + dur_ns, start_ns) as start_ns, if(role = 'wait', 0, dur_ns) as dur_ns,
        stream_id, type, type as name, false as is_communication, connection_id
    from device_tasks
    where start_ns is not null and dur_ns >= 0 and run = $run and capture = $capture
        and rank between $first and $last and regexp_matches(type, '(?i)^(event_|memcpy|memset|kernel_|ai_core|ai_cpu|ai_vector|aiv|mix_)')
)
-- Of a rank that was read with --steps, what is there of a neighbouring step is no step of its own.
select rank, if(kept_steps is null or list_contains(kept_steps, step), step, null) as step, role,
    start_ns - cast(round(offset_ns + drift * (start_ns - reference_ns - offset_ns) / (1 + drift)) as bigint) as start_ns,
    dur_ns, start_ns as recorded_ns,
    launch_ns - cast(round(offset_ns + drift * (launch_ns - reference_ns - offset_ns) / (1 + drift)) as bigint)
        as launch_ns,
    coalesce(_all.stream_id, _launches.stream_id) as stream_id, group_hash, type, name, core, shapes, is_communication,
    case when is_joined then instance end as instance, kind,
    is_joined and coalesce(is_complete, false) as is_complete, rank_count, group_size, op_id, size_bytes, connection_id
from _all
join _clocks using (rank)
left join _launches using (rank, connection_id, target)
order by rank, start_ns, dur_ns, is_communication, role nulls last, name
