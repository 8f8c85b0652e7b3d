-- Which operators hold the memory when most of it is in use?
--
-- The peak is the first timestamp of the highest allocated total of a rank's device, of whichever of the framework's
-- curves rose highest (PTA+GE before PTA where they are equal). A block is held then if it was allocated at that
-- timestamp or before and freed later or not at all while the profiler ran. The blocks are gathered by the operator that
-- allocated them (holder operator). Blocks that were allocated before the profiler ran are known only where they are
-- freed while it runs (holder earlier). The rest of the total, which no recorded block explains, has a row of its own
-- (holder unexplained): parameters, optimizer states and whatever else is older than the capture. It is negative
-- where blocks add up to more than the curve says. So the rows of a device add up to the total. A rank without
-- recorded blocks, or without a curve, has no rows.
--
-- title: Who holds the memory
-- meaning: Operators that hold memory at the allocation peak, and the part no operator explains.
-- rows from: operator_memory
-- command: memory --by holder
-- table: memory_holders
-- figure: holders
--
--   run                   varchar  run of the training job
--   capture               varchar  ranks profiled at the same time
--   rank                  integer  global rank
--   holder                varchar  operator, earlier or unexplained
--   name                  varchar  operator that allocated the blocks; NULL where unknown
--   held_bytes            bigint   memory in its blocks
--   share_ratio           double   held / allocated total
--   block_count           bigint   blocks; NULL for what is unexplained
--   largest_block_bytes   bigint   the largest of them
--   since_ns              bigint   when the first of them was allocated; NULL: before the capture, or unknown
--   released_ns           bigint   when the last of them is freed; NULL: one is never freed inside the capture
--   unreleased_count      bigint   blocks never freed inside the capture
--   component             varchar  curve that rose highest
--   peak_allocated_bytes  bigint   allocated total at the peak
--   peak_ns               bigint   timestamp of the peak
--   device_id             integer  device; NULL where unknown
with
_tops as (
    select run, capture, rank, device_id, component,
        max(allocated_bytes) as peak_allocated_bytes,
        arg_max(timestamp_ns, allocated_bytes * 18446744073709551616 - timestamp_ns) as peak_ns
    from memory
    where source = 'record' and allocated_bytes is not null and timestamp_ns is not null
    group by run, capture, rank, device_id, component
),
_peak as materialized (
    select *, cast(row_number() over () as integer) as peak_key
    from (
        select * from _tops
        semi join (select distinct run, capture, rank from operator_memory) using (run, capture, rank)
        qualify row_number() over (
            partition by run, capture, rank, device_id
            order by peak_allocated_bytes desc, peak_ns, component desc
        ) = 1
    )
    -- True of every one. It tells the planner that they are few, so that it looks for blocks among them.
    qualify peak_key > 0
),
_holders as materialized (
    select peak_key,
        case when allocated_at_ns is null then 'earlier' else 'operator' end as holder,
        name,
        cast(sum(abs(size_bytes)) as bigint) as held_bytes,
        count(*) as block_count,
        max(abs(size_bytes)) as largest_block_bytes,
        min(allocated_at_ns) as since_ns,
        case when count(released_at_ns) = count(*) then max(released_at_ns) end as released_ns,
        count(*) - count(released_at_ns) as unreleased_count
    from operator_memory as o
    join _peak as p on p.run = o.run and p.capture = o.capture and p.rank = o.rank
        and p.device_id is not distinct from o.device_id
    where case when allocated_at_ns is null then size_bytes <> 0 and released_at_ns > peak_ns
        else size_bytes > 0 and allocated_at_ns <= peak_ns and coalesce(released_at_ns > peak_ns, true) end
    group by peak_key, holder, name
),
_every as (
    select peak_key, holder, name, held_bytes, block_count, largest_block_bytes, since_ns, released_ns, unreleased_count
    from _holders
    union all
    select peak_key, 'unexplained', null,
        any_value(peak_allocated_bytes) - coalesce(cast(sum(held_bytes) as bigint), 0),
        null, null, null, null, null
    from _peak left join _holders using (peak_key)
    group by peak_key
)
select run, capture, rank, holder, name, held_bytes,
    cast(held_bytes as double) / nullif(cast(peak_allocated_bytes as double), 0) as share_ratio,
    block_count, largest_block_bytes, since_ns, released_ns, unreleased_count,
    component, peak_allocated_bytes, peak_ns, device_id
from _every join _peak using (peak_key)
order by run, capture, rank, device_id nulls last, held_bytes desc, holder, name nulls last
