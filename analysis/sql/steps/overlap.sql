-- What does a rank do at each moment of each step?
--
-- Pieces of one rank's time, for a picture of what the breakdown of steps counts. Of a step, pieces named computing,
-- exposed communication, masked communication and free add up to computing_ns, exposed_communication_ns, overlapped_ns
-- and free_ns of steps. A masked piece overlaps a computing one. Where
-- overlap is unknown, pieces are named communication. Steps that overlap lie on lanes of
-- their own; so does what the rank did outside of all steps, which has no free pieces. No two masked pieces of a lane
-- overlap, and no two others.
--
-- Not a metric: lanes.py says of which rank and from when to when, and whether it knows what computes, and fills
-- overlap_labels with the rank's steps.
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
-- As numbers, which take less room: a place in the list of names below, and whether any kernel hides communication.
-- Labels are odd where free time is known. (A join would not keep the order of rows.)
_states as (
    select lane, cast(label as integer) as label, t_ns,
        cast(case when own_kernels > 0 then 1
            when ops > 0 and not getvariable('overlap_knows_compute') then 2
            when ops > 0 and kernels > 0 then 0
            when ops > 0 then 3
            when label % 2 = 1 then 4
            else 0 end as tinyint) as state,
        cast(ops > 0 and kernels > 0 as tinyint) as masked
    from (
        select *, lead(t_ns) over () is distinct from t_ns or lead(lane) over () is distinct from lane as is_last
        from _walk
    )
    where is_last
),
-- A piece is known when it ends: it began with the last change before.
_changes as (
    select *, is_other or state is distinct from last_state as ends_state, is_other or masked <> last_masked as ends_mask
    from (
        select *, lag(label) over () as last_label, lag(state) over () as last_state, lag(masked) over () as last_masked,
            label is distinct from lag(label) over () as is_other
        from _states
    )
),
_began as (
    select t_ns, last_label,
        case when ends_state then last_state end as state,
        case when ends_state and last_state > 0 then lag(state_began) over () - zero end as state_began_ns,
        case when ends_mask then last_masked end as masked,
        case when ends_mask and last_masked > 0 then lag(mask_began) over () - zero end as mask_began_ns
    from (
        select *, lane * 18446744073709551616 as zero,
            max(case when ends_state then lane * 18446744073709551616 + t_ns end) over _so_far as state_began,
            max(case when ends_mask then lane * 18446744073709551616 + t_ns end) over _so_far as mask_began
        from _changes
        window _so_far as (rows between unbounded preceding and current row)
    )
),
_pieces as (
    select last_label as label, t_ns as end_ns,
        unnest([state, 5 * masked]) as state,
        unnest([cast(state_began_ns as bigint), cast(mask_began_ns as bigint)]) as start_ns
    from _began
    where state > 0 or masked > 0
)
select label,
    ['computing', 'communication', 'exposed communication', 'free', 'masked communication'][state] as name,
    start_ns, end_ns
from _pieces
where state > 0
