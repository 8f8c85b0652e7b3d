-- Which ranks of a capture run no gradients in any step, though others do?
--
-- Engines that generate for a training run beside it do so. By types of kernels, else by their names; a rank that is in
-- a pipeline with one that runs gradients may hold layers that are frozen.
--
--   run      varchar    run of the training job
--   capture  varchar    ranks profiled at the same time
--   ranks    integer[]  such ranks
--   others   integer[]  ranks with gradients
with
_trains
_ranks as (
    select run, capture, rank, bool_or(trains) as trains from _trains group by all
),
_pipelines as (
    select g.run, g.capture, unnest(g.global_ranks) as rank
    from groups as g join _ranks as r on r.run = g.run and r.capture = g.capture and r.rank = g.rank
    where trains and parallel_kind = 'pp'
),
_programs as (
    select * from _ranks
    where trains or not exists (
        from _pipelines as p where p.run = _ranks.run and p.capture = _ranks.capture and p.rank = _ranks.rank
    )
)
select run, capture,
    list(rank order by rank) filter (where not trains) as ranks,
    list(rank order by rank) filter (where trains) as others
from _programs
group by run, capture
having bool_or(trains) and not bool_and(trains)
order by run, capture
