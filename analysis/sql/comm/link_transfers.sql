-- How fast does data move between each two ranks, by link type and size of the message?
--
-- Tasks that move data to another rank, gathered by link, type of task and size: messages of one class lie
-- between 2^class and 2^(class + 1) bytes. Where a rank has no tasks, its link matrix stands in: a row of it
-- counts as one transfer of all its bytes. The link is named as in the source (HCCS, ROCE, PCIE, SIO, RDMA, ...).
--
-- title: Transfers between ranks
-- meaning: Rates between each two ranks, by link type and size of the message.
-- rows from: comm_tasks, comm_matrix
--
--   run          varchar  run of the training job
--   capture      varchar  ranks profiled at the same time
--   rank         integer  global rank that recorded the transfers
--   step         bigint   producer's step number; NULL: outside every step, or the capture has none
--   link         varchar  link type
--   task_type    varchar  Memcpy, Reduce_Inline, RDMASend, ...; NULL: from the link matrix
--   src_rank     integer  global rank of the sender
--   dst_rank     integer  global rank of the receiver
--   size_class   integer  floor(log2(bytes of one transfer))
--   count        bigint   transfers
--   size_bytes   bigint   their bytes
--   total_ns     bigint   sum of their durations
--   p50_bandwidth_bytes_per_s double median of bytes over time
with
_steps as (
    select run, capture, rank, op_id, any_value(step) as step
    from comm_ops where op_id is not null and step is not null group by all
),
_tasks as (
    select run, capture, rank, step, link, task_type, src_rank, dst_rank,
        cast(floor(log2(size_bytes)) as integer) as size_class,
        count(*) as count,
        cast(sum(size_bytes) as bigint) as size_bytes,
        cast(sum(dur_ns) as bigint) as total_ns,
        median(size_bytes * 1e9 / dur_ns) as p50_bandwidth_bytes_per_s
    from comm_tasks left join _steps using (run, capture, rank, op_id)
    where size_bytes > 0 and dur_ns > 0 and link is not null and src_rank <> dst_rank
    group by run, capture, rank, step, link, task_type, src_rank, dst_rank, size_class
),
_matrix as (
    select run, capture, rank, step, link, null as task_type, src_rank, dst_rank,
        cast(floor(log2(size_bytes)) as integer) as size_class,
        count(*) as count,
        cast(sum(size_bytes) as bigint) as size_bytes,
        cast(sum(time_ns) as bigint) as total_ns,
        median(size_bytes * 1e9 / time_ns) as p50_bandwidth_bytes_per_s
    from comm_matrix
    where size_bytes > 0 and time_ns > 0 and link is not null and src_rank <> dst_rank
        and coalesce(variant, 'total') in ('total', 'op')
        and (run, capture, rank) not in (select (run, capture, rank) from _tasks)
    group by run, capture, rank, step, link, src_rank, dst_rank, size_class
)
select * from _tasks
union all
select * from _matrix
order by run, capture, rank, step nulls last, link, task_type nulls last, size_class, src_rank, dst_rank
