-- Device kernels: tasks with an entry in COMPUTE_TASK_INFO, and HCCL's scheduling kernels beside them, for the
-- tasks of part $part, whose ids lie between $low and $high. `waitNs` is no producer's column and not read.
-- `_word`: the few strings kernels use, for they are joined many times. `_pmu`: one row per task with PMU
-- values, which the columns put in at the mark spell out. A kernel's step is found as in link.py.
create or replace temp table _ordered as
with kernel as (
    select name, globalTaskId, blockNum, mixBlockNum, taskType, opType, inputFormats, inputDataTypes,
           inputShapes, outputFormats, outputDataTypes, outputShapes, opState, hf32Eligible, false as scheduling
    from _compute_task_info
    where globalTaskId between $low and $high
    union all by name
    select name, globalTaskId, taskType, opType, true as scheduling
    from _communication_schedule_task_info
    where globalTaskId between $low and $high
),
task as (
    select t.* exclude (taskType), case when t.startNs < s.end_ns then s.step end as step
    from (
        select * from _task
        where globalTaskId between $low and $high and globalTaskId in (select id from _part where part = $part)
    ) as t
    asof left join _step_segments as s on t.startNs >= s.start_ns
)
select * from task join kernel using (globalTaskId) order by streamId, startNs;

insert into kernels by name
select
    k.step,
    k.deviceId as device_id, k.streamId as stream_id, k.taskId as task_id, k.contextId as context_id,
    k.modelId as model_id,
    name.value as name, op.value as type, core.value as core,
    -- What is_compute_row(core, name) and not is_comm_row(core, name) say.
    not k.scheduling and coalesce(name.is_compute_name, true) and coalesce(core.is_compute_core, true)
        and not case when core.value is null then coalesce(name.is_comm_name, false) else core.is_comm_core end
        as is_compute,
    state.value as op_state,
    k.startNs as start_ns, k.durNs as dur_ns,
    nullif(k.blockNum, 0) as block_count, nullif(k.mixBlockNum, 0) as mix_block_count,
    case upper(hf32.value) when 'YES' then true when 'NO' then false end as hf32_eligible,
    in_shape.cell as input_shapes, in_type.value as input_dtypes, in_format.value as input_formats,
    out_shape.cell as output_shapes, out_type.value as output_dtypes, out_format.value as output_formats,
    cast(k.connectionId as varchar) as connection_id,
    {pmu_columns}
from _ordered as k
left join _pmu as p on p.globalTaskId = k.globalTaskId
left join _word as name on name.id = k.name
left join _word as core on core.id = k.taskType
left join _word as op on op.id = k.opType
left join _word as state on state.id = k.opState
left join _word as hf32 on hf32.id = k.hf32Eligible
left join _word as in_shape on in_shape.id = k.inputShapes
left join _word as in_type on in_type.id = k.inputDataTypes
left join _word as in_format on in_format.id = k.inputFormats
left join _word as out_shape on out_shape.id = k.outputShapes
left join _word as out_type on out_type.id = k.outputDataTypes
left join _word as out_format on out_format.id = k.outputFormats;
