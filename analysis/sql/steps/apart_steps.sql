-- Which ranks do not step together with the others of their capture: each of their steps lasts half as long again?
--
-- From its first activity to the next step's, so that clocks do not matter. Ranks of one job wait for each other, so
-- that steps of a number last about as long on all of them; programs beside each other (training, and what generates
-- for it) number theirs on their own.
--
--   run           varchar    run of the training job
--   capture       varchar    ranks profiled at the same time
--   ranks         integer[]  such ranks
--   step_ns       double     mean length of their steps
--   others        integer[]  the ranks whose steps are shorter
--   of_others_ns  double     mean length of the same steps there
with
_shares as (
    select *, min(step_ns) over (partition by run, capture, step) as shortest_ns
    from step_lengths
    where length_basis = 'to_next' and step is not null
    qualify count(*) over (partition by run, capture, step) > 1
),
_ranks as (
    select run, capture, rank, avg(step_ns) as mean_ns, min(step_ns - 1.5 * shortest_ns) > 0 as is_apart
    from _shares
    group by run, capture, rank
    having count(*) > 1
)
select run, capture,
    list(rank order by rank) filter (where is_apart) as ranks,
    avg(mean_ns) filter (where is_apart) as step_ns,
    list(rank order by rank) filter (where not is_apart) as others,
    avg(mean_ns) filter (where not is_apart) as of_others_ns
from _ranks
group by run, capture
having bool_or(is_apart)
order by run, capture
