-- Which kernels does the computing time of each step go to?
--
-- Compute kernels only, gathered four times: by operator type, by name, by core and by input shapes. Outlets
-- choose one and call the key by its name. Kernels outside every step stand under step NULL. Kernels that run
-- at the same time each count in full, so shares can add up to more than 1. Percentiles are nearest ranks: of n
-- sorted durations the one at position ceil(p * n / 100).
--
-- title: Kernels
-- meaning: Compute kernels by type, name, core or shape, with their share of computing.
-- view: kernel_summary
-- rows from: kernels
-- command: kernels --by type, kernels --by name, kernels --by core, kernels --by shape
-- table: kernels
--
--   run                   varchar  run of the training job
--   capture               varchar  ranks profiled at the same time
--   rank                  integer  global rank
--   step                  bigint   producer's step number; NULL: outside every step, or the capture has none
--   by_key                varchar  what the key is: type, name, core or shape
--   key                   varchar  the type, name, core or input shapes; NULL where the profiler level has none
--   core                  varchar  core the kernels ran on; NULL where mixed or unknown
--   count                 bigint   kernels
--   total_ns              bigint   sum of their durations
--   mean_ns               double   total / count
--   p50_ns                bigint   median duration
--   p99_ns                bigint   99th percentile of the durations
--   max_ns                bigint   longest duration
--   computing_share_ratio double   total / length of the union of the step's compute kernels on this rank
with
_keys as materialized (
    select *, cast(row_number() over (order by run, capture, rank) as integer) as rank_key
    from (select distinct run, capture, rank from kernels where is_compute)
    -- True of every one. It tells the planner that they are few, so that it looks for kernels among them.
    qualify rank_key > 0
),
_labels as materialized (
    select *, cast(row_number() over (order by rank_key, step) as integer) as label
    from (select distinct run, capture, rank, step from kernels where is_compute) join _keys using (run, capture, rank)
    qualify label > 0
),
-- Lengths of unions in one pass, as in lengths.sql.
_reached as (
    select label, label * 18446744073709551616 + start_ns as start, label * 18446744073709551616 + end_ns as until,
        max(label * 18446744073709551616 + end_ns) over (rows between unbounded preceding and current row) as reach
    from (
        select label, start_ns, start_ns + dur_ns as end_ns
        from kernels as k join _labels as l on l.run = k.run and l.capture = k.capture and l.rank = k.rank
            and l.step is not distinct from k.step
        where is_compute and dur_ns > 0 and start_ns is not null
        order by label, start_ns
    )
),
_computing as (
    select rank_key, step, computing_ns
    from (
        select label, sum(cast(greatest(until - greatest(start, before), 0) as bigint)) as computing_ns
        from (select *, lag(reach) over () as before from _reached)
        group by label
    ) join _labels using (label)
),
_counts as (
    select rank_key, step, type, name, core, input_shapes, dur_ns
    from kernels join _keys using (run, capture, rank)
    where is_compute and dur_ns >= 0
),
_gathered as (
    select rank_key, step, 'type' as by_key, type as key,
        min(core) as core, min(core) = max(core) and count(core) = count(*) as one_core,
        count(*) as count, sum(dur_ns) as total_ns, quantile_disc(dur_ns, [0.50, 0.99]) as p_ns, max(dur_ns) as max_ns
    from _counts group by rank_key, step, type
    union all
    select rank_key, step, 'name', name,
        min(core), min(core) = max(core) and count(core) = count(*),
        count(*), sum(dur_ns), quantile_disc(dur_ns, [0.50, 0.99]), max(dur_ns)
    from _counts group by rank_key, step, name
    union all
    select rank_key, step, 'core', core,
        core, true,
        count(*), sum(dur_ns), quantile_disc(dur_ns, [0.50, 0.99]), max(dur_ns)
    from _counts group by rank_key, step, core
    union all
    select rank_key, step, 'shape', input_shapes,
        min(core), min(core) = max(core) and count(core) = count(*),
        count(*), sum(dur_ns), quantile_disc(dur_ns, [0.50, 0.99]), max(dur_ns)
    from _counts group by rank_key, step, input_shapes
)
select run, capture, rank, _gathered.step, by_key, key,
    case when one_core then core end as core,
    count,
    cast(total_ns as bigint) as total_ns,
    cast(total_ns as double) / count as mean_ns,
    p_ns[1] as p50_ns,
    p_ns[2] as p99_ns,
    max_ns,
    cast(total_ns as double) / nullif(cast(computing_ns as double), 0) as computing_share_ratio
from _gathered
join _keys using (rank_key)
left join _computing on _computing.rank_key = _gathered.rank_key
    and _computing.step is not distinct from _gathered.step
order by run, capture, rank, _gathered.step nulls last, by_key, total_ns desc, key nulls last
