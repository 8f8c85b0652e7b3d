-- What is each communication group of a rank for, by the rank's own profile?
--
-- Part of the queries that ask: it stands where they say `_kinds`. From `_keys` (run, capture, rank, rank_key) it makes
-- `_kinds` (rank_key, group_hash, kind), at most one row per rank and group; groups without one are unknown. Other
-- sources of the same three columns can stand in its place: see resolved_kinds.sql and `Metric.sql_with`.
_kinds as (
    select rank_key, group_hash,
        coalesce(min(parallel_kind) filter (where parallel_kind <> 'unknown'), 'unknown') as kind
    from groups join _keys using (run, capture, rank)
    group by rank_key, group_hash
),
