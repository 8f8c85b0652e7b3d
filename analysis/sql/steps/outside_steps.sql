-- What did a rank that has steps do outside all of them?
--
-- steps leaves these kernels and operations out; one row per rank that has any. A rank has steps where a step was
-- recorded or a compute kernel or operation belongs to one. Of a rank that was read with some of its steps only
-- nothing is known outside of them: no row.
--
-- title: Outside steps
-- meaning: Kernels and operations that belong to no step of a rank that has steps.
-- rows from: kernels, comm_ops
--
--   run               varchar  run of the training job
--   capture           varchar  ranks profiled at the same time
--   rank              integer  global rank
--   kernel_count      bigint   compute kernels outside every step; NULL where kernels were not selected
--   computing_ns      bigint   length of their union
--   op_count          bigint   communication operations outside every step; NULL where they were not selected
--   communication_ns  bigint   length of their union
with
_with_steps as materialized (
    select run, capture, rank from steps
    union select run, capture, rank from kernels where is_compute and step is not null
    union select run, capture, rank from comm_ops where step is not null
    except select run, capture, rank from ranks where kept_steps is not null
),
_left_out as (
    select run, capture, rank,
        list_contains(left_out_tables, 'kernels') as without_kernels,
        list_contains(left_out_tables, 'comm_ops') as without_ops
    from ranks where left_out_tables is not null
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
    case when any_value(without_kernels) is not true then count(*) filter (where is_compute) end as kernel_count,
    case when any_value(without_kernels) is not true
        then cast(coalesce(sum(added_ns) filter (where is_compute), 0) as bigint) end as computing_ns,
    case when any_value(without_ops) is not true then count(*) filter (where not is_compute) end as op_count,
    case when any_value(without_ops) is not true
        then cast(coalesce(sum(added_ns) filter (where not is_compute), 0) as bigint) end as communication_ns
from _added left join _left_out using (run, capture, rank)
group by run, capture, rank
order by run, capture, rank
