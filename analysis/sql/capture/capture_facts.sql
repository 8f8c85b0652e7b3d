-- What is this capture: which ranks of which job, recorded how?
--
-- Lists are sorted and hold each value once. A rank is missing where its number is below the job's world size and
-- it is not here.
--
-- title: Captures
-- meaning: What was recorded: ranks, steps, software, chip, profiler level.
-- gauge: npuscope_capture_info{capture} = 1: The capture that the samples of a run come from.
-- gauge: npuscope_capture_ranks = rank_count: Ranks of the capture in the store.
-- gauge: npuscope_capture_steps = nullif(step_count, 0): Number of steps of the capture.
--
--   run                 varchar    run of the training job
--   capture             varchar    ranks profiled at the same time
--   rank_count          bigint     ranks that are here
--   ranks               integer[]  their numbers
--   world_size          integer    ranks of the whole job; NULL where not recorded
--   missing_rank_count  bigint     ranks of the job that are not here; NULL where the world size is unknown
--   missing_ranks       integer[]  their numbers
--   step_count          bigint     steps with figures
--   steps               bigint[]   their numbers
--   light_rank_count    bigint     ranks whose figures come from the producer's own table
--   frameworks          varchar[]  pytorch, mindspore, msprof, kineto (a GPU)
--   chips               varchar[]  e.g. Ascend910B
--   profiler_levels     varchar[]  Level_none, Level0, Level1, Level2
--   source_formats      varchar[]  db, text, db+text, light, cluster
--   framework_versions  varchar[]  torch_npu's or MindSpore's
--   cann_versions       varchar[]  versions of CANN
--   clocks              varchar[]  epoch, device: origin of timestamps
--   host_count          bigint     hosts the ranks ran on; NULL where unknown
--   tp_size             integer    tensor-parallel size
--   pp_size             integer    pipeline-parallel size
--   dp_size             integer    data-parallel size
--   cp_size             integer    context-parallel size
--   ep_size             integer    expert-parallel size
--   window_start_ns     bigint     first start of a rank's profiling session
--   window_end_ns       bigint     last end of a rank's profiling session
with
_present as materialized (
    select run, capture, rank from ranks where rank is not null
    union select run, capture, rank from step_summary
),
_here as (
    select run, capture, count(*) as rank_count, list(rank order by rank) as ranks
    from _present group by run, capture
),
_said as (
    select run, capture,
        max(world_size) as world_size,
        list(distinct framework) filter (where framework is not null) as frameworks,
        list(distinct chip_name) filter (where chip_name is not null) as chips,
        list(distinct profiler_level) filter (where profiler_level is not null) as profiler_levels,
        list(distinct source_format) filter (where source_format is not null) as source_formats,
        list(distinct framework_version) filter (where framework_version is not null) as framework_versions,
        list(distinct cann_version) filter (where cann_version is not null) as cann_versions,
        list(distinct clock) filter (where clock is not null) as clocks,
        nullif(count(distinct host), 0) as host_count,
        max(tp_size) as tp_size, max(pp_size) as pp_size, max(dp_size) as dp_size,
        max(cp_size) as cp_size, max(ep_size) as ep_size,
        min(window_start_ns) as window_start_ns,
        max(window_end_ns) as window_end_ns
    from ranks left join rank_hosts using (run, capture, rank)
    group by run, capture
),
_targets as (
    select run, capture, cast(unnest(range(world_size)) as integer) as rank
    from _said where world_size is not null
),
_missing as (
    select run, capture, count(*) as missing_rank_count, list(rank order by rank) as missing_ranks
    from (select * from _targets anti join _present using (run, capture, rank))
    group by run, capture
),
_measures as (
    select run, capture,
        count(distinct step) as step_count,
        list_sort(coalesce(list(distinct step) filter (where step is not null), [])) as steps,
        count(distinct rank) filter (where basis = 'profiler_table') as light_rank_count
    from step_summary group by run, capture
)
select run, capture,
    rank_count,
    ranks,
    world_size,
    case when world_size is not null then coalesce(missing_rank_count, 0) end as missing_rank_count,
    case when world_size is not null then coalesce(missing_ranks, []) end as missing_ranks,
    coalesce(step_count, 0) as step_count,
    coalesce(_measures.steps, []) as steps,
    coalesce(light_rank_count, 0) as light_rank_count,
    list_sort(coalesce(frameworks, [])) as frameworks,
    list_sort(coalesce(chips, [])) as chips,
    list_sort(coalesce(profiler_levels, [])) as profiler_levels,
    list_sort(coalesce(source_formats, [])) as source_formats,
    list_sort(coalesce(framework_versions, [])) as framework_versions,
    list_sort(coalesce(cann_versions, [])) as cann_versions,
    list_sort(coalesce(clocks, [])) as clocks,
    host_count,
    tp_size, pp_size, dp_size, cp_size, ep_size,
    window_start_ns,
    window_end_ns
from _here
left join _said using (run, capture)
left join _missing using (run, capture)
left join _measures using (run, capture)
order by run, capture
