-- What does a rank do in each stretch of time, fine and coarse?
--
-- A pyramid for pictures of any length of time. A bin of level n is 4^n ms long and begins at a multiple of that, so
-- bins of all ranks agree. A rank has the finest level at which its time makes at most 32,768 bins, and those above it
-- up to the first at which it makes at most 512. K and C (see steps) are unions over all of the rank's time, inside and
-- outside of steps, cut at the borders of bins to the ns: sums over the bins of any level are the whole, so ratios of
-- sums are exact. A rank's time goes from the first start to the last end in K and C. Bins in which nothing runs make
-- no row: between a rank's first bin and its last they are free in whole. What is unknown by the rules of steps is NULL
-- here; of a rank that was read with --steps, bins outside those steps count only what was kept.
--
-- title: Timeline
-- meaning: Computing, communication, overlap and idle time of each rank in bins, fine to coarse.
-- rows from: kernels, comm_ops
-- figure: heat
--
--   run                        varchar  run of the training job
--   capture                    varchar  ranks profiled at the same time
--   rank                       integer  global rank
--   level                      integer  0: bins of 1 ms; each level up 4 times as long
--   bin_start_ns               bigint   start of the bin
--   bin_width_ns               bigint   length of the bin
--   start_ns                   bigint   where the rank's time begins in the bin: the bin's start, but for the first
--   end_ns                     bigint   where it ends in it: the bin's end, but for the last
--   computing_ns               bigint   length of K in the bin
--   communication_ns           bigint   length of C in the bin
--   overlapped_ns              bigint   length of C inside K
--   exposed_communication_ns   bigint   length of C outside K
--   free_ns                    bigint   part of the rank's time in neither K nor C
--   event_count                bigint   compute kernels and operations that end in the bin
with
_keys as materialized (
    select run, capture, rank, cast(row_number() over (order by run, capture, rank) as integer) as rank_key
    from (select distinct run, capture, rank from kernels union select distinct run, capture, rank from comm_ops)
    qualify rank_key > 0  -- true of all; it tells the planner that they are few
),
_events as (
    select rank_key, true as is_compute, start_ns, start_ns + dur_ns as end_ns
    from kernels join _keys using (run, capture, rank)
    where is_compute and dur_ns > 0 and start_ns is not null
    union all
    select rank_key, false, start_ns, start_ns + dur_ns
    from comm_ops join _keys using (run, capture, rank)
    where dur_ns > 0 and start_ns is not null
),
_spans as materialized (
    select rank_key, min(start_ns) as first_ns, max(end_ns) as last_ns,
        bool_or(is_compute) as has_compute, bool_or(not is_compute) as has_ops
    from _events group by rank_key
),
_levels as materialized (
    select *, 1000000 * 4 ** finest as width_ns
    from (
        select rank_key,
            cast(greatest(ceil(log2((last_ns - first_ns) / 32768e6) / 2), 0) as integer) as finest,
            cast(greatest(ceil(log2((last_ns - first_ns) / 512e6) / 2), 0) as integer) as coarsest
        from _spans
    )
),
_bins as (
    select rank_key, cast(width_ns as bigint) as width_ns from _levels
),
_covered_bins
_masked as (
    select run, capture, rank from comm_tasks
    union select run, capture, rank from comm_times
    union select run, capture, rank from ranks where list_contains(left_out_tables, 'comm_ops')
),
_raised as (
    select rank_key, level, width_ns, bin_ns - (bin_ns % width_ns + width_ns) % width_ns as bin_ns,
        sum(computing_ns) as computing_ns, sum(communication_ns) as communication_ns, sum(busy_ns) as busy_ns,
        sum(event_count) as event_count
    from (
        select c.*, level, cast(1000000 * 4 ** level as bigint) as width_ns
        from _covered_bins as c
        join (select rank_key, unnest(range(finest, coarsest + 1)) as level from _levels) using (rank_key)
    )
    group by all
),
_facts as (
    select *,
        greatest(bin_ns, first_ns) as start_ns,
        least(bin_ns + width_ns, last_ns) as end_ns,
        has_ops or (run, capture, rank) not in (from _masked) as knows_communication
    from _raised join _spans using (rank_key) join _keys using (rank_key)
)
select run, capture, rank,
    cast(level as integer) as level,
    bin_ns as bin_start_ns,
    width_ns as bin_width_ns,
    start_ns,
    end_ns,
    cast(case when has_compute then coalesce(computing_ns, 0) end as bigint) as computing_ns,
    cast(case when knows_communication then coalesce(communication_ns, 0) end as bigint) as communication_ns,
    cast(case when has_compute and knows_communication
        then coalesce(computing_ns, 0) + coalesce(communication_ns, 0) - busy_ns end as bigint) as overlapped_ns,
    cast(case when has_compute and knows_communication then busy_ns - coalesce(computing_ns, 0) end as bigint)
        as exposed_communication_ns,
    cast(case when has_compute and knows_communication then end_ns - start_ns - busy_ns end as bigint) as free_ns,
    cast(event_count as bigint) as event_count
from _facts
order by run, capture, rank, level, bin_start_ns
