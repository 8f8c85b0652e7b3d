-- Which operators held the memory when most of it was in use?
--
-- At the first instant of the highest allocated total of the rank (the framework's, GE's or both, whichever rose
-- highest), the blocks that were allocated and not yet freed, by the operator that allocated them. The row without
-- a name is what no recorded block explains: blocks from before the window, and allocations that were not recorded.
--
--   run                   varchar  name of the job
--   capture               varchar  name of the profiling window
--   rank                  integer  global rank
--   peak_ns               bigint   when most memory was allocated
--   peak_allocated_bytes  bigint   how much that was
--   name                  varchar  operator that allocated the blocks; NULL: no recorded block
--   block_count           bigint   blocks held; NULL where they are not recorded
--   held_bytes            bigint   memory in them
--   largest_block_bytes   bigint   the largest of them
--   share_ratio           double   of what was allocated
with
peak as (
    select run, capture, rank, max(allocated_bytes) as peak_allocated_bytes,
        arg_max(timestamp_ns, (allocated_bytes, -timestamp_ns)) as peak_ns
    from memory
    where source = 'record' and allocated_bytes is not null and timestamp_ns is not null
    group by run, capture, rank
), held as (
    select p.run, p.capture, p.rank, o.name, count(*) as block_count,
        cast(sum(o.size_bytes) as bigint) as held_bytes, max(o.size_bytes) as largest_block_bytes
    from peak p
    join operator_memory o on o.run = p.run and o.capture = p.capture and o.rank = p.rank
    where o.size_bytes > 0 and o.allocated_at_ns <= p.peak_ns
        and (o.released_at_ns is null or o.released_at_ns > p.peak_ns)
    group by p.run, p.capture, p.rank, o.name
), explained as (
    select run, capture, rank, cast(sum(held_bytes) as bigint) as held_bytes from held group by run, capture, rank
), rest as (
    select p.run, p.capture, p.rank, cast(null as varchar) as name, cast(null as bigint) as block_count,
        p.peak_allocated_bytes - e.held_bytes as held_bytes, cast(null as bigint) as largest_block_bytes
    from peak p join explained e on e.run = p.run and e.capture = p.capture and e.rank = p.rank
    where p.peak_allocated_bytes > e.held_bytes
), every as (
    select run, capture, rank, name, block_count, held_bytes, largest_block_bytes from held
    union all
    select run, capture, rank, name, block_count, held_bytes, largest_block_bytes from rest
)
select h.run, h.capture, h.rank, p.peak_ns, p.peak_allocated_bytes, h.name, h.block_count, h.held_bytes,
    h.largest_block_bytes, h.held_bytes / p.peak_allocated_bytes as share_ratio
from every h join peak p on p.run = h.run and p.capture = h.capture and p.rank = h.rank
