-- Does a link move less while the rank computes?
--
-- Operations of one type and group whose traffic HCCL measured: those that compute kernels of the rank cover for at
-- least half of their time, and those they cover for less than a tenth. Both share the chip's memory, so a link can be
-- slower while they overlap computing; 1 is none. Operations overlapped in part are not counted.
--
-- title: Contention
-- meaning: Bandwidth of links with and without overlapping computation.
-- view: contention_summary
-- rows from: comm_links
-- command: comm --by contention
-- table: contention
--
--   run                            varchar  run of the training job
--   capture                        varchar  ranks profiled at the same time
--   rank                           integer  global rank
--   step                           bigint   producer's step number; NULL: outside every step, or there are none
--   op_type                        varchar  allReduce, allToAllV, send, ...
--   group_hash                     varchar  communication group
--   link                           varchar  HCCS, RDMA, PCIE, SIO
--   beside_count                   bigint   operations that overlap computing
--   beside_bandwidth_bytes_per_s   double   bytes / time of these
--   alone_count                    bigint   operations without compute
--   alone_bandwidth_bytes_per_s    double   bytes / time of these
--   slowdown_ratio                 double   bandwidth alone / bandwidth while overlapping; NULL where one of them is missing
with
_keys as materialized (
    select *, cast(row_number() over (order by run, capture, rank) as integer) as rank_key
    from (select distinct run, capture, rank from comm_links)
    qualify rank_key > 0
),
_traffic as (
    select rank_key, name, group_hash, step, link, sum(size_bytes) as size_bytes, sum(time_ns) as time_ns
    from comm_links join _keys using (run, capture, rank)
    where link <> 'SDMA' and size_bytes > 0 and time_ns > 0
    group by rank_key, name, group_hash, step, link
),
-- The n-th of a name that repeats, in the operation's step, as for HCCL's times in the metric comm.
_sightings as (select rank_key, group_hash, name, step from comm_ops join _keys using (run, capture, rank)),
_hccl as (select distinct rank_key, group_hash, name, step from _traffic),
_repeats
_links as (
    select t.*, case when i.rank_key is not null then step end as of_step,
        dense_rank() over (
            partition by t.rank_key, t.name, t.group_hash, case when i.rank_key is not null then step end order by step
        ) as place
    from _traffic as t
    left join _in_step as i on i.rank_key = t.rank_key and i.name is not distinct from t.name
        and i.group_hash is not distinct from t.group_hash
),
_ops as (
    select o.rank_key, o.name, o.group_hash, step, start_ns, dur_ns,
        case when i.rank_key is not null then step end as of_step,
        row_number() over (
            partition by o.rank_key, o.name, o.group_hash, case when i.rank_key is not null then step end
            order by start_ns
        ) as place
    from (select * from comm_ops join _keys using (run, capture, rank)) as o
    left join _in_step as i on i.rank_key = o.rank_key and i.name is not distinct from o.name
        and i.group_hash is not distinct from o.group_hash
),
_moves as materialized (
    select o.rank_key, o.name, o.group_hash, o.step, link, size_bytes, time_ns, start_ns, dur_ns,
        cast(row_number() over () as bigint) as series
    from _ops as o
    join _links as l on l.rank_key = o.rank_key and l.name = o.name and l.place = o.place
        and l.group_hash is not distinct from o.group_hash and l.of_step is not distinct from o.of_step
    where dur_ns > 0 and start_ns is not null
),
_intervals as (
    select rank_key, series, start_ns, start_ns + dur_ns as end_ns from _moves
),
_covering as (
    select rank_key, start_ns, start_ns + dur_ns as end_ns
    from kernels join _keys using (run, capture, rank)
    where is_compute and dur_ns > 0 and start_ns is not null
),
_lengths
_places as (
    select *, covered_ns >= 0.5 * union_ns as is_beside, covered_ns < 0.1 * union_ns as is_alone
    from _moves join _lengths using (series)
),
_types as (
    select rank_key, name, group_hash, any_value(op_type) as op_type
    from comm_links join _keys using (run, capture, rank)
    group by rank_key, name, group_hash
),
_added as (
    select rank_key, step, op_type, p.group_hash, link,
        count(*) filter (where is_beside) as beside_count,
        sum(size_bytes) filter (where is_beside) * 1e9 / sum(time_ns) filter (where is_beside)
            as beside_bandwidth_bytes_per_s,
        count(*) filter (where is_alone) as alone_count,
        sum(size_bytes) filter (where is_alone) * 1e9 / sum(time_ns) filter (where is_alone)
            as alone_bandwidth_bytes_per_s
    from _places as p
    join _types as t using (rank_key, name)
    where t.group_hash is not distinct from p.group_hash
    group by rank_key, step, op_type, p.group_hash, link
)
select run, capture, rank, step, op_type, group_hash, link, beside_count, beside_bandwidth_bytes_per_s,
    alone_count, alone_bandwidth_bytes_per_s,
    alone_bandwidth_bytes_per_s / beside_bandwidth_bytes_per_s as slowdown_ratio
from _added join _keys using (rank_key)
order by run, capture, rank, step nulls last, op_type, group_hash, link
