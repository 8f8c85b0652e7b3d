-- Which kernels took the time of each step, with which tensors, how evenly, and what did the cores do in them?
--
-- Compute kernels by type, core and tensors. Of kernels that run at the same time, computing_ns counts what each adds to
-- the union of all of its step, in order of their starts, so that it adds up to computing_ns of steps, to the ns. Times of
-- parts of a core are as in core_use, of kernels that have them; timed_ns is how long these kernels took.
--
-- title: Operators
-- meaning: Compute kernels of each step by type and tensors, with their share of the union and PMU times.
-- view: operator_summary
-- rows from: kernels
--
--   run             varchar  run of the training job
--   capture         varchar  ranks profiled at the same time
--   rank            integer  global rank
--   step            bigint   producer's step number; NULL: outside every step, or the capture has none
--   type            varchar  operator type; NULL where the profiler level has none
--   core            varchar  core the kernels ran on; NULL where unknown
--   input_shapes    varchar  tensors by ';', dimensions by ','; NULL where unknown
--   input_dtypes    varchar  types of their elements by ';'
--   input_formats   varchar  their layouts by ';'
--   output_shapes   varchar  likewise of the results
--   output_dtypes   varchar  types of their elements by ';'
--   output_formats  varchar  their layouts by ';'
--   count           bigint   kernels
--   total_ns        bigint   sum of their durations
--   computing_ns    bigint   what they add to the union
--   least_ns        bigint   the shortest of them
--   most_blocks_count integer most cores one of them was given
--   dynamic_count   bigint   of them with shapes unknown when compiled; NULL: not recorded
--   cube_timed_ns   bigint   durations of those with cube times
--   mac_ns          double   time in which cube cores multiplied
--   vector_timed_ns bigint   durations of those with vector times
--   vec_ns          double   time in which vector cores computed
with
_labels as (
    select *, row_number() over (order by run, capture, rank, step) as label
    from (select distinct run, capture, rank, step from kernels where is_compute)
),
_kernels as (
    select label, l.run, l.capture, l.rank, l.step, type, core, input_shapes, input_dtypes, input_formats, output_shapes,
        output_dtypes, output_formats, start_ns, dur_ns, block_count, op_state,
        coalesce(pmu['aic_mac_time'], pmu['aic_mac_ratio'] * aic_time_ns) as mac_ns,
        coalesce(pmu['aiv_vec_time'], pmu['aiv_vec_ratio'] * aiv_time_ns) as vec_ns,
        label * 18446744073709551616 as zero
    from kernels as k join _labels as l on l.run = k.run and l.capture = k.capture and l.rank = k.rank
        and l.step is not distinct from k.step
    where is_compute and dur_ns >= 0
),
_added as (
    select *, cast(greatest(zero + start_ns + dur_ns - greatest(zero + start_ns, coalesce(
            max(zero + start_ns + dur_ns) over (order by label, start_ns rows between unbounded preceding and 1 preceding),
            zero + start_ns)), 0) as bigint) as computing_ns
    from _kernels
)
select run, capture, rank, step, type, core, input_shapes, input_dtypes, input_formats, output_shapes, output_dtypes,
    output_formats, count(*) as count,
    cast(sum(dur_ns) as bigint) as total_ns,
    cast(sum(case when start_ns is not null then computing_ns else 0 end) as bigint) as computing_ns,
    min(dur_ns) as least_ns,
    max(block_count) as most_blocks_count,
    case when count(op_state) > 0 then count(*) filter (where op_state ilike 'dynamic') end as dynamic_count,
    cast(sum(dur_ns) filter (where mac_ns is not null) as bigint) as cube_timed_ns,
    sum(mac_ns) as mac_ns,
    cast(sum(dur_ns) filter (where vec_ns is not null) as bigint) as vector_timed_ns,
    sum(vec_ns) as vec_ns
from _added
group by all
order by run, capture, rank, step nulls last, total_ns desc, type, core, input_shapes, output_shapes
