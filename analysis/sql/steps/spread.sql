-- How much do the ranks of a capture differ in each step?
--
-- A rank that computes longer than the others is slow or overloaded; one with more exposed communication waits.
-- Ranks where the measure is unknown are left out.
--
-- title: Spread across ranks
-- meaning: Each part of a step over the ranks: least, median, most, and which rank has the most.
-- view: step_spread
--
--   run           varchar  run of the training job
--   capture       varchar  ranks profiled at the same time
--   step          bigint   producer's step number; NULL: the capture has no steps
--   measure       varchar  computing, exposed_communication, free or stage, as in steps
--   rank_count    bigint   ranks compared
--   min_ns        bigint   least
--   median_ns     double   median; the mean of the two in the middle where ranks are even
--   max_ns        bigint   most
--   max_rank      integer  rank with the most, the lowest of equals
--   spread_ratio  double   (max - min) / mean
with
_measures as (
    select run, capture, step, rank, unnest([
        {'place': 1, 'measure': 'computing', 'value_ns': computing_ns},
        {'place': 2, 'measure': 'exposed_communication', 'value_ns': exposed_communication_ns},
        {'place': 3, 'measure': 'free', 'value_ns': free_ns},
        {'place': 4, 'measure': 'stage', 'value_ns': stage_ns}
    ], recursive := true)
    from step_summary
)
select run, capture, step, measure,
    count(*) as rank_count,
    min(value_ns) as min_ns,
    median(value_ns) as median_ns,
    max(value_ns) as max_ns,
    arg_max(rank, {'most': value_ns, 'lowest': -rank}) as max_rank,
    cast(max(value_ns) - min(value_ns) as double) / nullif(avg(value_ns), 0) as spread_ratio
from _measures
where value_ns is not null
group by run, capture, step, place, measure
order by run, capture, step nulls last, place
