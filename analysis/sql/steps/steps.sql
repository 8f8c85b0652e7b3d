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
-- A bubble is a receive outside K. Send and receive in one (batchSendRecv) has no direction of its own and does not end
-- before what it receives is there: all of it counts, unless its rank's groups name its group as one inside a stage
-- (tp, dp, ep, cp and their like), as of attention over a ring.
--
-- A free gap ends where the step's next kernel or operation starts. Had the host launched that when the device fell
-- free, the gap is idle time. Had it not, the gap is host time until the launch plus what a launch takes to reach a free
-- device (the step's median from such launches to what they started), and idle from then on; all of it where clocks
-- that differ a little show the launch after the start. Neither is known of a gap where no launch of what ends it was
-- recorded (none at all, or of a whole graph), and of a step where most launches seem to come after what they started.
--
-- title: Steps
-- meaning: Computing, communication, overlap and free time of each step on each rank.
-- view: step_summary
-- rows from: kernels, comm_ops, profiler_steps
-- command: steps
-- table: steps
-- figure: rank_steps
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
--   free_ns                    bigint   from start to end, neither in K_s nor in C_s; another step's may run
--   host_ns                    bigint   part of free: the host had not launched what came next; NULL: no gap's launch is known
--   idle_ns                    bigint   part of free: what came next was launched already; NULL likewise
--   stage_ns                   bigint   end - start - profiler_bubble, the profiler's rule
--   bubble_ns                  bigint   length of the union of receives and batchSendRecv outside K, those inside a stage left out
--   profiler_bubble_ns         bigint   sum of durations of receive operations, the profiler's rule
--   preparing_ns               bigint   start - window start; where either is unknown, as the producer's table has it
--   preparing_basis            varchar  events, or profiler_table; NULL where preparing is unknown
--   masking_ratio              double   overlapped / communication; NULL without communication
with
_gaps
_busy as (
    select label,
        min(start_ns) as first_ns,
        max(end_ns) as last_ns,
        bool_or(is_compute) as has_compute,
        sum(busy_ns) as busy_ns,
        sum(coalesce(computing_ns, 0)) as computing_ns
    from _added
    group by label
),

_free as (
    select label, sum(host_ns) as host_ns, sum(gap_ns - host_ns) as idle_ns from _launch_gaps group by label
),

-- Communication, all of it and what may be bubble alone, and the part of both inside K.
_intervals as (
    select rank_key, label * 2 as series, start_ns, end_ns from _ops
    union all
    select rank_key, label * 2 + 1, start_ns, end_ns from _ops where may_be_bubble
),
_covering as (
    select rank_key, end_ns - computing_ns as start_ns, end_ns from _added where computing_ns > 0
),
_lengths
_communication as (
    select series // 2 as label, union_ns as communication_ns, covered_ns as overlapped_ns
    from _lengths where series % 2 = 0
),
_receiving as (
    select series // 2 as label, union_ns as receive_ns, covered_ns as covered_receive_ns
    from _lengths where series % 2 = 1
),
_receives as (
    select label, sum(end_ns - start_ns) as profiler_bubble_ns
    from _ops where is_receive
    group by label
),

-- What is known about each rank and each recorded step.
_windows as (
    select rank_key, step, min(window_start_ns) as window_start_ns, max(window_end_ns) as window_end_ns
    from steps join _keys using (run, capture, rank)
    group by rank_key, step
),
_with_steps as (
    select rank_key from steps join _keys using (run, capture, rank)
    union select rank_key from _labels where step is not null
),
_masked as (
    select rank_key from comm_tasks join _keys using (run, capture, rank)
    union select rank_key from comm_times join _keys using (run, capture, rank)
    union select rank_key from ranks join _keys using (run, capture, rank)
    where list_contains(left_out_tables, 'comm_ops')
),
_facts as (
    select rank_key,
        coalesce(rank_key in (select rank_key from _busy join _labels using (label) where has_compute), false)
            as has_compute,
        coalesce(rank_key in (select rank_key from profiler_steps join _keys using (run, capture, rank)), false)
            as has_table,
        coalesce(rank_key in (select rank_key from _with_steps), false) as has_steps,
        coalesce(rank_key in (select rank_key from _ops) or rank_key not in (select rank_key from _masked), true)
            as knows_communication
    from _keys
),
_from_events as (
    select rank_key, step,
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
        case when has_compute and knows_communication then host_ns end as host_ns,
        case when has_compute and knows_communication then idle_ns end as idle_ns,
        case when knows_communication then last_ns - first_ns - coalesce(profiler_bubble_ns, 0) end as stage_ns,
        case when has_compute and knows_communication then coalesce(receive_ns - covered_receive_ns, 0) end
            as bubble_ns,
        case when knows_communication then coalesce(profiler_bubble_ns, 0) end as profiler_bubble_ns,
        case when knows_communication then first_ns - window_start_ns end as preparing_ns
    from (select * exclude (has_compute) from _busy)
    join (select rank_key, step, label from _labels) using (label)
    join _facts using (rank_key)
    left join _free using (label)
    left join _communication using (label)
    left join _receiving using (label)
    left join _receives using (label)
    left join _windows using (rank_key, step)
    where (has_compute or not has_table) and (step is not null or not has_steps)
),
_table_row as (
    select rank_key, profiler_steps.* exclude (run, capture, rank)
    from profiler_steps
    join _keys using (run, capture, rank)
    left join (select run, capture, rank, min(device_id) as device_id from ranks group by all) as _devices
        using (run, capture, rank)
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
        null as host_ns,
        null as idle_ns,
        round_even(stage_ns, 0) as stage_ns,
        null as bubble_ns,
        round_even(bubble_ns, 0) as profiler_bubble_ns,
        null as preparing_ns
    from _table_row join _facts using (rank_key)
    where not has_compute
)
select run, capture, rank, f.step, basis,
    cast(start_ns as bigint) as start_ns,
    cast(end_ns as bigint) as end_ns,
    cast(window_start_ns as bigint) as window_start_ns,
    cast(window_end_ns as bigint) as window_end_ns,
    cast(computing_ns as bigint) as computing_ns,
    cast(communication_ns as bigint) as communication_ns,
    cast(overlapped_ns as bigint) as overlapped_ns,
    cast(exposed_communication_ns as bigint) as exposed_communication_ns,
    cast(free_ns as bigint) as free_ns,
    cast(host_ns as bigint) as host_ns,
    cast(idle_ns as bigint) as idle_ns,
    cast(stage_ns as bigint) as stage_ns,
    cast(bubble_ns as bigint) as bubble_ns,
    cast(profiler_bubble_ns as bigint) as profiler_bubble_ns,
    cast(coalesce(f.preparing_ns, round_even(t.preparing_ns, 0)) as bigint) as preparing_ns,
    case when f.preparing_ns is not null then 'events' when t.preparing_ns is not null then 'profiler_table' end
        as preparing_basis,
    cast(overlapped_ns as double) / nullif(cast(communication_ns as double), 0) as masking_ratio
from (select * from _from_events union all select * from _from_table) as f
left join (select rank_key, step, preparing_ns from _table_row) as t
    on t.rank_key = f.rank_key and t.step is not distinct from f.step
join _keys on _keys.rank_key = f.rank_key
order by run, capture, rank, f.step nulls last
