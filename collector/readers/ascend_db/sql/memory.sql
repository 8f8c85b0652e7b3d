-- Memory over time. GE's rows have no active total: the database writes 0 there.
insert into memory by name
select
    m.deviceId as device_id, 'record' as source, component.value as component,
    m.timestamp as timestamp_ns, m.totalAllocated as allocated_bytes, m.totalReserved as reserved_bytes,
    case when component.value = 'GE' and m.totalActive = 0 then null else m.totalActive end as active_bytes,
    cast(m.streamPtr as varchar) as stream_ptr
from _memory_record as m
left join _string as component on component.id = m.component;

-- Without the framework's curve (MindSpore, msprof) the running totals of NPU_OP_MEM are the curve.
insert into memory by name
select
    m.deviceId as device_id, 'record' as source, component.value as component,
    m.timestampNs as timestamp_ns, m.totalAllocate as allocated_bytes, m.totalReserve as reserved_bytes
from _npu_op_mem as m
left join _string as component on component.id = m.component
where not exists (select 1 from _memory_record);

-- What the process and the whole device held: in HBM and DDR together, as memory_record.csv counts it. A kind that
-- is not recorded adds nothing.
insert into memory by name
select
    m.deviceId as device_id, 'record' as source, upper(type.value) as component,
    m.timestampNs as timestamp_ns,
    coalesce(try_cast(cast(m.hbm as hugeint) + coalesce(m.ddr, 0) as bigint), case when m.hbm is null then m.ddr end)
        as reserved_bytes
from _npu_mem as m
left join _string as type on type.id = m.type;

insert into memory by name
select
    m.deviceId as device_id, 'module' as source, module.name as component,
    m.timestampNs as timestamp_ns, m.totalReserved as reserved_bytes
from _npu_module_mem as m
left join _enum as module on module.kind = 'module' and module.id = m.moduleId;
