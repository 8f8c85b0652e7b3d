-- How much of each bin of time do kernels, operations, and both together cover?
--
-- Part of the queries that ask: it stands where they say `_covered_bins`. From `_events` (rank_key, is_compute, start_ns,
-- end_ns; intervals have a length) and `_bins` (rank_key, width_ns) it makes `_covered_bins` (rank_key, bin_ns,
-- computing_ns, communication_ns, busy_ns, event_count): unions cut at multiples of width_ns, bin_ns being the first
-- moment of the bin. event_count: events that end in the bin.
--
-- In order of start, an event adds to a union what reaches beyond the furthest end before it, which is always its own
-- last part. As the union of both lacks what the two share, what overlaps follows: computing + communication - busy.
-- So that one pass over sorted rows does for all ranks, an instant t of rank n is taken as n * 2^64 + t. (`greatest`
-- and `least` ignore NULLs: the reach of the first.)
_reached as (
    select rank_key, is_compute, start_ns, end_ns,
        rank_key * 18446744073709551616 as zero,
        max(rank_key * 18446744073709551616 + end_ns) over _until as reach,
        max(case when is_compute then rank_key * 18446744073709551616 + end_ns end) over _until as compute_reach,
        max(case when not is_compute then rank_key * 18446744073709551616 + end_ns end) over _until as op_reach
    from (select * from _events order by rank_key, start_ns)
    window _until as (rows between unbounded preceding and current row)
),
_own as (
    select rank_key, is_compute, end_ns,
        cast(greatest(zero + end_ns - greatest(zero + start_ns, lag(reach) over ()), 0) as bigint) as busy_ns,
        cast(greatest(zero + end_ns - greatest(
            zero + start_ns, case when is_compute then lag(compute_reach) over () else lag(op_reach) over () end
        ), 0) as bigint) as own_ns
    from _reached
),
_binned as (
    select rank_key, is_compute, width_ns, end_ns, busy_ns, own_ns,
        end_ns - 1 - ((end_ns - 1) % width_ns + width_ns) % width_ns as last_bin_ns
    from _own join _bins using (rank_key)
),
-- Few reach into several bins: an event is put into each of them, the others stay as they are.
_parts as (
    select rank_key, is_compute, width_ns, end_ns, busy_ns, own_ns, last_bin_ns,
        case when end_ns - own_ns >= last_bin_ns then 0 else unnest(
            case when end_ns - own_ns >= last_bin_ns then [0]
            else range((last_bin_ns - end_ns + own_ns + width_ns - 1) // width_ns + 1) end
        ) end as back
    from _binned
),
_covered_bins as materialized (
    select rank_key, last_bin_ns - back * width_ns as bin_ns,
        sum(own_in_bin_ns) filter (where is_compute) as computing_ns,
        sum(own_in_bin_ns) filter (where not is_compute) as communication_ns,
        sum(busy_in_bin_ns) as busy_ns,
        count(*) filter (where back = 0) as event_count
    from (
        select *, 
            least(end_ns, last_bin_ns - (back - 1) * width_ns) - greatest(
                end_ns - own_ns, last_bin_ns - back * width_ns) as own_in_bin_ns,
            greatest(least(end_ns, last_bin_ns - (back - 1) * width_ns) - greatest(
                end_ns - busy_ns, last_bin_ns - back * width_ns), 0) as busy_in_bin_ns
        from _parts
    )
    group by all
),
