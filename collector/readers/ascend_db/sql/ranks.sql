-- The rank as the database tells it. Its device: what RANK_DEVICE_MAP says for the rank, else for a lone
-- unnamed rank (msprof), else the device with most tasks. $rank, $framework: from discovery.
insert into ranks by name
with busy as (
    select deviceId, count(*) as tasks from _task where deviceId is not null group by deviceId
),
device as (
    select deviceId from (
        select m.deviceId, case when m.rankId = $rank then 0 else 1 end as preference, b.tasks
        from _rank_device_map as m
        left join busy as b on b.deviceId = m.deviceId
        where m.deviceId is not null
            and (m.rankId = $rank or (m.rankId is null and (select count(*) from _rank_device_map) = 1))
        union all
        select deviceId, 2, tasks from busy
    )
    order by preference, tasks desc nulls last, deviceId
    limit 1
),
choice as (select max(deviceId) as deviceId from device)
select
    c.deviceId as device_id,
    h.host_name,
    h.host_uid,
    $framework as framework,
    n.chip_name,
    f.freq as ai_core_frequency_mhz,
    'db' as source_format,
    -- Ten years after 1970 in ns: no device counts that far from its own start.
    case when coalesce(s.startNs, t.startNs) > 315360000000000000 then 'epoch'
         when coalesce(s.startNs, t.startNs) is not null then 'device' end as clock,
    s.startNs as window_start_ns, s.endNs as window_end_ns
from choice as c
cross join (
    select min(nullif(startTimeNs, 0)) as startNs, max(nullif(endTimeNs, 0)) as endNs from _session_time_info
) as s
cross join (select min(startNs) as startNs from _task) as t
cross join (select max(cell(hostName)) as host_name, max(cell(hostUid)) as host_uid from _host_info) as h
cross join (
    select coalesce(
        max(name) filter (where id = deviceId), case when count(distinct told) = 1 then max(name) end) as chip_name
    from (select id, name as told, cell(name) as name from _npu_info) cross join choice
) as n
cross join (
    select coalesce(arg_min(freq, timestampNs), any_value(freq)) as freq
    from _aicore_freq as f cross join choice as c
    where freq > 0 and coalesce(f.deviceId = c.deviceId, true)
) as f;
