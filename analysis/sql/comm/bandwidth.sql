-- How fast are operations while they transfer?
--
-- Operations of one parallel kind and type in one step of one rank. The transfer is HCCL's own, measured on the master
-- plane. The algorithm's bandwidth is what was handed to the operations over it; the bus's is what this rank's links
-- moved over it: what the usual factors by type (2 (n-1)/n of an allReduce of n ranks, ...) estimate from sizes is
-- measured here. Of a type and group both count only what was measured whole: every operation of it.
--
-- title: Bandwidth of operations
-- meaning: Algorithm and bus bandwidth of operations while they transfer.
-- view: comm_bandwidth
-- command: comm --by bandwidth
-- table: bandwidth
--
--   run                              varchar  run of the training job
--   capture                          varchar  ranks profiled at the same time
--   rank                             integer  global rank
--   step                             bigint   producer's step number; NULL: outside every step, or there are none
--   kind                             varchar  parallel kind: tp, pp, dp, ep, ...
--   op_type                          varchar  allReduce, allToAllV, send, ...
--   op_count                         bigint   operations
--   size_bytes                       bigint   bytes handed to them; NULL where one of them is unknown
--   link_bytes                       double   bytes this rank's links moved for them
--   transit_ns                       double   moving data, as HCCL measured it; NULL where it measured none
--   algorithm_bandwidth_bytes_per_s  double   size / transit
--   bus_bandwidth_bytes_per_s        double   link bytes / transit
with
_links as (
    select run, capture, rank, step, op_type, group_hash, sum(size_bytes) as link_bytes
    from link_summary
    group by run, capture, rank, step, op_type, group_hash
),
_ops as (
    select run, capture, rank, step, op_type, group_hash, op_count, size_bytes, transit_ns,
        case when measured_count = op_count and transit_ns > 0 then transit_ns end as whole_ns
    from comm_summary where by_key = 'op'
),
_added as (
    select o.run, o.capture, o.rank, o.step, coalesce(k.kind, 'unknown') as kind, o.op_type,
        cast(sum(op_count) as bigint) as op_count,
        case when bool_and(o.size_bytes is not null) then cast(sum(o.size_bytes) as bigint) end as size_bytes,
        sum(link_bytes) as link_bytes,
        sum(transit_ns) as transit_ns,
        sum(o.size_bytes) filter (where whole_ns is not null) * 1e9
            / sum(whole_ns) filter (where o.size_bytes is not null) as algorithm_bandwidth_bytes_per_s,
        sum(link_bytes) filter (where whole_ns is not null) * 1e9
            / sum(whole_ns) filter (where link_bytes is not null) as bus_bandwidth_bytes_per_s
    from _ops as o
    left join _links as l on l.run = o.run and l.capture = o.capture and l.rank = o.rank
        and l.step is not distinct from o.step and l.op_type is not distinct from o.op_type
        and l.group_hash is not distinct from o.group_hash
    left join group_kinds as k on k.run = o.run and k.capture = o.capture and k.group_hash = o.group_hash
    group by o.run, o.capture, o.rank, o.step, kind, o.op_type
)
select * from _added
order by run, capture, rank, step nulls last, transit_ns desc nulls last, kind, op_type
