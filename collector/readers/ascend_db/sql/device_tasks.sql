-- What else the device did: tasks that are no kernels, were not launched as part of a communication operation, and are
-- not the profiler's own marks.
insert into device_tasks by name
select t.deviceId as device_id, t.streamId as stream_id, t.taskId as task_id, type.value as type,
    t.startNs as start_ns, t.durNs as dur_ns, cast(t.connectionId as varchar) as connection_id
from _task as t
left join _string as type on type.id = t.taskType
where t.globalTaskId not in (
        select globalTaskId from _compute_task_info where globalTaskId is not null
        union all select globalTaskId from _communication_schedule_task_info where globalTaskId is not null
        union all select globalTaskId from _communication_task_info where globalTaskId is not null)
    and (t.connectionId is null or t.connectionId not in (
        select connectionId from _communication_op where connectionId is not null))
    and not coalesce(starts_with(type.value, 'PROFILING_'), false)
    -- A task around the contexts that are its kernels is no other work; text does not have it either. A database
    -- without numbers of contexts tells it by its kernel alone.
    and not exists (
        from _task as c
        where t.contextId is null and (c.contextId is not null or (select count(contextId) = 0 from _task))
            and c.streamId = t.streamId and c.taskId = t.taskId and c.connectionId = t.connectionId
            and c.deviceId is not distinct from t.deviceId
            and c.startNs between t.startNs and t.startNs + t.durNs
            and c.globalTaskId in (select globalTaskId from _compute_task_info)
    )
order by t.streamId, t.startNs;
