-- What does a rank do in bins shorter than those that are kept, inside a short window of time?
--
-- The figures of timeline_bins from the events themselves, and for bins of any length. Not a metric: who asks says which
-- events (`{chosen}`, conditions on kernels and comm_ops) and how long bins are (`{width_ns}`). The first and the last
-- bins of what it gives reach beyond the window and are not whole.
--
--   rank              integer  global rank
--   bin_ns            bigint   start of the bin, a multiple of its length
--   computing_ns      hugeint  as in timeline_bins; NULL: none
--   communication_ns  hugeint  NULL: none
--   busy_ns           hugeint  in either
--   event_count       bigint   kernels and operations that end in the bin
with
_events as (
    select rank as rank_key, true as is_compute, start_ns, start_ns + dur_ns as end_ns
    from kernels where {chosen} and is_compute and dur_ns > 0
    union all
    select rank, false, start_ns, start_ns + dur_ns
    from comm_ops where {chosen} and dur_ns > 0
),
_bins as (
    select distinct rank_key, cast({width_ns} as bigint) as width_ns from _events
),
_covered_bins
_rows as (
    select rank_key as rank, bin_ns, computing_ns, communication_ns, busy_ns, event_count from _covered_bins
)
select * from _rows
