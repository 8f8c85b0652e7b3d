-- Which ranks does a group without a list of members talk to?
--
-- Global ranks by the link matrix, positions in the group by the tasks of its operations, and its size where the
-- operations themselves say it.
with
_open as (select distinct group_hash from _group_rows where global_ranks is null and group_hash is not null),
_links as (
    select group_hash, list_sort(list_distinct(list(rank_met))) as matrix_ranks
    from (
        select group_hash, unnest([src_rank, dst_rank]) as rank_met from comm_matrix join _open using (group_hash)
    )
    where rank_met is not null group by group_hash
),
_positions as (
    select group_hash, count(distinct position) as position_count, count(distinct rank) as rank_count
    from (
        select group_hash, rank, unnest([src_group_rank, dst_group_rank]) as position
        from comm_tasks join _open using (group_hash)
    )
    where position is not null group by group_hash
),
_sizes as (
    select group_hash, max(group_size) as told_size from comm_ops join _open using (group_hash) group by group_hash
)
select group_hash, matrix_ranks, position_count, rank_count, told_size
from _open
left join _links using (group_hash)
left join _positions using (group_hash)
left join _sizes using (group_hash)
