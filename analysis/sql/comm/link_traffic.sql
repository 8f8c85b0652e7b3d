-- How much does each parallel kind move over each kind of link, and how fast, against the link's peak?
--
-- The metric links, added up over groups of one kind. The peak is that of one link, one way, published for the chip;
-- of chips nothing was published of, it is unknown.
--
-- title: Traffic by link
-- meaning: Bytes and bandwidth of each parallel kind by link, against the link's peak.
-- command: comm --by link
-- table: link_traffic
--
--   run                    varchar  run of the training job
--   capture                varchar  ranks profiled at the same time
--   rank                   integer  global rank
--   step                   bigint   producer's step number; NULL: outside every step, or the capture has none
--   kind                   varchar  parallel kind: tp, pp, dp, ep, ...
--   op_type                varchar  allReduce, allToAllV, send, ...
--   link                   varchar  HCCS, RDMA, PCIE, SIO; SDMA where the kind is not recorded
--   size_bytes             double   bytes moved
--   time_ns                double   time of moving them, over all planes; NULL where unknown
--   bandwidth_bytes_per_s  double   size / time of what has both
--   peak_ratio             double   bandwidth / peak of the link
--   op_count               bigint   operations that moved something over it
--   packet_count           bigint   packets
--   large_packet_ratio     double   share of the packets that are large
--   small_time_ratio       double   share of the time that went into packets that are not large
--   unaligned_count        bigint   packets that are no multiple of 512 bytes
--   basis                  varchar  hccl or tasks
with
-- Seven HCCS links of 56 GB/s both ways in a full mesh of eight, and RoCE of 200 Gbit/s for each NPU.
_peaks(chip, link, peak_bytes_per_s) as (
    values ('Ascend910B', 'HCCS', 28e9::double), ('Ascend910B', 'RDMA', 25e9::double)
),
_chips as (
    select run, capture, rank, any_value(chip_name) as chip_name from ranks group by run, capture, rank
),
_moves as (
    select run, capture, rank, step, coalesce(kind, 'unknown') as kind, op_type, link, basis,
        cast(sum(op_count) as bigint) as op_count,
        sum(size_bytes) as size_bytes,
        sum(time_ns) as time_ns,
        sum(size_bytes) filter (where time_ns > 0) * 1e9 / nullif(sum(time_ns), 0) as bandwidth_bytes_per_s,
        cast(sum(packet_count) as bigint) as packet_count,
        sum(large_packet_ratio * packet_count)
            / nullif(sum(packet_count) filter (where large_packet_ratio is not null), 0) as large_packet_ratio,
        sum(small_time_ratio * time_ns)
            / nullif(sum(time_ns) filter (where small_time_ratio is not null), 0) as small_time_ratio,
        cast(sum(unaligned_count) as bigint) as unaligned_count
    from link_summary left join group_kinds using (run, capture, group_hash)
    group by run, capture, rank, step, kind, op_type, link, basis
)
select m.run, m.capture, m.rank, step, kind, op_type, m.link, size_bytes, time_ns,
    bandwidth_bytes_per_s, bandwidth_bytes_per_s / peak_bytes_per_s as peak_ratio,
    op_count, packet_count, large_packet_ratio, small_time_ratio, unaligned_count, basis
from _moves as m
left join _chips as c on c.run = m.run and c.capture = m.capture and c.rank = m.rank
left join _peaks as p on p.link = m.link and starts_with(c.chip_name, p.chip)
order by m.run, m.capture, m.rank, step nulls last, size_bytes desc, kind, op_type, m.link
