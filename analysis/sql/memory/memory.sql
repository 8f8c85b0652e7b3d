-- How much device memory does each component take, when most, and how much of that lies unused?
--
-- One row per rank and component. Reserved is what the component took from the device, allocated what of it is in use,
-- active what no stream is done with. A peak has its first timestamp. Fragmentation is what was reserved and
-- not allocated at the allocation peak: memory the job held and could not use when it needed it most.
-- Of several records with that timestamp and allocation, the one with most reserved counts. Components overlap
-- and must not be added up: PTA+GE is the profiler's sum of PTA and GE, APP and DEVICE hold everything. CANN's own
-- modules (source module) have no allocation; those that never held anything stand here with 0.
--
-- title: Memory
-- meaning: Peaks of device memory by component, and its fragmentation.
-- view: memory_summary
-- rows from: memory
-- command: memory --by component
-- table: memory, memory_ranks
-- figure: peaks
--
--   run                   varchar  run of the training job
--   capture               varchar  ranks profiled at the same time
--   rank                  integer  global rank
--   component             varchar  PTA (framework), GE (graph engine), PTA+GE, APP (process), DEVICE, HCCL, ...
--   peak_bytes            bigint   most that was reserved; NULL where reservations are unknown
--   peak_ns               bigint   when that was first so
--   peak_allocated_bytes  bigint   most that was allocated; NULL where allocations are unknown
--   peak_allocated_ns     bigint   when that was first so
--   peak_active_bytes     bigint   most that was active; NULL where unknown
--   fragmentation_bytes   bigint   reserved - allocated at peak_allocated_ns
--   fragmentation_ratio   double   fragmentation / reserved, at the same timestamp
--   source                varchar  record (curves of framework, process and device) or module (CANN's modules)
--   device_id             integer  device the curve belongs to; NULL where unknown
--   sample_count          bigint   records of the curve
--   first_ns              bigint   first record
--   last_ns               bigint   last record
with
-- Most bytes first, then the earliest: bytes * 2^64 - t, which no 128-bit integer overflows.
_peaks as (
    select run, capture, rank, component, source, device_id,
        count(*) as sample_count,
        min(timestamp_ns) as first_ns,
        max(timestamp_ns) as last_ns,
        max(reserved_bytes) as peak_bytes,
        arg_max(timestamp_ns, reserved_bytes * 18446744073709551616 - timestamp_ns)
            filter (where reserved_bytes is not null) as peak_ns,
        arg_max(
            {'allocated': allocated_bytes, 'at': timestamp_ns, 'reserved': reserved_bytes},
            {'first': allocated_bytes * 18446744073709551616 - timestamp_ns, 'then': coalesce(reserved_bytes, -1)}
        ) filter (where allocated_bytes is not null) as fullest,
        max(active_bytes) as peak_active_bytes
    from memory
    where timestamp_ns is not null and component is not null
    group by run, capture, rank, component, source, device_id
)
select run, capture, rank, component,
    peak_bytes,
    peak_ns,
    fullest.allocated as peak_allocated_bytes,
    fullest.at as peak_allocated_ns,
    peak_active_bytes,
    fullest.reserved - fullest.allocated as fragmentation_bytes,
    cast(fullest.reserved - fullest.allocated as double) / nullif(cast(fullest.reserved as double), 0)
        as fragmentation_ratio,
    source, device_id, sample_count, first_ns, last_ns
from _peaks
order by run, capture, rank, source desc, device_id nulls last, coalesce(peak_bytes, fullest.allocated) desc nulls last,
    component
