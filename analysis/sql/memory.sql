-- How much device memory does each component take, when most, and does it grow?
--
-- One row per rank and component of the memory curve. A peak is its first instant. Reserved is what the component
-- took from the device, allocated what of it is in use. What is reserved and not allocated just when most is allocated
-- could not be used when it was needed most: fragmentation. Growth compares what was allocated (where unknown: reserved) at the end of the first
-- and of the last recorded step. The profiler's component PTA+GE is the sum of PTA and GE; rows with source `module`
-- are CANN's own modules. Components overlap: do not add them up.
--
--   run                        varchar  name of the job
--   capture                    varchar  name of the profiling window
--   rank                       integer  global rank
--   device_id                  integer  device the curve was recorded on
--   source                     varchar  record: the framework's, process's and device's curves; module: CANN's modules
--   component                  varchar  PTA (framework), GE (graph engine), PTA+GE, APP (process), DEVICE, HCCL, ...
--   sample_count               bigint   points of the curve
--   peak_bytes                 bigint   most memory reserved; NULL where the curve has no reserved total
--   peak_ns                    bigint   when it was first reached
--   peak_allocated_bytes       bigint   most memory allocated; NULL where unknown
--   peak_allocated_ns          bigint   when it was first reached
--   peak_active_bytes          bigint   most memory held by streams in use; NULL where unknown
--   fragmentation_bytes        bigint   reserved - allocated at the peak of allocated
--   fragmentation_ratio        double   of what was reserved then
--   step_count                 bigint   recorded steps with a level at their end
--   growth_bytes               bigint   level at the end of the last step - of the first; NULL with less than two
--   growth_per_step_bytes      double   the same per step between them
with
curve as (
    select run, capture, rank, device_id, source, component, timestamp_ns, allocated_bytes, reserved_bytes, active_bytes
    from memory
    where timestamp_ns is not null and component is not null
), peaks as (
    select run, capture, rank, device_id, source, component, count(*) as sample_count,
        max(reserved_bytes) as peak_bytes,
        arg_max(timestamp_ns, (reserved_bytes, -timestamp_ns)) filter (where reserved_bytes is not null) as peak_ns,
        arg_max({'bytes': reserved_bytes}, (allocated_bytes, -timestamp_ns))
            filter (where allocated_bytes is not null).bytes as reserved_then_bytes,
        max(allocated_bytes) as peak_allocated_bytes,
        arg_max(timestamp_ns, (allocated_bytes, -timestamp_ns)) filter (where allocated_bytes is not null)
            as peak_allocated_ns,
        max(active_bytes) as peak_active_bytes
    from curve
    group by run, capture, rank, device_id, source, component
), ends as (
    select run, capture, rank, step, max(coalesce(window_end_ns, device_end_ns)) as end_ns
    from steps
    where step is not null and coalesce(window_end_ns, device_end_ns) is not null
    group by run, capture, rank, step
), wanted as (
    select e.run, e.capture, e.rank, p.device_id, p.source, p.component, e.step, e.end_ns
    from ends e join peaks p on p.run = e.run and p.capture = e.capture and p.rank = e.rank
), known as (
    select *, coalesce(allocated_bytes, reserved_bytes) as level_bytes from curve
), levels as (
    select w.run, w.capture, w.rank, w.device_id, w.source, w.component, w.step, k.level_bytes
    from wanted w
    asof join known k on k.run = w.run and k.capture = w.capture and k.rank = w.rank
        and k.device_id is not distinct from w.device_id and k.source = w.source and k.component = w.component
        and w.end_ns >= k.timestamp_ns
    where k.level_bytes is not null
), growth as (
    select run, capture, rank, device_id, source, component, count(*) as step_count,
        case when count(*) > 1 then arg_max(level_bytes, step) - arg_min(level_bytes, step) end as growth_bytes
    from levels
    group by run, capture, rank, device_id, source, component
)
select p.run, p.capture, p.rank, p.device_id, p.source, p.component, p.sample_count, p.peak_bytes, p.peak_ns,
    p.peak_allocated_bytes, p.peak_allocated_ns, p.peak_active_bytes,
    p.reserved_then_bytes - p.peak_allocated_bytes as fragmentation_bytes,
    case when p.reserved_then_bytes > 0 then 1 - p.peak_allocated_bytes / p.reserved_then_bytes end
        as fragmentation_ratio,
    coalesce(g.step_count, 0) as step_count, g.growth_bytes,
    g.growth_bytes / (g.step_count - 1) as growth_per_step_bytes
from peaks p
left join growth g on g.run = p.run and g.capture = p.capture and g.rank = p.rank
    and g.device_id is not distinct from p.device_id and g.source = p.source and g.component = p.component
