-- What is each communication group of a rank for, by all ranks of its capture together?
--
-- In place of kinds.sql, where a table `capture_groups` (run, capture, group_hash, kind) says it.
_kinds as (
    select rank_key, group_hash, coalesce(min(kind) filter (where kind <> 'unknown'), 'unknown') as kind
    from capture_groups join _keys using (run, capture)
    group by rank_key, group_hash
),
