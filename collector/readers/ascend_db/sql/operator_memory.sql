-- Blocks of device memory and who held them.
insert into operator_memory by name
select
    m.deviceId as device_id, name.value as name, m.size as size_bytes,
    m.allocationTime as allocated_at_ns, m.releaseTime as released_at_ns,
    m.activeReleaseTime as active_released_at_ns,
    m.duration as dur_ns, m.activeDuration as active_dur_ns,
    m.allocationTotalAllocated as allocation_total_allocated_bytes,
    m.allocationTotalReserved as allocation_total_reserved_bytes,
    m.allocationTotalActive as allocation_total_active_bytes,
    m.releaseTotalAllocated as release_total_allocated_bytes,
    m.releaseTotalReserved as release_total_reserved_bytes,
    m.releaseTotalActive as release_total_active_bytes,
    cast(m.streamPtr as varchar) as stream_ptr
from _op_memory as m
left join _string as name on name.id = m.name;
