-- Marks: mstx ranges and instants with what they enclose on the device, and ProfilerStep#N ranges.
-- The framework records an mstx call as well; it counts only where MSTX_EVENTS does not have it.
insert into marks by name
with device as (
    select connectionId, min(startNs) as startNs, max(startNs + durNs) as endNs
    from _task
    where connectionId in (select connectionId from _mstx_events)
    group by connectionId
)
select
    'mstx' as kind, message.value as name, domain.value as domain,
    m.globalTid >> 32 as process_id, m.globalTid & 4294967295 as thread_id,
    m.startNs as start_ns, m.durNs as dur_ns,
    cast(m.connectionId as varchar) as connection_id,
    d.startNs as device_start_ns, d.endNs - d.startNs as device_dur_ns
from _mstx_events as m
left join _string as message on message.id = m.message
left join _string as domain on domain.id = m.domainId
left join device as d on d.connectionId = m.connectionId;

insert into marks by name
with step_name as (
    select id from _string where starts_with(value, 'ProfilerStep#')
),
mark_ids as (   -- mstx calls that MSTX_EVENTS has
    select id from _connection_ids where connectionId in (select connectionId from _mstx_events)
)
select
    case when p.name in (select id from step_name) then 'profiler_step' else 'mstx' end as kind,
    name.value as name, p.globalTid >> 32 as process_id, p.globalTid & 4294967295 as thread_id,
    p.startNs as start_ns, p.durNs as dur_ns
from _pytorch_api as p
left join _string as name on name.id = p.name
where p.name in (select id from step_name)
    or (p.type in (select id from _enum where kind = 'api' and name = 'mstx')
        and not exists (select 1 from mark_ids as k where k.id = p.connectionId));
