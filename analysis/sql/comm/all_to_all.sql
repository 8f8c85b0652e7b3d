-- How much do the all-to-alls of each group move between hosts?
--
-- Per step; a pair counts where its source recorded it. What was not recorded is missing from the bytes: they are the
-- group's only where as many ranks sent something as it has members. Hosts are NULL where one of them is unknown.
--
-- title: All-to-all between hosts
-- meaning: What all-to-alls move between hosts.
-- command: comm --by hierarchy
-- table: all_to_all
--
--   run                  varchar  run of the training job
--   capture              varchar  ranks profiled at the same time
--   kind                 varchar  parallel kind: ep, ...
--   group_hash           varchar  communication group
--   group_size           bigint   ranks of the group, by its metadata and by who sends to whom
--   rank_count           bigint   ranks that sent something and were recorded
--   host_count           bigint   hosts that the group's ranks run on
--   size_bytes           double   bytes moved per step
--   between_hosts_bytes  double   those from one host to another
with
_sizes as (
    select run, capture, group_hash, cast(max(len(global_ranks)) as bigint) as group_size
    from groups where group_hash is not null
    group by run, capture, group_hash
),
_moves as (
    select p.run, p.capture, p.step, p.group_hash, p.src_rank, p.dst_rank, s.host as src_host, d.host as dst_host, p.size_bytes
    from pair_summary as p
    left join rank_hosts as s on s.run = p.run and s.capture = p.capture and s.rank = p.src_rank
    left join rank_hosts as d on d.run = p.run and d.capture = p.capture and d.rank = p.dst_rank
    where starts_with(lower(op_type), 'alltoall') and p.rank = p.src_rank
),
_added as (
    select run, capture, coalesce(kind, 'unknown') as kind, group_hash,
        greatest(any_value(group_size), len(list_distinct(flatten(list([src_rank, dst_rank]))))) as group_size,
        count(distinct src_rank) as rank_count,
        bool_and(src_host is not null and dst_host is not null) as is_placed,
        len(list_distinct(flatten(list([src_host, dst_host])))) as host_count,
        sum(size_bytes) / count(distinct coalesce(step, -1)) as size_bytes,
        coalesce(sum(size_bytes) filter (where src_host <> dst_host), 0) / count(distinct coalesce(step, -1))
            as between_hosts_bytes
    from _moves
    left join group_kinds using (run, capture, group_hash)
    left join _sizes using (run, capture, group_hash)
    group by run, capture, kind, group_hash
)
select run, capture, kind, group_hash, group_size, rank_count,
    case when is_placed then host_count end as host_count, size_bytes,
    case when is_placed then between_hosts_bytes end as between_hosts_bytes
from _added
order by run, capture, between_hosts_bytes desc nulls last, group_hash
