-- Where does the time of each step go on each rank?
--
-- K: the union of a rank's compute kernels. C: the union of its communication operations. Each kernel and
-- operation belongs to the step in its `step` column and is not cut at the step's edge; K_s and C_s are the
-- parts of one step, but an operation is covered by any compute of its rank (K). Intervals of no or negative
-- length are skipped. Where a rank has steps, what lies outside them makes no row (see outside_steps); where it
-- has none, all of it is one row. A rank without a compute kernel, but with the producer's own table of steps,
-- gets that table's figures (basis 'profiler_table'): those of the device the rank ran on, or of the lowest
-- device number where that is unknown. A rank with operations but neither of them has no figures that need K.
-- Where communication left traces (tasks, or HCCL's times) but no operation, C is unknown and so is all that needs it;
-- so it is where operations were not selected when the rank was read, and K likewise.
--
--   run                        varchar  run of the training job
--   capture                    varchar  ranks profiled at the same time
--   rank                       integer  global rank
--   step                       bigint   producer's step number; NULL: the capture has no steps
--   basis                      varchar  events, or profiler_table (copied from the producer, rounded half even)
--   start_ns                   bigint   first start of K_s and C_s
--   end_ns                     bigint   last end of K_s and C_s
--   window_start_ns            bigint   start of the recorded step on the host
--   window_end_ns              bigint   end of the recorded step on the host
--   computing_ns               bigint   length of K_s
--   communication_ns           bigint   length of C_s
--   overlapped_ns              bigint   length of C_s inside K: communication hidden behind compute
--   exposed_communication_ns   bigint   length of C_s outside K
--   free_ns                    bigint   from start to end, neither in K_s nor in C_s
--   stage_ns                   bigint   end - start - profiler_bubble, the profiler's rule
--   bubble_ns                  bigint   length of the union of receive operations outside K
--   profiler_bubble_ns         bigint   durations of receive operations added up, the profiler's rule
--   preparing_ns               bigint   start - window start
--   masking_ratio              double   overlapped / communication; NULL without communication
with
-- Every rank as one small number: names would dominate what is sorted below.
_keys as materialized (
    select *, row_number() over (order by run, capture, rank) as rank_key
    from (
        select run, capture, rank from kernels where is_compute
        union select run, capture, rank from comm_ops
        union select run, capture, rank from profiler_steps
    )
),
_compute as materialized (
    select rank_key, step, start_ns, start_ns + dur_ns as end_ns
    from kernels join _keys using (run, capture, rank)
    where is_compute and dur_ns > 0 and start_ns is not null
),
_ops as materialized (
    select rank_key, step, coalesce(op_type = 'receive', false) as is_receive, start_ns, start_ns + dur_ns as end_ns
    from comm_ops join _keys using (run, capture, rank)
    where dur_ns > 0 and start_ns is not null
),

-- Lengths of unions. In order of start, an interval adds what reaches beyond the furthest end before it:
--   reach  ----------|          this one adds  [=====)
--   interval     [---------------)
-- (`greatest` ignores the NULL reach of the first.)
_events as (
    select rank_key, step, true as is_compute, start_ns, end_ns from _compute
    union all
    select rank_key, step, false, start_ns, end_ns from _ops
),
_reached as (
    select rank_key, step, is_compute, start_ns, end_ns,
        max(end_ns) over _before as reach_ns,
        max(case when is_compute then end_ns end) over _before as compute_reach_ns
    from _events
    window _before as (
        partition by rank_key, step order by start_ns rows between unbounded preceding and 1 preceding
    )
),
_busy as (
    select rank_key, step,
        min(start_ns) as first_ns,
        max(end_ns) as last_ns,
        sum(greatest(end_ns - greatest(start_ns, reach_ns), 0)) as busy_ns,
        sum(case when is_compute then greatest(end_ns - greatest(start_ns, compute_reach_ns), 0) else 0 end)
            as computing_ns
    from _reached
    group by rank_key, step
),

-- The same for communication, all of it and receives alone, as disjoint pieces of which we want the part inside K.
_asked as (
    select rank_key, step, false as receives, start_ns, end_ns from _ops
    union all
    select rank_key, step, true, start_ns, end_ns from _ops where is_receive
),
_pieces as (
    select rank_key, step, receives, end_ns, greatest(start_ns, max(end_ns) over (
        partition by rank_key, step, receives order by start_ns rows between unbounded preceding and 1 preceding
    )) as start_ns
    from _asked
),
_edges as materialized (
    select *, row_number() over (partition by rank_key order by t_ns) as edge
    from (
        select rank_key, step, receives, unnest([start_ns, end_ns]) as t_ns, unnest([-1, 1]) as sign
        from _pieces where end_ns > start_ns
    )
),

-- How much of K lies before each edge: one walk over kernel starts and edges in order of time. Between two
-- neighbours no kernel starts, so K covers from the first of them to the furthest end so far.
_walk as (
    select rank_key, t_ns,
        max(end_ns) over _until as reach_ns,
        lead(t_ns) over _order as next_ns,
        count(case when end_ns is null then 1 end) over _until as edge
    from (
        select rank_key, start_ns as t_ns, end_ns from _compute
        union all
        select rank_key, t_ns, null from _edges
    )
    window
        _until as (partition by rank_key order by t_ns rows between unbounded preceding and current row),
        _order as (partition by rank_key order by t_ns)
),
_after_edge as (
    select rank_key, edge, cast(sum(least(reach_ns, next_ns) - t_ns) as bigint) as covered_ns
    from _walk
    where reach_ns > t_ns and next_ns > t_ns and edge > 0
    group by rank_key, edge
),
_before_edge as (
    select rank_key, step, receives, sign, t_ns, coalesce(sum(covered_ns) over (
        partition by rank_key order by edge rows between unbounded preceding and 1 preceding
    ), 0) as covered_ns
    from _edges left join _after_edge using (rank_key, edge)
),
_communication as (
    select rank_key, step,
        sum(sign * t_ns) filter (where not receives) as communication_ns,
        sum(sign * covered_ns) filter (where not receives) as overlapped_ns,
        coalesce(sum(sign * t_ns) filter (where receives), 0) as receive_ns,
        coalesce(sum(sign * covered_ns) filter (where receives), 0) as covered_receive_ns
    from _before_edge
    group by rank_key, step
),
_receives as (
    select rank_key, step, sum(end_ns - start_ns) as profiler_bubble_ns
    from _ops where is_receive
    group by rank_key, step
),

-- What is known about each rank and each recorded step.
_windows as (
    select rank_key, step, min(window_start_ns) as window_start_ns, max(window_end_ns) as window_end_ns
    from steps join _keys using (run, capture, rank)
    group by rank_key, step
),
_with_steps as (
    select rank_key from steps join _keys using (run, capture, rank)
    union select rank_key from kernels join _keys using (run, capture, rank) where is_compute and step is not null
    union select rank_key from comm_ops join _keys using (run, capture, rank) where step is not null
),
_hidden as (
    select rank_key from comm_tasks join _keys using (run, capture, rank)
    union select rank_key from comm_times join _keys using (run, capture, rank)
    union select rank_key from ranks join _keys using (run, capture, rank)
    where list_contains(left_out_tables, 'comm_ops')
),
_known as (
    select rank_key,
        coalesce(rank_key in (select rank_key from _compute), false) as has_compute,
        coalesce(rank_key in (select rank_key from profiler_steps join _keys using (run, capture, rank)), false)
            as has_table,
        coalesce(rank_key in (select rank_key from _with_steps), false) as has_steps,
        coalesce(rank_key in (select rank_key from _ops) or rank_key not in (select rank_key from _hidden), true)
            as knows_communication
    from _keys
),
_from_events as (
    select _busy.rank_key, _busy.step,
        'events' as basis,
        case when knows_communication then first_ns end as start_ns,
        case when knows_communication then last_ns end as end_ns,
        window_start_ns,
        window_end_ns,
        case when has_compute then computing_ns end as computing_ns,
        case when knows_communication then coalesce(communication_ns, 0) end as communication_ns,
        case when has_compute and knows_communication then coalesce(overlapped_ns, 0) end as overlapped_ns,
        case when has_compute and knows_communication then coalesce(communication_ns - overlapped_ns, 0) end
            as exposed_communication_ns,
        case when has_compute and knows_communication then last_ns - first_ns - busy_ns end as free_ns,
        case when knows_communication then last_ns - first_ns - coalesce(profiler_bubble_ns, 0) end as stage_ns,
        case when has_compute and knows_communication then coalesce(receive_ns - covered_receive_ns, 0) end
            as bubble_ns,
        case when knows_communication then coalesce(profiler_bubble_ns, 0) end as profiler_bubble_ns,
        case when knows_communication then first_ns - window_start_ns end as preparing_ns
    from _busy
    join _known on _known.rank_key = _busy.rank_key
    left join _communication on _communication.rank_key = _busy.rank_key
        and _communication.step is not distinct from _busy.step
    left join _receives on _receives.rank_key = _busy.rank_key
        and _receives.step is not distinct from _busy.step
    left join _windows on _windows.rank_key = _busy.rank_key and _windows.step = _busy.step
    where (has_compute or not has_table) and (_busy.step is not null or not has_steps)
),
_table_row as (
    select rank_key, profiler_steps.* exclude (run, capture, rank)
    from profiler_steps
    join _keys using (run, capture, rank)
    join _known using (rank_key)
    left join (select run, capture, rank, min(device_id) as device_id from ranks group by all) as _devices
        using (run, capture, rank)
    where not has_compute
    qualify row_number() over (
        partition by rank_key, step
        order by profiler_steps.device_id is not distinct from _devices.device_id desc,
            profiler_steps.device_id, communication_ns desc, computing_ns desc
    ) = 1
),
_from_table as (
    select rank_key, step,
        'profiler_table' as basis,
        null as start_ns,
        null as end_ns,
        null as window_start_ns,
        null as window_end_ns,
        round_even(computing_ns, 0) as computing_ns,
        round_even(communication_ns, 0) as communication_ns,
        round_even(overlapped_ns, 0) as overlapped_ns,
        round_even(communication_not_overlapped_ns, 0) as exposed_communication_ns,
        round_even(free_ns, 0) as free_ns,
        round_even(stage_ns, 0) as stage_ns,
        null as bubble_ns,
        round_even(bubble_ns, 0) as profiler_bubble_ns,
        round_even(preparing_ns, 0) as preparing_ns
    from _table_row
)
select run, capture, rank, step, basis,
    cast(start_ns as bigint) as start_ns,
    cast(end_ns as bigint) as end_ns,
    cast(window_start_ns as bigint) as window_start_ns,
    cast(window_end_ns as bigint) as window_end_ns,
    cast(computing_ns as bigint) as computing_ns,
    cast(communication_ns as bigint) as communication_ns,
    cast(overlapped_ns as bigint) as overlapped_ns,
    cast(exposed_communication_ns as bigint) as exposed_communication_ns,
    cast(free_ns as bigint) as free_ns,
    cast(stage_ns as bigint) as stage_ns,
    cast(bubble_ns as bigint) as bubble_ns,
    cast(profiler_bubble_ns as bigint) as profiler_bubble_ns,
    cast(preparing_ns as bigint) as preparing_ns,
    cast(overlapped_ns as double) / nullif(cast(communication_ns as double), 0) as masking_ratio
from (select * from _from_events union all select * from _from_table)
join _keys using (rank_key)
order by run, capture, rank, step nulls last
