-- What was recorded of each rank: how many rows of which kind?
--
-- One row per rank and kind that has any; a kind that is not there counts 0, or is unknown where its table was not
-- selected when the rank was read (`ranks.left_out_tables`). A kind is a table, or `table.what`: rows of the table
-- that have something, as said below. `npuscope doctor` derives from it what a capture can answer.
-- kernels.compute: computing; .typed, .shaped: computing, with a type, with input shapes; .cores: computing on cube
-- or vector cores; .timed, .cycled: with the time and the cycles these measured; .pmu: with further counters;
-- .cubes: on cube cores; .cubes_shaped: these with shapes; .stepped: in a step. comm_ops.grouped, .sized, .timed:
-- with a group, a size, a length; .streamed: with the stream they ran on; .peered: with who is at the other end, or
-- without any such end; device_tasks.events: waits of streams for each other; comm_tasks.typed, .moved, .master: with a type, bytes over a link, on a master
-- plane; comm_matrix.total, .global: sums, with global ranks. groups.known: with a parallel kind. largest_group:
-- ranks of the largest group that is named or seen. host_ops.KIND and .shaped, .stacked: by kind, with shapes,
-- with call stacks. launches.operators: below a framework operator. memory.curve, .modules: by source.
-- counters.frequency, .memory, .links, .power: of cores, HBM and caches, HCCS and network, power. marks.mstx:
-- ranges of users.
--
-- title: Contents
-- meaning: How much was recorded of what, on each rank.
-- view: rank_contents
-- rows from: ranks
--
--   run      varchar  run of the training job
--   capture  varchar  ranks profiled at the same time
--   rank     integer  global rank
--   content  varchar  what is counted
--   count    bigint   rows of it; for largest_group, ranks
with
_counts as (
    select run, capture, rank, 'ranks' as content, count(*) as count from ranks group by all
    union all
    select run, capture, rank, unnest([
        {content: 'kernels', count: count(*)},
        {content: 'kernels.compute', count: count(*) filter (is_compute)},
        {content: 'kernels.typed', count: count(*) filter (is_compute and type is not null)},
        {content: 'kernels.shaped', count: count(*) filter (is_compute and input_shapes is not null)},
        {content: 'kernels.cores',
            count: count(*) filter (is_compute and core in ('AI_CORE', 'AI_VECTOR_CORE', 'MIX_AIC', 'MIX_AIV'))},
        {content: 'kernels.timed',
            count: count(*) filter (is_compute and coalesce(aic_time_ns, aiv_time_ns) is not null)},
        {content: 'kernels.cycled', count: count(*) filter (is_compute and aic_cycles is not null)},
        {content: 'kernels.pmu', count: count(*) filter (is_compute and pmu is not null)},
        {content: 'kernels.cubes', count: count(*) filter (is_compute and core in ('AI_CORE', 'MIX_AIC'))},
        {content: 'kernels.cubes_shaped',
            count: count(*) filter (is_compute and core in ('AI_CORE', 'MIX_AIC') and input_shapes is not null)},
        {content: 'kernels.stepped', count: count(*) filter (is_compute and step is not null)}
    ], recursive := true) from kernels group by run, capture, rank
    union all
    select run, capture, rank, unnest([
        {content: 'comm_ops', count: count(*)},
        {content: 'comm_ops.grouped', count: count(group_hash)},
        {content: 'comm_ops.sized', count: count(size_bytes)},
        {content: 'comm_ops.timed', count: count(*) filter (dur_ns > 0)},
        {content: 'comm_ops.streamed', count: count(stream_id)},
        {content: 'comm_ops.peered', count: count(*) filter (
            peer_ranks is not null or coalesce(op_type not in ('send', 'receive', 'batchSendRecv'), false))}
    ], recursive := true) from comm_ops group by run, capture, rank
    union all
    select run, capture, rank, unnest([
        {content: 'device_tasks', count: count(*)},
        {content: 'device_tasks.events', count: count(*) filter (type ilike 'event_wait%')}
    ], recursive := true) from device_tasks group by run, capture, rank
    union all
    select run, capture, rank, unnest([
        {content: 'comm_tasks', count: count(*)},
        {content: 'comm_tasks.typed', count: count(task_type)},
        {content: 'comm_tasks.moved', count: count(*) filter (size_bytes > 0 and link <> 'ON_CHIP')},
        {content: 'comm_tasks.master', count: count(*) filter (is_master)}
    ], recursive := true) from comm_tasks group by run, capture, rank
    union all
    select run, capture, rank, 'comm_times' as content, count(*) as count from comm_times group by all
    union all
    select run, capture, rank, 'comm_links' as content, count(*) as count from comm_links group by all
    union all
    select run, capture, rank, unnest([
        {content: 'comm_matrix', count: count(*)},
        {content: 'comm_matrix.total', count: count(*) filter (variant in ('total', 'op'))},
        {content: 'comm_matrix.global', count: count(*) filter (src_rank is not null and dst_rank is not null)}
    ], recursive := true) from comm_matrix group by run, capture, rank
    union all
    select run, capture, rank, unnest([
        {content: 'groups', count: count(*)},
        {content: 'groups.known', count: count(*) filter (parallel_kind <> 'unknown')}
    ], recursive := true) from groups group by run, capture, rank
    union all
    select run, capture, rank, unnest([
        {content: 'steps', count: count(distinct step)},
        {content: 'steps.windowed', count: count(distinct step) filter (window_start_ns is not null)}
    ], recursive := true) from steps group by run, capture, rank
    union all
    select run, capture, rank, 'profiler_steps' as content, count(*) as count from profiler_steps group by all
    union all
    select run, capture, rank, unnest([
        {content: 'host_ops', count: count(*)},
        {content: 'host_ops.operator', count: count(*) filter (kind = 'operator')},
        {content: 'host_ops.python', count: count(*) filter (kind = 'python')},
        {content: 'host_ops.enqueue', count: count(*) filter (kind = 'enqueue')},
        {content: 'host_ops.dequeue', count: count(*) filter (kind = 'dequeue')},
        {content: 'host_ops.api', count: count(*) filter (kind = 'api')},
        {content: 'host_ops.gc', count: count(*) filter (kind = 'gc')},
        {content: 'host_ops.shaped', count: count(input_shapes)},
        {content: 'host_ops.stacked', count: count(call_stack)}
    ], recursive := true) from host_ops group by run, capture, rank
    union all
    select run, capture, rank, unnest([
        {content: 'launches', count: count(*)},
        {content: 'launches.operators', count: count(operator_name)}
    ], recursive := true) from launches group by run, capture, rank
    union all
    select run, capture, rank, unnest([
        {content: 'memory', count: count(*)},
        {content: 'memory.curve', count: count(*) filter (source = 'record')},
        {content: 'memory.modules', count: count(*) filter (source = 'module')}
    ], recursive := true) from memory group by run, capture, rank
    union all
    select run, capture, rank, 'operator_memory' as content, count(*) as count from operator_memory group by all
    union all
    select run, capture, rank, unnest([
        {content: 'counters', count: sum(count)},
        {content: 'counters.frequency', count: sum(count) filter (name like 'AI Core Freq%')},
        {content: 'counters.memory', count: sum(count) filter (regexp_matches(name, '^(HBM|LLC|DDR)'))},
        {content: 'counters.links',
            count: sum(count) filter (regexp_matches(name, '^(HCCS|RoCE|NIC|PCIe|SIO|UB|NETDEV)', 'i'))},
        {content: 'counters.power', count: sum(count) filter (name ilike '%power%' or series ilike '%watt%')}
    ], recursive := true)
    from (select run, capture, rank, name, series, count(*) as count from counters group by all)
    group by run, capture, rank
    union all
    select run, capture, rank, unnest([
        {content: 'marks', count: count(*)},
        {content: 'marks.mstx', count: count(*) filter (kind = 'mstx')}
    ], recursive := true) from marks group by run, capture, rank
    union all
    select run, capture, rank, 'expert_load' as content, count(*) as count from expert_load group by all
    union all
    select run, capture, rank, 'expert_counts' as content, count(*) as count from expert_counts group by all
    union all
    select run, capture, rank, 'expert_placement' as content, count(*) as count from expert_placement group by all
    union all
    select run, capture, rank, 'train_log' as content, count(*) as count from train_log group by all
    union all
    select run, capture, rank, 'largest_group', max(size)
    from (
        select run, capture, rank, len(global_ranks) as size from groups
        union all select run, capture, rank, max(group_size) from comm_ops group by run, capture, rank
        union all select run, capture, rank, max(greatest(src_group_rank, dst_group_rank)) + 1
        from comm_matrix group by run, capture, rank
        union all select run, capture, rank, max(greatest(src_group_rank, dst_group_rank)) + 1
        from comm_tasks where task_type is not null group by run, capture, rank
    )
    group by run, capture, rank
)
select run, capture, rank, content, cast(count as bigint) as count
from _counts semi join ranks using (run, capture, rank)
where count > 0
order by run, capture, rank, content
