-- How much does communication move over each kind of link, and how fast?
--
-- Operations of one type and group in one step of one rank. Bytes and times are those HCCL measured (basis hccl), over
-- all planes; of a rank where it measured none, those of its tasks (basis tasks): copies and reductions that SDMA
-- carried to another chip. RDMA sends have bytes there, but no time: their tasks end before the bytes arrive. SDMA is
-- HCCS, PCIE and SIO added up, and left out where one of them is there. Times of links that work at the same time are
-- added up, so the bandwidth is that of a single link. Packets are large from 32 MB (RDMA: 0.5 MB), HCCL's own limits;
-- an unaligned one is no multiple of 512 bytes.
--
-- title: Links
-- meaning: Bytes, time and packets of communication by kind of link.
-- view: link_summary
-- rows from: comm_links, comm_tasks
--
--   run                    varchar  run of the training job
--   capture                varchar  ranks profiled at the same time
--   rank                   integer  global rank
--   step                   bigint   producer's step number; NULL: outside every step, or the capture has none
--   op_type                varchar  allReduce, allToAllV, send, ...
--   group_hash             varchar  communication group
--   link                   varchar  HCCS, RDMA, PCIE, SIO; SDMA where the kind is not recorded
--   basis                  varchar  hccl or tasks
--   op_count               bigint   operations that moved something over it
--   size_bytes             double   bytes moved
--   time_ns                double   time of moving them, over all planes; NULL where unknown
--   bandwidth_bytes_per_s  double   size / time of what has both
--   packet_count           bigint   packets
--   large_packet_ratio     double   share of the packets that are large
--   small_time_ratio       double   share of the time that went into packets that are not large
--   unaligned_count        bigint   packets that are no multiple of 512 bytes
with
_measures as (
    select run, capture, rank, step, op_type, group_hash, link, name, size_bytes, time_ns, packets,
        bool_or(link in ('HCCS', 'PCIE', 'SIO')) over (partition by run, capture, rank, step, name, group_hash)
            as has_parts
    from comm_links
    where size_bytes > 0
),
_from_hccl as (
    select run, capture, rank, step, op_type, group_hash, link, 'hccl' as basis, name,
        size_bytes, time_ns,
        list_sum(list_transform(packets, lambda p: p.packet_count)) as packet_count,
        list_sum(list_transform(packets,
            lambda p: case when p.size_bytes >= if(link = 'RDMA', 500000, 32000000) then p.packet_count else 0 end))
            as large_count,
        list_sum(list_transform(packets, lambda p: p.time_ns)) as packets_ns,
        list_sum(list_transform(packets,
            lambda p: case when p.size_bytes < if(link = 'RDMA', 500000, 32000000) then p.time_ns else 0 end))
            as small_ns,
        list_sum(list_transform(packets,
            lambda p: case when cast(round(p.size_bytes) as bigint) % 512 <> 0 then p.packet_count else 0 end))
            as unaligned_count
    from _measures
    where link <> 'SDMA' or not has_parts
),
_moves as (
    select run, capture, rank, op_id, size_bytes, dur_ns,
        case when transport = 'RDMA' then 'RDMA' when link = 'HCCS_SW' then 'HCCS' else coalesce(link, 'SDMA') end as link
    from comm_tasks
    anti join (select distinct run, capture, rank from comm_links) using (run, capture, rank)
    where size_bytes > 0 and (
        transport = 'SDMA' and task_type in ('Memcpy', 'Reduce_Inline') and coalesce(link, '') <> 'ON_CHIP'
        or transport = 'RDMA' and rdma_type = 'RDMA_SEND_PAYLOAD'
    )
),
_from_tasks as (
    select run, capture, rank, step, op_type, group_hash, m.link, 'tasks' as basis,
        concat(o.name, ' ', op_id) as name,
        cast(m.size_bytes as double) as size_bytes,
        case when m.link <> 'RDMA' then cast(m.dur_ns as double) end as time_ns,
        1 as packet_count,
        cast(m.size_bytes >= if(m.link = 'RDMA', 500000, 32000000) as integer) as large_count,
        case when m.link <> 'RDMA' then cast(m.dur_ns as double) end as packets_ns,
        case when m.link = 'RDMA' then null when m.size_bytes < 32000000 then cast(m.dur_ns as double) else 0 end
            as small_ns,
        cast(m.size_bytes % 512 <> 0 as integer) as unaligned_count
    from _moves as m
    join comm_ops as o using (run, capture, rank, op_id)
)
select run, capture, rank, step, op_type, group_hash, link, basis,
    count(distinct name) as op_count,
    sum(size_bytes) as size_bytes,
    sum(time_ns) as time_ns,
    sum(size_bytes) filter (where time_ns > 0) * 1e9 / nullif(sum(time_ns), 0) as bandwidth_bytes_per_s,
    cast(sum(packet_count) as bigint) as packet_count,
    sum(large_count) / nullif(sum(packet_count), 0) as large_packet_ratio,
    sum(small_ns) / nullif(sum(packets_ns), 0) as small_time_ratio,
    cast(sum(unaligned_count) as bigint) as unaligned_count
from (select * from _from_hccl union all select * from _from_tasks)
group by run, capture, rank, step, op_type, group_hash, link, basis
order by run, capture, rank, step nulls last, op_type, group_hash, link
