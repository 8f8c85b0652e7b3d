-- How much does a mean step move over each kind of link, how fast, and at which rank is it slowest?
--
-- The metric link_traffic, added up over ranks and steps. Bytes, times and counts are divided by all pairs of rank and
-- step whose links were measured, also those that moved nothing over this link; of a step that HCCL did not measure,
-- but in which the rank communicates, the traffic is unknown, and it is left out. Bandwidths are sums of bytes over
-- sums of times, of what has both: so is that of each rank, of which the slowest is named. Warm-up steps (job_steps)
-- are left out where others remain, and what lies outside of every step where there are steps.
--
-- title: Links of a mean step
-- meaning: Bytes and bandwidth of a rank's mean step by kind of link, and the slowest rank.
-- table: links
-- figure: links
--
--   run                      varchar  run of the training job
--   capture                  varchar  ranks profiled at the same time
--   link                     varchar  HCCS, RDMA, PCIE, SIO; SDMA where the kind is not recorded
--   kind                     varchar  parallel kind: tp, pp, dp, ep, ...
--   op_type                  varchar  allReduce, allToAllV, send, ...
--   rank_count               bigint   ranks that the means are over
--   step_count               bigint   steps that the means are over
--   rank_step_count          bigint   pairs of rank and step that the means are over
--   op_count                 double   operations that moved something over it
--   size_bytes               double   bytes moved
--   time_ns                  double   time of moving them, over all planes; NULL where unknown
--   bandwidth_bytes_per_s    double   size / time of what has both
--   peak_bytes_per_s         double   peak of the link, one way; NULL where none is published for the chip
--   peak_ratio               double   bandwidth / peak
--   packet_count             double   packets
--   small_time_ratio         double   share of the time that went into packets that are not large
--   unaligned_count          double   packets that are no multiple of 512 bytes
--   slowest_rank             integer  rank with the least bandwidth, the lowest of equals
--   slowest_bytes_per_s      double   its bandwidth
with
_measures as (
    select run, capture, rank, bool_or(basis = 'tasks') as has_tasks from link_traffic group by run, capture, rank
),
-- Tasks are those of all steps. HCCL's steps are those it tells times or links of.
_in_step as (
    select run, capture, rank, step from link_traffic
    union
    select run, capture, rank, step from comm_times
),
_pairs as (
    select s.run, s.capture, s.rank, s.step
    from step_summary as s
    join _measures as m on m.run = s.run and m.capture = s.capture and m.rank = s.rank
    left join _in_step as i on i.run = s.run and i.capture = s.capture and i.rank = s.rank
        and i.step is not distinct from s.step
    where has_tasks or i.rank is not null or communication_ns = 0
    union all
    from (
        select distinct run, capture, rank, step
        from link_traffic anti join (select distinct run, capture, rank from step_summary) using (run, capture, rank)
    )
),
_later
_over as (
    select run, capture,
        count(distinct rank) as rank_count, count(distinct step) as step_count, count(*) as rank_step_count
    from _later group by run, capture
),
_rows as (
    select t.*, case when time_ns > 0 then size_bytes end as timed_bytes
    from link_traffic as t
    join _later as p on p.run = t.run and p.capture = t.capture and p.rank = t.rank
        and p.step is not distinct from t.step
),
_of_rank as (
    select run, capture, link, kind, op_type, rank, sum(timed_bytes) * 1e9 / nullif(sum(time_ns), 0) as bytes_per_s
    from _rows group by run, capture, link, kind, op_type, rank
),
_slowest as (
    select run, capture, link, kind, op_type,
        min(bytes_per_s) as slowest_bytes_per_s,
        arg_min(rank, {'least': bytes_per_s, 'lowest': rank}) filter (where bytes_per_s is not null) as slowest_rank
    from _of_rank group by run, capture, link, kind, op_type
),
_sums as (
    select run, capture, link, kind, op_type,
        sum(op_count) as op_count,
        sum(size_bytes) as size_bytes,
        sum(time_ns) as time_ns,
        sum(timed_bytes) * 1e9 / nullif(sum(time_ns), 0) as bandwidth_bytes_per_s,
        median(bandwidth_bytes_per_s / peak_ratio) as peak_bytes_per_s,
        sum(packet_count) as packet_count,
        sum(small_time_ratio * time_ns) / nullif(sum(time_ns) filter (where small_time_ratio is not null), 0)
            as small_time_ratio,
        sum(unaligned_count) as unaligned_count
    from _rows group by run, capture, link, kind, op_type
)
select s.run, s.capture, s.link, s.kind, s.op_type,
    rank_count, step_count, rank_step_count,
    op_count / rank_step_count as op_count,
    size_bytes / rank_step_count as size_bytes,
    time_ns / rank_step_count as time_ns,
    bandwidth_bytes_per_s,
    peak_bytes_per_s,
    bandwidth_bytes_per_s / peak_bytes_per_s as peak_ratio,
    packet_count / rank_step_count as packet_count,
    small_time_ratio,
    unaligned_count / rank_step_count as unaligned_count,
    slowest_rank, slowest_bytes_per_s
from _sums as s
join _over as o on o.run = s.run and o.capture = s.capture
left join _slowest as w on w.run = s.run and w.capture = s.capture and w.link is not distinct from s.link
    and w.kind is not distinct from s.kind and w.op_type is not distinct from s.op_type
order by s.run, s.capture, sum(size_bytes) over (partition by s.run, s.capture, s.link) desc, size_bytes desc,
    s.link, s.kind, s.op_type
