-- How much do the all-to-alls of each group move between hosts?
--
-- Per step, over the ranks of the group that were recorded; a pair counts where its source recorded it.
--
--   run                  varchar  run of the training job
--   capture              varchar  ranks profiled at the same time
--   kind                 varchar  parallel kind: ep, ...
--   group_hash           varchar  communication group
--   rank_count           bigint   ranks that sent something
--   host_count           bigint   hosts they run on
--   size_bytes           double   bytes moved per step
--   between_hosts_bytes  double   those from one host to another
with
_moved as (
    select p.run, p.capture, p.step, p.group_hash, p.src_rank, s.host as src_host, d.host as dst_host, p.size_bytes
    from pair_summary as p
    join rank_hosts as s on s.run = p.run and s.capture = p.capture and s.rank = p.src_rank
    join rank_hosts as d on d.run = p.run and d.capture = p.capture and d.rank = p.dst_rank
    where starts_with(lower(op_type), 'alltoall') and p.rank = p.src_rank
),
_added as (
    select run, capture, coalesce(kind, 'unknown') as kind, group_hash,
        count(distinct src_rank) as rank_count,
        count(distinct src_host) as host_count,
        sum(size_bytes) / count(distinct coalesce(step, -1)) as size_bytes,
        coalesce(sum(size_bytes) filter (where src_host <> dst_host), 0) / count(distinct coalesce(step, -1))
            as between_hosts_bytes
    from _moved left join group_kinds using (run, capture, group_hash)
    group by run, capture, kind, group_hash
)
select * from _added order by run, capture, between_hosts_bytes desc, group_hash
