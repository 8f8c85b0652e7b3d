-- Where is a step free, and had what ends a gap been launched when it began?
--
-- Part of the queries that ask: it stands where they say `_gaps`. It makes `_keys` (a number for each rank), `_labels`
-- (for each step of one), `_ops`, `_added` (kernels and operations in order, with what each adds to the union) and
-- `_launch_gaps` (rank_key, label, start_ns: end of the gap, gap_ns, launch_ns: from the gap's begin, reach_ns: what a launch
-- takes to a free device, host_ns), which has the gaps of which a launch tells.
--
-- Every rank, and every step of one, is a small number: names would dominate what is sorted below.
_steps as materialized (
    select run, capture, rank, step from kernels where is_compute
    union select run, capture, rank, step from comm_ops
),
_keys as materialized (
    select *, cast(row_number() over (order by run, capture, rank) as integer) as rank_key
    from (select run, capture, rank from _steps union select run, capture, rank from profiler_steps)
),
_labels as materialized (
    select *, cast(row_number() over (order by rank_key, step) as integer) as label
    from _steps join _keys using (run, capture, rank)
    -- True of every one. It tells the planner that they are few, so that it looks for events among them.
    qualify label > 0
),
_inside_stages as (
    select run, capture, rank, group_hash from groups where group_hash is not null
    group by all
    having bool_and(coalesce(parallel_kind, 'unknown') not in ('pp', 'mp', 'mp_ep', 'embd', 'world', 'unknown'))
),
_ops as materialized (
    select rank_key, label, l.step, coalesce(op_type = 'receive', false) as is_receive,
        coalesce(op_type = 'receive' or op_type = 'batchSendRecv' and i.group_hash is null, false) as may_be_bubble,
        start_ns, start_ns + dur_ns as end_ns
    from comm_ops as o join _labels as l on l.run = o.run and l.capture = o.capture and l.rank = o.rank
        and l.step is not distinct from o.step
    left join _inside_stages as i on i.run = o.run and i.capture = o.capture and i.rank = o.rank
        and i.group_hash = o.group_hash
    where dur_ns > 0 and start_ns is not null
),

-- Lengths of unions of kernels and of everything, as lengths.sql has them for series.
_events as (
    select rank_key, label, true as is_compute, start_ns, start_ns + dur_ns as end_ns
    from kernels as k join _labels as l on l.run = k.run and l.capture = k.capture and l.rank = k.rank
        and l.step is not distinct from k.step
    where is_compute and dur_ns > 0 and start_ns is not null
    union all
    select rank_key, label, false, start_ns, end_ns from _ops
),
_reached as (
    select *, label * 18446744073709551616 as zero,
        max(label * 18446744073709551616 + end_ns) over _until as reach,
        max(case when is_compute then label * 18446744073709551616 + end_ns end) over _until as compute_reach
    from (select * from _events order by label, start_ns)
    window _until as (rows between unbounded preceding and current row)
),
_added as materialized (
    select rank_key, label, is_compute, start_ns, end_ns,
        cast(greatest(zero + end_ns - greatest(zero + start_ns, lag(reach) over ()), 0) as bigint) as busy_ns,
        case when start_ns > lag(reach) over () - zero and lag(reach) over () > zero then
            cast(lag(reach) over () - zero as bigint)
        end as free_from_ns,
        case when is_compute then
            cast(greatest(zero + end_ns - greatest(zero + start_ns, lag(compute_reach) over ()), 0) as bigint)
        end as computing_ns
    from _reached
),

-- Gaps between them, and when what ended each was launched (of several that started there, the first).
_gaps as (
    select rank_key, label, free_from_ns, start_ns from _added where free_from_ns is not null
),
_launches as (
    select rank_key, device_start_ns, api_start_ns
    from launches join _keys using (run, capture, rank)
    where api_start_ns is not null and device_start_ns is not null
),
_starts as materialized (
    select any_value(g.rank_key) as rank_key, label, start_ns, any_value(start_ns - free_from_ns) as gap_ns,
        min(api_start_ns - free_from_ns) as launch_ns
    from _gaps as g join _launches as l on l.rank_key = g.rank_key and l.device_start_ns = g.start_ns
    group by label, start_ns
),
_reached_after as (
    select label,
        quantile_disc(greatest(gap_ns - launch_ns, 0), 0.5) filter (where launch_ns > 0) as reach_ns
    from _starts group by label
    having quantile_disc(gap_ns - launch_ns, 0.5) >= 0
),
_launch_gaps as (
    select l.rank_key, label, start_ns, gap_ns, launch_ns, reach_ns,
        case when launch_ns > 0 then least(launch_ns + reach_ns, gap_ns) else 0 end as host_ns
    from _starts as l join _reached_after using (label)
),
