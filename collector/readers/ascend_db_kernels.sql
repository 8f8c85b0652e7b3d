-- Device kernels: tasks with an entry in COMPUTE_TASK_INFO, and HCCL's scheduling kernels beside them,
-- for the tasks $low to $high. `_pmu` holds one row per task with PMU values. `waitNs` is no producer's
-- column and not read.
insert into kernels by name
with kernel as materialized (
    select name, globalTaskId, blockNum, mixBlockNum, taskType, opType, inputFormats, inputDataTypes,
           inputShapes, outputFormats, outputDataTypes, outputShapes, opState, hf32Eligible, false as scheduling
    from _compute_task_info
    where globalTaskId between $low and $high
    union all by name
    select name, globalTaskId, taskType, opType, true as scheduling
    from _communication_schedule_task_info
    where globalTaskId between $low and $high
),
word as materialized (   -- the few strings kernels use: they are joined many times
    select id, value from _string where id in (
        select unnest([name, taskType, opType, opState, hf32Eligible, inputFormats, inputDataTypes,
                       inputShapes, outputFormats, outputDataTypes, outputShapes]) from kernel)
)
select
    t.deviceId as device_id, t.streamId as stream_id, t.taskId as task_id, t.contextId as context_id,
    t.modelId as model_id,
    name.value as name, op.value as type, core.value as core,
    not k.scheduling and is_compute_row(core.value, name.value)
        and not is_comm_row(core.value, name.value) as is_compute,
    state.value as op_state,
    t.startNs as start_ns, t.durNs as dur_ns,
    nullif(k.blockNum, 0) as block_count, nullif(k.mixBlockNum, 0) as mix_block_count,
    case upper(hf32.value) when 'YES' then true when 'NO' then false end as hf32_eligible,
    cell(in_shape.value) as input_shapes, in_type.value as input_dtypes, in_format.value as input_formats,
    cell(out_shape.value) as output_shapes, out_type.value as output_dtypes, out_format.value as output_formats,
    cast(t.connectionId as varchar) as connection_id,
    p.aic_time_ns, p.aic_cycles, p.aiv_time_ns, p.aiv_cycles, p.cube_utilization_ratio, p.pmu
from kernel as k
join _task as t on t.globalTaskId = k.globalTaskId and t.globalTaskId between $low and $high
left join _pmu as p on p.globalTaskId = k.globalTaskId
left join word as name on name.id = k.name
left join word as core on core.id = k.taskType
left join word as op on op.id = k.opType
left join word as state on state.id = k.opState
left join word as hf32 on hf32.id = k.hf32Eligible
left join word as in_shape on in_shape.id = k.inputShapes
left join word as in_type on in_type.id = k.inputDataTypes
left join word as in_format on in_format.id = k.inputFormats
left join word as out_shape on out_shape.id = k.outputShapes
left join word as out_type on out_type.id = k.outputDataTypes
left join word as out_format on out_format.id = k.outputFormats;
