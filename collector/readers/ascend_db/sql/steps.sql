-- Steps: STEP_TIME is the host's range. The device's range covers the tasks whose node-level launch
-- began within it, and ends no earlier than the host's.
insert into steps by name
with host as (
    select distinct id, startNs, endNs from _step_time where startNs is not null
),
step_launches as (
    select s.id, s.startNs, s.endNs, a.connectionId
    from (select a.startNs, a.connectionId from _cann_api as a
          where a.type in (select id from _enum where kind = 'api' and name = 'node')) as a
    asof join host as s on a.startNs >= s.startNs
    where a.startNs < s.endNs
),
device as (
    select l.id, l.startNs, min(t.startNs) as first_ns, max(t.startNs + t.durNs) as last_ns
    from step_launches as l
    join _task as t on t.connectionId = l.connectionId
    group by l.id, l.startNs
)
select
    h.id as step, h.startNs as window_start_ns, h.endNs as window_end_ns,
    coalesce(d.first_ns, h.startNs) as device_start_ns,
    greatest(h.endNs, d.last_ns) as device_end_ns   -- greatest passes over NULLs
from host as h
left join device as d on d.id = h.id and d.startNs = h.startNs
order by h.startNs;
