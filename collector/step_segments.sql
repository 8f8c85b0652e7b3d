-- Steps' device ranges may overlap (a step's communication still runs while the next computes): an instant
-- belongs to the step that began last among those that cover it.
--     step 1  |=========|            segments: 1 up to where 2 begins, then 2
--     step 2        |========|
create or replace temp table _step_segments as
with ranges as (
    select step, coalesce(device_start_ns, window_start_ns) as start_ns,
        coalesce(device_end_ns, window_end_ns) as end_ns
    from steps
    where step is not null
), edges as (
    select start_ns as edge_ns from ranges union select end_ns from ranges
), pieces as (
    select edge_ns as start_ns, lead(edge_ns) over (order by edge_ns) as end_ns from edges
)
select p.start_ns, p.end_ns, arg_max(r.step, (r.start_ns, r.step)) as step
from pieces p join ranges r on r.start_ns <= p.start_ns and p.end_ns <= r.end_ns
where p.end_ns is not null
group by all;
