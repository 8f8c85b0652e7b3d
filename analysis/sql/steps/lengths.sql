-- How long is each series of intervals as a union, and how much of that do kernels cover?
--
-- Part of the queries that ask: it stands where they say `_lengths`. From `_intervals` (rank_key, series, start_ns, end_ns;
-- a series belongs to one rank) and `_covering` (rank_key, start_ns, end_ns) it makes `_lengths` (series, union_ns,
-- covered_ns). Keys are integers, intervals have a length.
--
-- In order of start, an interval adds what reaches beyond the furthest end before it:
--   reach  ----------|          this one adds  [=====)
--   interval     [---------------)
-- So that one pass over sorted rows does for all series, an instant t of the n-th is taken as n * 2^64 + t: whatever
-- came before the n-th lies before all its instants. (`greatest` and `least` ignore NULLs: the reach of the first.)
_interval_reach as (
    select *, series * 18446744073709551616 as zero,
        max(series * 18446744073709551616 + end_ns) over (rows between unbounded preceding and current row) as reach
    from (select * from _intervals order by series, start_ns)
),
_pieces as (
    select rank_key, series, end_ns,
        cast(least(zero + end_ns, greatest(zero + start_ns, lag(reach) over ())) - zero as bigint) as start_ns
    from _interval_reach
),
_edges as (
    select rank_key, series, unnest([start_ns, end_ns]) as t_ns, unnest([-1, 1]) as sign
    from _pieces where end_ns > start_ns
),
-- How much is covered before each edge: one walk over kernels and edges in order of time. Between two neighbours no
-- kernel starts, so what is covered goes from the first of them to the furthest end so far.
_walk as (
    select series, sign, t_ns, rank_key * 18446744073709551616 + t_ns as instant,
        max(rank_key * 18446744073709551616 + end_ns) over (rows between unbounded preceding and current row) as reach
    from (
        select * from (
            select rank_key, start_ns as t_ns, end_ns, null as series, null as sign from _covering
            union all
            select rank_key, t_ns, null, series, sign from _edges
        ) order by rank_key, t_ns
    )
),
_after as (
    select series, sign, t_ns,
        cast(greatest(least(coalesce(reach, instant), lead(instant) over ()) - instant, 0) as bigint) as covered_ns
    from _walk
),
_before as (
    select series, sign, t_ns,
        sum(covered_ns) over (rows between unbounded preceding and current row) - covered_ns as covered_ns
    from _after
),
_lengths as materialized (
    select series,
        cast(sum(sign * t_ns) as bigint) as union_ns,
        cast(sum(sign * covered_ns) as bigint) as covered_ns
    from _before
    where sign is not null
    group by series
),
