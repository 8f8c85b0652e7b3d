-- Which rank sends how much to which, over which link, how fast?
--
-- What each rank recorded of its own links, added up over the operations of one type and group in one step. From the
-- profiler's link matrix (basis matrix): its sums, or single operations in old exports, never its samples of best and
-- worst operations. Of a rank without one, from the tasks of its operations (basis tasks), where RDMA has bytes but no
-- time. Copies inside a chip are left out. Ranks are global; NULL where the members of the group are unknown, then
-- only places in the group are there.
--
-- title: Pairs of ranks
-- meaning: Bytes and time from each rank to each other, by link.
-- view: pair_summary
-- rows from: comm_matrix, comm_tasks
--
--   run                    varchar  run of the training job
--   capture                varchar  ranks profiled at the same time
--   rank                   integer  global rank that recorded it
--   step                   bigint   producer's step number; NULL: outside every step, or the capture has none
--   op_type                varchar  allReduce, allToAllV, send, ...
--   group_hash             varchar  communication group
--   src_rank               integer  global rank that sends
--   dst_rank               integer  global rank they go to
--   src_group_rank         integer  its place in the group
--   dst_group_rank         integer  its place in the group
--   link                   varchar  HCCS, RDMA, PCIE, SIO, ...
--   basis                  varchar  matrix or tasks
--   size_bytes             double   bytes moved
--   time_ns                double   time of moving them; NULL where unknown
--   bandwidth_bytes_per_s  double   size / time of what has both
with
_facts as (
    select run, capture, rank, step, op_type, group_hash, src_rank, dst_rank, src_group_rank, dst_group_rank, link,
        'matrix' as basis, size_bytes, time_ns
    from comm_matrix
    where variant in ('total', 'op') and size_bytes > 0 and link <> 'LOCAL'
        and coalesce(src_group_rank <> dst_group_rank, src_rank <> dst_rank, true)
),
_moves as (
    select t.run, t.capture, t.rank, o.step, o.op_type, o.group_hash,
        t.src_rank, t.dst_rank, t.src_group_rank, t.dst_group_rank,
        case when t.transport = 'RDMA' then 'RDMA' when t.link = 'HCCS_SW' then 'HCCS' else t.link end as link,
        'tasks' as basis,
        cast(t.size_bytes as double) as size_bytes,
        case when t.transport <> 'RDMA' then cast(t.dur_ns as double) end as time_ns
    from comm_tasks as t
    anti join (select distinct run, capture, rank from comm_matrix) as m using (run, capture, rank)
    join comm_ops as o on o.run = t.run and o.capture = t.capture and o.rank = t.rank and o.op_id = t.op_id
    where t.size_bytes > 0 and coalesce(t.src_group_rank <> t.dst_group_rank, t.src_rank <> t.dst_rank, true) and (
        t.transport = 'SDMA' and t.task_type in ('Memcpy', 'Reduce_Inline') and coalesce(t.link, '') <> 'ON_CHIP'
        or t.transport = 'RDMA' and t.rdma_type = 'RDMA_SEND_PAYLOAD'
    )
)
select run, capture, rank, step, op_type, group_hash, src_rank, dst_rank, src_group_rank, dst_group_rank, link, basis,
    sum(size_bytes) as size_bytes,
    sum(time_ns) as time_ns,
    sum(size_bytes) filter (where time_ns > 0) * 1e9 / nullif(sum(time_ns), 0) as bandwidth_bytes_per_s
from (select * from _facts union all select * from _moves)
group by all
order by run, capture, rank, step nulls last, op_type, group_hash, src_group_rank, dst_group_rank, link
