-- What does a rank do at each instant of each step?
--
-- Pieces of one rank's time, for a picture of what the breakdown of steps counts. Of a step, pieces named computing,
-- exposed communication, masked communication and free add up to computing_ns, exposed_communication_ns, overlapped_ns
-- and free_ns of steps. A masked piece lies beside the others, not between them: what hides it is computing. Where
-- nothing tells what covers communication, its pieces are named communication. Steps that overlap lie on lanes of
-- their own; so does what the rank did outside of all steps, which has no free pieces. No two masked pieces of a lane
-- overlap, and no two others.
--
-- Not a metric: overlap.py says of which rank and from when to when, and fills overlap_labels with the rank's steps.
--
--   label     bigint   step or what is outside of all, as in overlap_labels
--   name      varchar  what the rank does
--   start_ns  bigint   cut at the asked range, as end_ns
--   end_ns    bigint   end of the piece
with
_lanes as (
    select distinct lane from overlap_labels
),
-- Every lane has all kernels, because any may cover its communication, and knows which are its own.
_intervals as (
    select l.lane, start_ns, end_ns, 1 as kernel, cast(k.lane is not distinct from l.lane as integer) as own_kernel,
        0 as op, 0 as label
    from (
        select start_ns, start_ns + dur_ns as end_ns, lane
        from kernels as k left join (select step, lane from overlap_labels) as o on o.step is not distinct from k.step
        where run = getvariable('overlap_run') and capture = getvariable('overlap_capture')
            and rank = getvariable('overlap_rank')
            and is_compute and dur_ns > 0 and start_ns < getvariable('overlap_to_ns')
    ) as k
    cross join _lanes as l
    union all
    select lane, start_ns, start_ns + dur_ns, 0, 0, 1, 0
    from comm_ops as c join (select step, lane from overlap_labels) as o on o.step is not distinct from c.step
    where run = getvariable('overlap_run') and capture = getvariable('overlap_capture')
        and rank = getvariable('overlap_rank')
        and dur_ns > 0 and start_ns < getvariable('overlap_to_ns')
    union all
    select lane, start_ns, end_ns, 0, 0, 0, label from overlap_labels
),
_edges as (
    select lane, unnest([start_ns, end_ns]) as t_ns, unnest([kernel, -kernel]) as kernel,
        unnest([own_kernel, -own_kernel]) as own_kernel, unnest([op, -op]) as op, unnest([label, -label]) as label
    from (
        select * replace (
            greatest(start_ns, getvariable('overlap_from_ns')) as start_ns,
            least(end_ns, getvariable('overlap_to_ns')) as end_ns
        )
        from _intervals
    )
    where start_ns < end_ns
),
-- What runs after each edge. Everything has ended before the next lane begins.
_walk as (
    select lane, t_ns,
        sum(kernel) over _so_far as kernels,
        sum(own_kernel) over _so_far as own_kernels,
        sum(op) over _so_far as ops,
        cast(sum(label) over _so_far as bigint) as label
    from (select * from _edges order by lane, t_ns)
    window _so_far as (rows between unbounded preceding and current row)
),
-- As numbers, which take a quarter of the room: a place in the list of names below, and whether any kernel hides
-- communication of the lane.
_states as (
    select cast(label as integer) as label, t_ns,
        cast(case when own_kernels > 0 then 1
            when ops > 0 and not knows_compute then 2
            when ops > 0 and kernels > 0 then 0
            when ops > 0 then 3
            when has_free then 4
            else 0 end as tinyint) as state,
        ops > 0 and kernels > 0 as is_masked
    from (
        select *, lead(t_ns) over () is distinct from t_ns or lead(lane) over () is distinct from lane as is_last
        from _walk
    )
    left join (select label, knows_compute, has_free from overlap_labels) using (label)
    where is_last
),
_changes as materialized (
    select label, state, is_masked, t_ns, is_other_state, is_other_mask
    from (
        select label, state, is_masked, t_ns,
            is_other_label or state is distinct from lag(state) over () as is_other_state,
            is_other_label or is_masked is distinct from lag(is_masked) over () as is_other_mask
        from (select *, label is distinct from lag(label) over () as is_other_label from _states)
    )
    where is_other_state or is_other_mask
)
select label, ['computing', 'communication', 'exposed communication', 'free'][state] as name, t_ns as start_ns, end_ns
from (select label, state, t_ns, lead(t_ns) over () as end_ns from _changes where is_other_state)
where state > 0
union all
select label, 'masked communication', t_ns, end_ns
from (select label, is_masked, t_ns, lead(t_ns) over () as end_ns from _changes where is_other_mask)
where is_masked
