-- Communication operations. Where the table names no device, it is the one device that ran the
-- operation's tasks; the stream is that of the first of them. An operation type that is no string of the database (viewers add such a column)
-- gives way to the operation's name.
insert into comm_ops by name
with task as (
    select connectionId, arg_min(streamId, startNs) as streamId,
        case when min(deviceId) = max(deviceId) then min(deviceId) end as deviceId
    from _task
    where connectionId in (select connectionId from _communication_op)
    group by connectionId
)
select
    coalesce(o.deviceId, t.deviceId) as device_id, t.streamId as stream_id,
    o.opId as op_id, name.value as name,
    coalesce(comm_op_type(op.value), comm_op_type(name.value)) as op_type,
    g.hash as group_hash,
    o.startNs as start_ns, o.durNs as dur_ns,
    algorithm.value as algorithm, data.name as data_type,
    o.count as element_count,
    try_cast(cast(o.count as hugeint) * type_bytes(data.name) as bigint) as size_bytes,
    case o.relay when 0 then false when 1 then true end as relay,
    case o.retry when 0 then false when 1 then true end as retry,
    o.rankSize as group_size,
    cast(o.connectionId as varchar) as connection_id
from _communication_op as o
left join task as t on t.connectionId = o.connectionId
left join _string as name on name.id = o.opName
left join _string as op on op.id = o.opType
left join _string as algorithm on algorithm.id = o.algType
left join _group as g on g.id = o.groupName
left join _enum as data on data.kind = 'data' and data.id = o.dataType;
