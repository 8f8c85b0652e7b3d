-- What is each communication group of a capture for?
--
-- As the metadata of its members says. A group that none of them names has no row.
--
-- title: Groups
-- meaning: Purpose of each communication group.
--
--   run         varchar  run of the training job
--   capture     varchar  ranks profiled at the same time
--   group_hash  varchar  communication group
--   kind        varchar  parallel kind: tp, pp, dp, ep, ...; unknown where its label says nothing
with
_facts as (
    select run, capture, group_hash,
        coalesce(min(parallel_kind) filter (where parallel_kind <> 'unknown'), 'unknown') as kind
    from groups where group_hash is not null
    group by run, capture, group_hash
)
select run, capture, group_hash, kind from _facts order by run, capture, group_hash
