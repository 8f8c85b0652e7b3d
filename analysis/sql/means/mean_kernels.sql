-- Which compute kernels does a mean step of a rank have?
--
-- Sums over ranks and steps, divided by all pairs of rank and step whose kernels were recorded, also those without such
-- a kernel. What lies outside of every step counts only where there are no steps. Warm-up steps (job_steps) are left
-- out where others remain. Durations of kernels that run at once are added up, so shares may exceed 1.
--
-- title: Kernels of a mean step
-- meaning: Compute kernels of a rank's mean step by type, name, core or shape.
-- table: kernels_by_type, kernels_by_name, kernels_by_core, kernels_by_shape
-- figure: kernels
--
--   run              varchar  run of the training job
--   capture          varchar  ranks profiled at the same time
--   by_key           varchar  type, name, core or shape: what the rows are by
--   key              varchar  type, name, core or shapes of the kernel
--   core             varchar  AI_CORE, AI_VECTOR_CORE, MIX_AIC, AI_CPU, ...; NULL where unknown or several
--   rank_count       bigint   ranks that the means are over
--   step_count       bigint   steps that the means are over
--   rank_step_count  bigint   pairs of rank and step that the means are over
--   count            double   kernels of a mean step
--   total_ns         double   sum of their durations
--   mean_ns          double   duration of one kernel
--   max_ns           bigint   longest of all
--   share_ratio      double   total / computing time of the same pairs; NULL where that is unknown
with
_recorded as (
    select distinct run, capture, rank from kernel_summary
),
_pairs as (
    select run, capture, rank, step, computing_ns from step_summary semi join _recorded using (run, capture, rank)
    union all
    from (
        select distinct run, capture, rank, step, null as computing_ns
        from kernel_summary anti join (select distinct run, capture, rank from step_summary) using (run, capture, rank)
    )
),
_later
_over as (
    select run, capture,
        count(distinct rank) as rank_count, count(distinct step) as step_count, count(*) as rank_step_count,
        case when count(computing_ns) = count(*) then sum(computing_ns) end as computing_ns
    from _later group by run, capture
),
_sums as (
    select k.run, k.capture, by_key, key,
        case when count(*) = count(core) and count(distinct core) = 1 then any_value(core) end as core,
        sum(count) as count,
        sum(total_ns) as total_ns,
        max(max_ns) as max_ns
    from kernel_summary as k
    join _later as p on p.run = k.run and p.capture = k.capture and p.rank = k.rank
        and p.step is not distinct from k.step
    group by k.run, k.capture, by_key, key
)
select s.run, s.capture, by_key, key, core,
    rank_count, step_count, rank_step_count,
    count / rank_step_count as count,
    total_ns / rank_step_count as total_ns,
    cast(total_ns as double) / nullif(count, 0) as mean_ns,
    cast(max_ns as bigint) as max_ns,
    total_ns / nullif(cast(computing_ns as double), 0) as share_ratio
from _sums as s
join _over as o on o.run = s.run and o.capture = s.capture
order by s.run, s.capture, by_key, total_ns desc, key nulls last
