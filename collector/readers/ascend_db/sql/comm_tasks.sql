-- What communication operations did on their planes; times come from TASK. At Level0 the rows are
-- placeholders: no task type, and nothing but the ids means anything. For the tasks $low to $high.
insert into comm_tasks by name
select
    c.opId as op_id, name.value as op_name, g.hash as group_hash,
    c.planeId as plane_id, type.value as task_type,
    t.streamId as stream_id, t.taskId as task_id,
    t.startNs as start_ns, t.durNs as dur_ns,
    transport.name as transport, link.name as link, rdma.name as rdma_type,
    c.srcRank as src_group_rank, c.dstRank as dst_group_rank,
    c.size as size_bytes, data.name as data_type,
    case when type.value is not null then cast(c.notifyId as varchar) end as notify_id,
    case c.isMaster when 0 then false when 1 then true end as is_master
from _communication_task_info as c
join _task as t on t.globalTaskId = c.globalTaskId and t.globalTaskId between $low and $high
left join _string as name on name.id = c.name
left join _string as type on type.id = c.taskType
left join _group as g on g.id = c.groupName
left join _enum as transport on transport.kind = 'transport' and transport.id = c.transportType
left join _enum as link on link.kind = 'link' and link.id = c.linkType
left join _enum as rdma on rdma.kind = 'rdma' and rdma.id = c.rdmaType
left join _enum as data on data.kind = 'data' and data.id = c.dataType
where c.globalTaskId between $low and $high;
