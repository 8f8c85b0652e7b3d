-- Which of an operation's repeats did HCCL measure: the n-th of its step, or the n-th of the capture?
--
-- Part of the queries that ask: it stands where they say `_repeats`. From `_sightings` (rank_key, group_hash, name, step: a
-- row for each operation of the timeline) and `_hccl` (the same for what HCCL tells) it makes `_in_step` (rank_key,
-- group_hash, name): names whose n-th in a step is HCCL's n-th of this step. Of others the n-th is that of the capture.
--
-- A name repeats from step to step, and of some steps HCCL may tell nothing: these count for nothing in others. But
-- HCCL and the timeline may draw a step's edge differently, so that an operation stands in one step here and in the
-- next one there. Then the name repeats as often in the capture, not in each step, and its order alone tells which is
-- which. So it does where a step is unknown: of anything HCCL tells, or of all that the timeline does.
--   HCCL       -  1  1      1  1  1       HCCL      1  1  1
--   timeline   1  1  1      -  1  1       timeline  1  0  2
--              by step      by step                 by order
_in_step as (
    select rank_key, group_hash, name
    from (
        select rank_key, group_hash, name, step, sum(seen) as seen, sum(told) as told
        from (
            select rank_key, group_hash, name, step, 1 as seen, 0 as told from _sightings
            union all
            select rank_key, group_hash, name, step, 0, 1 from _hccl
        )
        group by rank_key, group_hash, name, step
    )
    group by rank_key, group_hash, name
    having sum(told) > 0
        and coalesce(sum(told) filter (where step is null), 0) = 0
        and sum(seen) filter (where step is not null) > 0
        and (sum(seen) <> sum(told) or bool_and(seen = told))
),
