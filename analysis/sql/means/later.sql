-- Which pairs of rank and step are means over?
--
-- Part of the queries that ask: it stands where they say `_later`. From `_pairs` (run, capture, rank, step, ...: those of
-- which the figures are known) it makes `_later`, the same rows without warm-up steps (job_steps) where others remain, and
-- without what lies outside of every step where there are steps.
_marked as (
    select p.*, coalesce(is_warm_up, false) as is_warm_up
    from _pairs as p
    left join job_steps as j on j.run = p.run and j.capture = p.capture and j.step is not distinct from p.step
    qualify p.step is not null or not bool_or(p.step is not null) over (partition by p.run, p.capture)
),
_later as (
    select * from _marked
    qualify not is_warm_up or bool_and(is_warm_up) over (partition by run, capture)
),
