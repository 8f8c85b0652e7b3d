-- One row per device task or communication operation that a host call launched: both carry the call's
-- connection id. For the connections $low to $high.
--
-- `_operator_call` (connection, operator) is what PYTORCH_API tells of the framework operator above a
-- call. Among its connections are ids of other things (forward to backward, queue) that may equal a call's
-- by chance. So only operators and only node-level calls are joined, and of several operators the last
-- that began before the call wins.
insert into launches by name
with target as materialized (
    select t.connectionId, t.deviceId, t.streamId, t.startNs,
           case when k.globalTaskId is null then 'task' else 'kernel' end as target,
           case when k.globalTaskId is null then t.taskType else k.name end as name
    from _task as t
    left join _compute_task_info as k on k.globalTaskId = t.globalTaskId
    where t.connectionId between $low and $high
    union all by name
    select connectionId, deviceId, startNs, 'communication' as target, opName as name
    from _communication_op where connectionId between $low and $high
),
call as (
    select a.*, case when level.name = 'node' then a.connectionId end as nodeId
    from (select distinct on (connectionId) * from _cann_api
          where connectionId between $low and $high and connectionId in (select connectionId from target)
          order by connectionId, startNs) as a
    left join _enum as level on level.kind = 'api' and level.id = a.type
),
launching as (
    select a.connectionId, a.name, a.globalTid, a.startNs, a.endNs,
           o.name as operator, o.globalTid as operatorTid, o.startNs as operatorNs
    from call as a
    asof left join (select * from _operator_call where connectionId between $low and $high) as o
        on a.nodeId = o.connectionId and a.startNs >= o.startNs
)
select
    cast(t.connectionId as varchar) as connection_id,
    api.value as api_name, a.globalTid & 4294967295 as api_thread_id,
    a.startNs as api_start_ns, a.endNs as api_end_ns,
    operator.value as operator_name, a.operatorTid & 4294967295 as operator_thread_id,
    a.operatorNs as operator_start_ns,
    t.target, name.value as target_name, t.deviceId as device_id, t.streamId as stream_id,
    t.startNs as device_start_ns, t.startNs - a.startNs as latency_ns
from target as t
join launching as a on a.connectionId = t.connectionId
left join _string as api on api.id = a.name
left join _string as operator on operator.id = a.operator
left join _string as name on name.id = t.name;
