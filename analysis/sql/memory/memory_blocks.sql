-- Which single blocks of memory are held when most of it is in use?
--
-- The blocks that memory_holders gathers, at the same moment, the largest first: blocks of operators, and blocks from
-- before the capture where they are freed inside it.
--
-- title: Blocks at the peak
-- meaning: Single blocks held at the allocation peak, with their lifetimes.
-- command: memory --by block
-- table: memory_blocks
--
--   run              varchar  run of the training job
--   capture          varchar  ranks profiled at the same time
--   rank             integer  global rank
--   name             varchar  operator that allocated it; NULL where unknown
--   size_bytes       bigint   its size
--   share_ratio      double   size / allocated total of the device
--   allocated_at_ns  bigint   when it was allocated; NULL: before the capture
--   released_at_ns   bigint   when it is freed; NULL: never inside the capture
--   stream_ptr       varchar  stream it was allocated on; NULL where unknown
--   peak_ns          bigint   timestamp of the peak
--   device_id        integer  device; NULL where unknown
with
_peak as (
    select run, capture, rank, device_id, any_value(peak_ns) as peak_ns,
        any_value(peak_allocated_bytes) as peak_allocated_bytes
    from memory_holders
    group by run, capture, rank, device_id
)
select o.run, o.capture, o.rank, name,
    abs(size_bytes) as size_bytes,
    cast(abs(size_bytes) as double) / nullif(cast(peak_allocated_bytes as double), 0) as share_ratio,
    allocated_at_ns, released_at_ns, stream_ptr, peak_ns, o.device_id
from operator_memory as o
join _peak as p on p.run = o.run and p.capture = o.capture and p.rank = o.rank
    and p.device_id is not distinct from o.device_id
where case when allocated_at_ns is null then size_bytes <> 0 and released_at_ns > peak_ns
    else size_bytes > 0 and allocated_at_ns <= peak_ns and coalesce(released_at_ns > peak_ns, true) end
