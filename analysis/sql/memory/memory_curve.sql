-- How does the memory of each component move over time, in at most so many points?
--
-- Part of the query that asks: `_chosen` stands for rows of `memory`, the parameter for how many points a curve may
-- have. The time from a rank's first record to its last is cut into bins of one width, the same for all its curves. A
-- bin has the least and the most of its records and of the level it begins with, so no peak is lost and none is made
-- up; where nothing is recorded in a bin, the level before it stays. Before its first record a curve has no bins. Of
-- several records with one timestamp the highest is taken.
--
-- title: Curves of memory
-- meaning: Memory of each component over time, in few points that keep least and most.
-- function: memory.memory.memory_curve
-- command: memory --by curve
-- table: memory_curve
-- figure: memory_curve
--
--   run                  varchar  run of the training job
--   capture              varchar  ranks profiled at the same time
--   rank                 integer  global rank
--   component            varchar  PTA (framework), GE (graph engine), PTA+GE, APP (process), DEVICE, HCCL, ...
--   bin                  bigint   number of the bin, from 0
--   start_ns             bigint   its start
--   end_ns               bigint   its end
--   allocated_min_bytes  bigint   least that was allocated; NULL where unknown
--   allocated_max_bytes  bigint   most that was allocated
--   reserved_min_bytes   bigint   least that was reserved; NULL where unknown
--   reserved_max_bytes   bigint   most that was reserved
--   sample_count         bigint   records inside the bin
--   source               varchar  record or module, as in memory
--   device_id            integer  device the curve belongs to; NULL where unknown
with
_records as (
    select * from _chosen where timestamp_ns is not null and component is not null
),
_spans as materialized (
    select *, cast(row_number() over () as integer) as span
    from (
        select run, capture, rank, min(timestamp_ns) as zero_ns, max(timestamp_ns) as last_ns,
            (max(timestamp_ns) - min(timestamp_ns)) // cast(? as bigint) + 1 as width_ns
        from _records
        group by run, capture, rank
    )
    -- True of every one. It tells the planner that they are few, so that it looks for records among them.
    qualify span > 0
),
_matches as materialized (
    select r.run, r.capture, r.rank, component, source, device_id,
        (timestamp_ns - zero_ns) // width_ns as bin,
        count(*) as sample_count,
        min(allocated_bytes) as allocated_min_bytes,
        max(allocated_bytes) as allocated_max_bytes,
        arg_max(allocated_bytes, timestamp_ns * 18446744073709551616 + allocated_bytes) as allocated_last_bytes,
        min(reserved_bytes) as reserved_min_bytes,
        max(reserved_bytes) as reserved_max_bytes,
        arg_max(reserved_bytes, timestamp_ns * 18446744073709551616 + reserved_bytes) as reserved_last_bytes
    from _records as r
    join _spans as s on s.run = r.run and s.capture = r.capture and s.rank = r.rank
    group by r.run, r.capture, r.rank, component, source, device_id, bin
),
_bins as (
    select run, capture, rank, component, source, device_id, zero_ns, width_ns,
        unnest(range(first_bin, (last_ns - zero_ns) // width_ns + 1)) as bin
    from (
        select run, capture, rank, component, source, device_id, min(bin) as first_bin
        from _matches
        group by run, capture, rank, component, source, device_id
    ) join _spans using (run, capture, rank)
),
_carried as (
    select b.run, b.capture, b.rank, b.component, b.source, b.device_id, b.bin,
        zero_ns + b.bin * width_ns as start_ns,
        zero_ns + (b.bin + 1) * width_ns as end_ns,
        coalesce(sample_count, 0) as sample_count,
        last_value(allocated_last_bytes ignore nulls) over _before as allocated_bytes,
        allocated_min_bytes, allocated_max_bytes,
        last_value(reserved_last_bytes ignore nulls) over _before as reserved_bytes,
        reserved_min_bytes, reserved_max_bytes
    from _bins as b
    left join _matches as f on f.run = b.run and f.capture = b.capture and f.rank = b.rank
        and f.component = b.component and f.source = b.source and f.device_id is not distinct from b.device_id
        and f.bin = b.bin
    window _before as (
        partition by b.run, b.capture, b.rank, b.component, b.source, b.device_id order by b.bin
        rows between unbounded preceding and 1 preceding
    )
)
-- `least` and `greatest` ignore NULLs: what is unknown before the first record does not count.
select run, capture, rank, component, bin, start_ns, end_ns,
    least(allocated_bytes, allocated_min_bytes) as allocated_min_bytes,
    greatest(allocated_bytes, allocated_max_bytes) as allocated_max_bytes,
    least(reserved_bytes, reserved_min_bytes) as reserved_min_bytes,
    greatest(reserved_bytes, reserved_max_bytes) as reserved_max_bytes,
    sample_count, source, device_id
from _carried
order by run, capture, rank, source desc, device_id nulls last, component, bin
