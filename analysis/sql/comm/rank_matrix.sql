-- Which rank sends how much to which, over which link, for which parallel kind?
--
-- The metric pairs, added up over operations and groups of one kind. What both ends recorded counts once, as the source
-- recorded it. Where global ranks are unknown, a group and places in it stand in their stead.
--
-- title: Matrix of ranks
-- meaning: Bytes from each rank to each other by parallel kind and link.
-- command: comm --by matrix
-- table: rank_matrix
--
--   run                    varchar  run of the training job
--   capture                varchar  ranks profiled at the same time
--   step                   bigint   producer's step number; NULL: outside every step, or the capture has none
--   kind                   varchar  parallel kind: tp, pp, dp, ep, ...
--   src_rank               integer  global rank that sends
--   dst_rank               integer  global rank they go to
--   is_between_hosts       boolean  from one host to another; NULL where one of them is unknown
--   link                   varchar  HCCS, RDMA, PCIE, SIO, ...
--   size_bytes             double   bytes moved
--   time_ns                double   time of moving them; NULL where unknown
--   bandwidth_bytes_per_s  double   size / time of what has both
--   basis                  varchar  matrix or tasks
--   group_hash             varchar  communication group, where a global rank is unknown
--   src_group_rank         integer  position in it of the sender
--   dst_group_rank         integer  place in it they go to
with
_once as (
    select * from pair_summary
    qualify dense_rank() over (
        partition by run, capture, step, op_type, group_hash, src_group_rank, dst_group_rank, src_rank, dst_rank, link,
            -- Places in groups that nothing tells apart: what two ranks recorded are two transfers.
            case when group_hash is null and (src_rank is null or dst_rank is null) then rank end
        order by coalesce(rank = src_rank, false) desc, rank
    ) = 1
),
_places as (
    select *, case when src_rank is null or dst_rank is null then true end as in_group
    from _once left join group_kinds using (run, capture, group_hash)
),
_added as (
    select run, capture, step, coalesce(kind, 'unknown') as kind, src_rank, dst_rank, link, basis,
        case when in_group then group_hash end as group_hash,
        case when in_group then src_group_rank end as src_group_rank,
        case when in_group then dst_group_rank end as dst_group_rank,
        sum(size_bytes) as size_bytes,
        sum(time_ns) as time_ns,
        sum(size_bytes) filter (where time_ns > 0) * 1e9 / nullif(sum(time_ns), 0) as bandwidth_bytes_per_s
    from _places
    group by all
)
select a.run, a.capture, step, kind, src_rank, dst_rank, s.host <> d.host as is_between_hosts,
    link, size_bytes, time_ns, bandwidth_bytes_per_s, basis, group_hash, src_group_rank, dst_group_rank
from _added as a
left join rank_hosts as s on s.run = a.run and s.capture = a.capture and s.rank = a.src_rank
left join rank_hosts as d on d.run = a.run and d.capture = a.capture and d.rank = a.dst_rank
order by a.run, a.capture, step nulls last, size_bytes desc, kind, src_rank, dst_rank, src_group_rank, dst_group_rank, link
