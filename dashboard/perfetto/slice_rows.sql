-- Which slices of a kind cannot stand on the first row of their track? Each statement is run by slice_rows.py.

-- name: keys
create or replace temp table timeline_keys as
select cast(row_number() over (order by key_a, key_b) as integer) as track, key_a, key_b
from (select distinct cast(key_a as bigint) as key_a, cast(key_b as bigint) as key_b from (_source));

-- name: spans
create or replace temp view timeline_spans as
select track, start_ns, end_ns
from (_source) as s join timeline_keys as k
    on k.key_a is not distinct from s.key_a and k.key_b is not distinct from s.key_b;

-- name: moved
create or replace temp table timeline_moved (track integer, start_ns bigint, end_ns bigint, lane integer);

-- name: overlapping
-- Slices that begin before all earlier ones of their track have ended, and the one that each such run begins with.
-- An instant t of track n is taken as n * 2^64 + t, so that one pass does for all tracks.
create or replace temp table timeline_asked as
select track, start_ns, end_ns
from (
    select *, begins_inside or lead(begins_inside) over () as is_asked
    from (
        select track, start_ns, end_ns,
            coalesce(track * 18446744073709551616 + start_ns < lag(reach) over (), false) as begins_inside
        from (
            select *, max(track * 18446744073709551616 + end_ns)
                over (rows between unbounded preceding and current row) as reach
            from (select * from timeline_spans order by track, start_ns, end_ns desc)
        )
    )
)
where is_asked
order by track, start_ns, end_ns desc;

-- name: edges
-- For every slice, count those open before its start and after its end. One that holds it counts twice, one inside it
-- or beside it never. Of two that cross, the first counts for the second's start, the second for the first's end:
--     first  [=======)           sum of start * (open before the start - open after the end) over all slices
--     second      [======)       = sum of (start of the second - start of the first) over all pairs that cross
-- It is 0 where no two cross, and nowhere else. Ends come before starts, inner ends before outer ones.
create or replace temp view timeline_edges as
select track, t_ns, sign = 1 and open_before = 0 as begins,
    cast(start_ns - getvariable('timeline_zero_ns') as hugeint)
        * case when sign = 1 then open_before else 1 - open_before end as crossed
from (
    select *, sum(sign) over (rows between unbounded preceding and current row) - sign as open_before
    from (
        select track, unnest([start_ns, end_ns]) as t_ns, unnest([1, -1]) as sign, start_ns
        from timeline_spans
        where start_ns < end_ns
        order by track, t_ns, sign, case when sign < 0 then -start_ns end
    )
);

-- name: crossed_tracks
create or replace temp table timeline_crossed as
select track from timeline_edges group by track having sum(crossed) <> 0;

-- name: crossing
-- Slices of stretches, from one moment with nothing open to the next, in which some cross.
create or replace temp table timeline_asked as
with _stretches as (
    select track, min(t_ns) as from_ns, max(t_ns) as to_ns
    from (
        select *, sum(cast(begins as integer)) over (rows between unbounded preceding and current row) as stretch
        from timeline_edges
    )
    where track in (select track from timeline_crossed)
    group by track, stretch
    having sum(crossed) <> 0
)
select s.track, start_ns, end_ns
from timeline_spans as s asof join _stretches as t on t.track = s.track and s.start_ns >= t.from_ns
where start_ns < end_ns and start_ns < to_ns
order by s.track, start_ns, end_ns desc;
