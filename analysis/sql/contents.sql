-- What was recorded of each rank: how many rows of which kind?
--
-- One row per rank and kind that has any; a kind that is not there counts 0, or is unknown where its table was not
-- selected when the rank was read (`ranks.left_out_tables`). A kind is a table, or `table.what`: rows of the table
-- that have something, as said below. `npuscope doctor` derives from it what a capture can answer.
-- kernels.compute: computing; .typed, .shaped: computing, with a type, with input shapes; .cores: computing on cube
-- or vector cores; .timed, .cycled: with the time and the cycles these measured; .pmu: with further counters;
-- .cubes: on cube cores; .cubes_shaped: these with shapes; .stepped: in a step. comm_ops.grouped, .sized, .timed:
-- with a group, a size, a length; comm_tasks.typed, .moved, .master: with a type, bytes over a link, on a master
-- plane; comm_matrix.total, .global: sums, with global ranks. groups.known: with a parallel kind. largest_group:
-- ranks of the largest group that is named or seen. host_ops.KIND and .shaped, .stacked: by kind, with shapes,
-- with call stacks. launches.operators: below a framework operator. memory.curve, .modules: by source.
-- counters.frequency, .memory, .links, .power: of cores, HBM and caches, HCCS and network, power. marks.mstx:
-- ranges of users.
--
--   run      varchar  run of the training job
--   capture  varchar  ranks profiled at the same time
--   rank     integer  global rank
--   content  varchar  what is counted
--   count    bigint   rows of it; for largest_group, ranks
with
_kernels as (
    select run, capture, rank,
        count(*) as "kernels",
        count(*) filter (is_compute) as "kernels.compute",
        count(*) filter (is_compute and type is not null) as "kernels.typed",
        count(*) filter (is_compute and input_shapes is not null) as "kernels.shaped",
        count(*) filter (is_compute and core in ('AI_CORE', 'AI_VECTOR_CORE', 'MIX_AIC', 'MIX_AIV')) as "kernels.cores",
        count(*) filter (is_compute and coalesce(aic_time_ns, aiv_time_ns) is not null) as "kernels.timed",
        count(*) filter (is_compute and aic_cycles is not null) as "kernels.cycled",
        count(*) filter (is_compute and pmu is not null) as "kernels.pmu",
        count(*) filter (is_compute and core in ('AI_CORE', 'MIX_AIC')) as "kernels.cubes",
        count(*) filter (is_compute and core in ('AI_CORE', 'MIX_AIC') and input_shapes is not null)
            as "kernels.cubes_shaped",
        count(*) filter (is_compute and step is not null) as "kernels.stepped"
    from kernels group by run, capture, rank
),
_comm_ops as (
    select run, capture, rank,
        count(*) as "comm_ops",
        count(group_hash) as "comm_ops.grouped",
        count(size_bytes) as "comm_ops.sized",
        count(*) filter (dur_ns > 0) as "comm_ops.timed"
    from comm_ops group by run, capture, rank
),
_comm_tasks as (
    select run, capture, rank,
        count(*) as "comm_tasks",
        count(task_type) as "comm_tasks.typed",
        count(*) filter (size_bytes > 0 and link <> 'ON_CHIP') as "comm_tasks.moved",
        count(*) filter (is_master) as "comm_tasks.master"
    from comm_tasks group by run, capture, rank
),
_comm_times as (
    select run, capture, rank, count(*) as "comm_times" from comm_times group by run, capture, rank
),
_comm_links as (
    select run, capture, rank, count(*) as "comm_links" from comm_links group by run, capture, rank
),
_comm_matrix as (
    select run, capture, rank,
        count(*) as "comm_matrix",
        count(*) filter (variant in ('total', 'op')) as "comm_matrix.total",
        count(*) filter (src_rank is not null and dst_rank is not null) as "comm_matrix.global"
    from comm_matrix group by run, capture, rank
),
_groups as (
    select run, capture, rank,
        count(*) as "groups",
        count(*) filter (parallel_kind <> 'unknown') as "groups.known"
    from groups group by run, capture, rank
),
_largest as (
    select run, capture, rank, max(size) as largest_group
    from (
        select run, capture, rank, len(global_ranks) as size from groups
        union all select run, capture, rank, max(group_size) from comm_ops group by run, capture, rank
        union all select run, capture, rank, max(greatest(src_group_rank, dst_group_rank)) + 1
        from comm_matrix group by run, capture, rank
        union all select run, capture, rank, max(greatest(src_group_rank, dst_group_rank)) + 1
        from comm_tasks where task_type is not null group by run, capture, rank
    )
    group by run, capture, rank
),
_steps as (
    select run, capture, rank,
        count(distinct step) as "steps",
        count(distinct step) filter (window_start_ns is not null) as "steps.windowed"
    from steps group by run, capture, rank
),
_profiler_steps as (
    select run, capture, rank, count(*) as "profiler_steps" from profiler_steps group by run, capture, rank
),
_host_ops as (
    select run, capture, rank,
        count(*) as "host_ops",
        count(*) filter (kind = 'operator') as "host_ops.operator",
        count(*) filter (kind = 'python') as "host_ops.python",
        count(*) filter (kind = 'enqueue') as "host_ops.enqueue",
        count(*) filter (kind = 'dequeue') as "host_ops.dequeue",
        count(*) filter (kind = 'api') as "host_ops.api",
        count(*) filter (kind = 'gc') as "host_ops.gc",
        count(input_shapes) as "host_ops.shaped",
        count(call_stack) as "host_ops.stacked"
    from host_ops group by run, capture, rank
),
_launches as (
    select run, capture, rank,
        count(*) as "launches",
        count(operator_name) as "launches.operators"
    from launches group by run, capture, rank
),
_memory as (
    select run, capture, rank,
        count(*) as "memory",
        count(*) filter (source = 'record') as "memory.curve",
        count(*) filter (source = 'module') as "memory.modules"
    from memory group by run, capture, rank
),
_operator_memory as (
    select run, capture, rank, count(*) as "operator_memory" from operator_memory group by run, capture, rank
),
_counters as (
    select run, capture, rank,
        count(*) as "counters",
        count(*) filter (name like 'AI Core Freq%') as "counters.frequency",
        count(*) filter (regexp_matches(name, '^(HBM|LLC|DDR)')) as "counters.memory",
        count(*) filter (regexp_matches(name, '^(HCCS|RoCE|NIC|PCIe|SIO|UB|NETDEV)', 'i')) as "counters.links",
        count(*) filter (name ilike '%power%' or series ilike '%watt%') as "counters.power"
    from counters group by run, capture, rank
),
_marks as (
    select run, capture, rank,
        count(*) as "marks",
        count(*) filter (kind = 'mstx') as "marks.mstx"
    from marks group by run, capture, rank
),
_expert_load as (
    select run, capture, rank, count(*) as "expert_load" from expert_load group by run, capture, rank
),
_expert_counts as (
    select run, capture, rank, count(*) as "expert_counts" from expert_counts group by run, capture, rank
),
_expert_placement as (
    select run, capture, rank, count(*) as "expert_placement" from expert_placement group by run, capture, rank
),
_train_log as (
    select run, capture, rank, count(*) as "train_log" from train_log group by run, capture, rank
),
_wide as (
    select * from (select run, capture, rank, count(*) as "ranks" from ranks group by run, capture, rank)
    left join _kernels using (run, capture, rank)
    left join _comm_ops using (run, capture, rank)
    left join _comm_tasks using (run, capture, rank)
    left join _comm_times using (run, capture, rank)
    left join _comm_links using (run, capture, rank)
    left join _comm_matrix using (run, capture, rank)
    left join _groups using (run, capture, rank)
    left join _largest using (run, capture, rank)
    left join _steps using (run, capture, rank)
    left join _profiler_steps using (run, capture, rank)
    left join _host_ops using (run, capture, rank)
    left join _launches using (run, capture, rank)
    left join _memory using (run, capture, rank)
    left join _operator_memory using (run, capture, rank)
    left join _counters using (run, capture, rank)
    left join _marks using (run, capture, rank)
    left join _expert_load using (run, capture, rank)
    left join _expert_counts using (run, capture, rank)
    left join _expert_placement using (run, capture, rank)
    left join _train_log using (run, capture, rank)
)
select run, capture, rank, content, cast(count as bigint) as count
from (unpivot _wide on columns(* exclude (run, capture, rank)) into name content value count)
where count > 0
order by run, capture, rank, content
