-- What did a rank that has steps do outside all of them?
--
-- steps leaves these kernels and operations out; one row per rank that has any. A rank has steps where a step was
-- recorded or a compute kernel or operation belongs to one.
--
--   run               varchar  run of the training job
--   capture           varchar  ranks profiled at the same time
--   rank              integer  global rank
--   kernel_count      bigint   compute kernels outside every step
--   computing_ns      bigint   length of their union
--   op_count          bigint   communication operations outside every step
--   communication_ns  bigint   length of their union
with
_with_steps as materialized (
    select run, capture, rank from steps
    union select run, capture, rank from kernels where is_compute and step is not null
    union select run, capture, rank from comm_ops where step is not null
),
_events as (
    select run, capture, rank, true as is_compute, start_ns, start_ns + dur_ns as end_ns
    from kernels semi join _with_steps using (run, capture, rank)
    where step is null and is_compute and dur_ns > 0 and start_ns is not null
    union all
    select run, capture, rank, false, start_ns, start_ns + dur_ns
    from comm_ops semi join _with_steps using (run, capture, rank)
    where step is null and dur_ns > 0 and start_ns is not null
),
_reached as (
    select *, max(end_ns) over (
        partition by run, capture, rank, is_compute
        order by start_ns rows between unbounded preceding and 1 preceding
    ) as reach_ns
    from _events
),
_added as (
    select run, capture, rank, is_compute, greatest(end_ns - greatest(start_ns, reach_ns), 0) as added_ns
    from _reached
)
select run, capture, rank,
    count(*) filter (where is_compute) as kernel_count,
    cast(coalesce(sum(added_ns) filter (where is_compute), 0) as bigint) as computing_ns,
    count(*) filter (where not is_compute) as op_count,
    cast(coalesce(sum(added_ns) filter (where not is_compute), 0) as bigint) as communication_ns
from _added
group by run, capture, rank
order by run, capture, rank
