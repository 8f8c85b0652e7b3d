-- How much do the ranks of a capture differ in memory?
--
-- Pipeline stages differ by design: earlier ones keep the activations of more micro-batches. A rank that differs from
-- others of its stage is overloaded or leaks. Of a rank with several devices the fullest counts. Components that hold
-- nothing on any rank, and ranks where the measure is unknown, are left out.
--
-- title: Memory across ranks
-- meaning: Peaks and fragmentation over the ranks: least, median, most, and which rank has the most.
-- command: memory --by spread
-- table: memory_spread
--
--   run           varchar  run of the training job
--   capture       varchar  ranks profiled at the same time
--   component     varchar  PTA (framework), GE (graph engine), PTA+GE, APP (process), DEVICE, HCCL, ...
--   measure       varchar  peak (reserved), peak_allocated or fragmentation, as in memory
--   rank_count    bigint   ranks compared
--   min_bytes     bigint   least
--   median_bytes  double   median; the mean of the two in the middle where ranks are even
--   max_bytes     bigint   most
--   max_rank      integer  rank with the most, the lowest of equals
--   spread_ratio  double   (max - min) / mean
--   source        varchar  record or module, as in memory
with
_measures as (
    select run, capture, component, source, rank, unnest([
        {'place': 1, 'measure': 'peak', 'value_bytes': peak_bytes},
        {'place': 2, 'measure': 'peak_allocated', 'value_bytes': peak_allocated_bytes},
        {'place': 3, 'measure': 'fragmentation', 'value_bytes': fragmentation_bytes}
    ], recursive := true)
    from memory_summary
),
_of_ranks as (
    select run, capture, component, source, rank, place, measure, max(value_bytes) as value_bytes
    from _measures
    where value_bytes is not null
    group by run, capture, component, source, rank, place, measure
)
select run, capture, component, measure,
    count(*) as rank_count,
    min(value_bytes) as min_bytes,
    median(value_bytes) as median_bytes,
    max(value_bytes) as max_bytes,
    arg_max(rank, {'most': value_bytes, 'lowest': -rank}) as max_rank,
    cast(max(value_bytes) - min(value_bytes) as double) / nullif(avg(value_bytes), 0) as spread_ratio,
    source
from _of_ranks
group by run, capture, component, source, place, measure
having max(value_bytes) > 0
order by run, capture, source desc, component, place
