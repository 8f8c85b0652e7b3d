-- One row per device task or communication operation that a host call launched: both carry the call's
-- connection id. For the rows $low to $high of `_target`, whose connections lie between $first and $last.
--
-- `_operator_call` (connection, operator) is what PYTORCH_API tells of the framework operator above a
-- call. Among its connections are ids of other things (forward to backward, queue) that may equal a call's
-- by chance. So only operators and only node-level calls are joined, and of several operators the last
-- that began before the call wins.
create or replace temp table _ordered as
with target as (
    select * from _target where rowid between $low and $high
),
matches as (
    select * from _cann_api
    where connectionId between $first and $last and connectionId in (select connectionId from target)
),
repeated as (
    select connectionId from matches group by connectionId having count(*) > 1
),
call as (   -- the first of several with one id
    select a.*, case when level.name = 'node' then a.connectionId end as nodeId
    from (
        select * from matches anti join repeated using (connectionId)
        union all
        (select distinct on (connectionId) * from matches semi join repeated using (connectionId)
         order by connectionId, startNs)
    ) as a
    left join _enum as level on level.kind = 'api' and level.id = a.type
),
launching as (
    select a.connectionId, a.name, a.globalTid, a.startNs, a.endNs,
           o.name as operator, o.globalTid as operatorTid, o.startNs as operatorNs
    from call as a
    asof left join (select * from _operator_call where connectionId between $first and $last) as o
        on a.nodeId = o.connectionId and a.startNs >= o.startNs
)
select
    t.*, a.name as api, a.globalTid & 4294967295 as apiTid, a.startNs as apiNs, a.endNs as apiEndNs,
    a.operator, a.operatorTid & 4294967295 as operatorTid, a.operatorNs
from target as t
join launching as a on a.connectionId = t.connectionId
order by t.streamId, t.startNs;

insert into launches by name
select
    cast(t.connectionId as varchar) as connection_id,
    api.value as api_name, t.apiTid as api_thread_id, t.apiNs as api_start_ns, t.apiEndNs as api_end_ns,
    operator.value as operator_name, t.operatorTid as operator_thread_id, t.operatorNs as operator_start_ns,
    t.target, name.value as target_name, t.deviceId as device_id, t.streamId as stream_id,
    t.startNs as device_start_ns, t.startNs - t.apiNs as latency_ns
from _ordered as t
left join _word as api on api.id = t.api
left join _word as operator on operator.id = t.operator
left join _word as name on name.id = t.name;
