-- How much of its communication did each rank wait for others, by two estimates and by HCCL's own figure?
--
-- Of operations that all members recorded. Shortest duration: the member that waits for nobody needs the time of the
-- transfer, so does everyone; needs no clocks. Last arrival: nobody transfers before the last has arrived, by aligned
-- starts; needs clocks that are joined. Both divide the same durations, and are never averaged.
--
-- title: Waiting or transferring
-- meaning: Share of communication each rank spent waiting, by two estimates and by HCCL's figures.
-- over all ranks of: comm_ops, comm_tasks, comm_times, groups, ranks
--
--   run                       varchar  run of the training job
--   capture                   varchar  ranks profiled at the same time
--   rank                      integer  global rank
--   step                      bigint   producer's step number; NULL: outside every step, or there is none
--   kind                      varchar  what the groups are for: tp, pp, dp, ep, ...; unknown where not recorded
--   op_count                  bigint   operations of the rank
--   complete_count            bigint   those that all members recorded: the ones measured
--   aligned_count             bigint   of these, those whose members' clocks are joined: the ones with a last arrival
--   coverage_ratio            double   complete / all
--   total_ns                  bigint   sum of durations of the complete ones; NULL: none is complete
--   wait_min_duration_ns      bigint   waiting by the shortest duration; NULL: none is complete
--   transfer_min_duration_ns  bigint   the rest of total_ns
--   wait_last_arrival_ns      bigint   waiting by the last arrival; NULL: none is aligned
--   transfer_last_arrival_ns  bigint   the rest of the durations of the aligned ones
--   disagreement_ns           bigint   sum over operations of the absolute difference of the two
--   hccl_wait_ns              double   waiting as HCCL measured it, of all operations; NULL: not recorded
--   clock_error_ns            bigint   how far last arrivals may be off, for the worst operation; NULL: none is aligned
with
_last as (
    select instance, min(end_ns - start_ns) as least_ns,
        case when max(clock_error_ns) = 0 then max(start_ns)
            when count(aligned_start_ns) = count(*) then max(aligned_start_ns) end as last_ns,
        coalesce(max(clock_error_ns) = 0, false) as is_one_clock
    from _arrivals where is_complete group by instance
),
_each as (
    select rank, step, kind, is_complete, end_ns - start_ns as dur_ns, least_ns, clock_error_ns,
        -- Where clocks are off, a rank may seem to have left before the last arrived.
        least(end_ns - start_ns, last_ns - case when is_one_clock then start_ns else aligned_start_ns end) as late_ns,
        last_ns is not null as is_aligned
    from _arrivals left join _last using (instance)
),
_waits as (
    select *, dur_ns - least_ns as wait_least_ns, case when is_aligned and is_complete then late_ns end as wait_last_ns
    from _each
),
_kind_of as (select rank, group_hash, min(kind) as kind from _members group by rank, group_hash),
_hccl as (
    select rank, step, coalesce(kind, 'unknown') as kind, sum(wait_ns) as hccl_wait_ns
    from comm_times left join _kind_of using (rank, group_hash) group by all
),
_sums as (
    select rank, step, kind,
        count(*) as op_count,
        count(*) filter (where is_complete) as complete_count,
        count(wait_last_ns) as aligned_count,
        sum(dur_ns) filter (where is_complete) as total_ns,
        sum(wait_least_ns) filter (where is_complete) as wait_min_duration_ns,
        sum(wait_last_ns) as wait_last_arrival_ns,
        sum(dur_ns - wait_last_ns) as transfer_last_arrival_ns,
        sum(abs(wait_last_ns - wait_least_ns)) as disagreement_ns,
        max(clock_error_ns) filter (where wait_last_ns is not null) as clock_error_ns
    from _waits group by all
),
_here as (select any_value(run) as run, any_value(capture) as capture from ranks)
select run, capture, _sums.rank, _sums.step, _sums.kind, op_count, complete_count, aligned_count,
    complete_count / op_count as coverage_ratio,
    cast(total_ns as bigint) as total_ns,
    cast(wait_min_duration_ns as bigint) as wait_min_duration_ns,
    cast(total_ns - wait_min_duration_ns as bigint) as transfer_min_duration_ns,
    cast(wait_last_arrival_ns as bigint) as wait_last_arrival_ns,
    cast(transfer_last_arrival_ns as bigint) as transfer_last_arrival_ns,
    cast(disagreement_ns as bigint) as disagreement_ns,
    hccl_wait_ns,
    cast(clock_error_ns as bigint) as clock_error_ns
from _sums left join _hccl
    on _hccl.rank = _sums.rank and _hccl.step is not distinct from _sums.step and _hccl.kind = _sums.kind, _here
order by _sums.rank, _sums.step nulls last, _sums.kind
