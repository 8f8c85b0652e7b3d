-- For each rank of the views: its pipeline stage, and for how long a step it did not wait for other ranks.
--
--   rank    integer
--   stage   integer  pipeline coordinate; else its place in the largest pp group; 0 where neither is known
--   own_ns  double   computing + free of a step by the producer's table, the mean over the steps that every
--                    rank has; NULL where unknown. What is left of a step is communication that nothing hides:
--                    there a fast rank waits for a slow one, so that whole steps take equally long on both.
with
_own_device as (
    select t.*
    from profiler_steps t left join ranks r using (rank)
    qualify dense_rank() over (
        partition by t.rank, t.step
        order by t.device_id is not distinct from r.device_id desc, t.device_id
    ) = 1
),
_times as (
    select rank, step, max(computing_ns + free_ns) as own_ns
    from _own_device where computing_ns + free_ns > 0
    group by rank, step
),
_shares as (
    select step from _times group by step
    having count(distinct rank) = (select count(distinct rank) from _times)
),
_own as (
    select rank, avg(own_ns) as own_ns
    from _times
    where exists (from _shares where _shares.step is not distinct from _times.step)
        or not exists (from _shares)
    group by rank
),
_place as (
    select rank, group_rank
    from groups where parallel_kind = 'pp' and group_rank is not null
    qualify row_number() over (partition by rank order by len(global_ranks) desc, group_hash) = 1
)
select ranks.rank, coalesce(ranks.pp_rank, _place.group_rank, 0) as stage, _own.own_ns
from ranks
left join _place on _place.rank = ranks.rank
left join _own on _own.rank = ranks.rank
order by ranks.rank
