-- Host side, below the framework: CANN interfaces and garbage collection.
insert into host_ops by name
select
    'api' as kind,
    case level.name when 'hccl' then 'communication' else level.name end as level,
    name.value as name, a.globalTid >> 32 as process_id, a.globalTid & 4294967295 as thread_id,
    a.startNs as start_ns, a.durNs as dur_ns,
    cast(a.connectionId as varchar) as connection_id
from _cann_api as a
left join _string as name on name.id = a.name
left join _enum as level on level.kind = 'api' and level.id = a.type;

insert into host_ops by name
select 'gc' as kind, 'GC' as name, globalTid >> 32 as process_id, globalTid & 4294967295 as thread_id,
       startNs as start_ns, durNs as dur_ns
from _gc_record;
