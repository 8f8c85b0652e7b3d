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
session as (
    select min(nullif(startTimeNs, 0)) as startNs, max(nullif(endTimeNs, 0)) as endNs from _session_time_info
)
select
    (select deviceId from device) as device_id,
    (select max(cell(hostName)) from _host_info) as host_name,
    (select max(cell(hostUid)) from _host_info) as host_uid,
    $framework as framework,
    coalesce(
        (select max(cell(name)) from _npu_info where id = (select deviceId from device)),
        (select max(cell(name)) from _npu_info having count(distinct name) = 1)) as chip_name,
    (select freq from _aicore_freq
     where freq > 0 and coalesce(deviceId = (select deviceId from device), true)
     order by timestampNs limit 1) as ai_core_frequency_mhz,
    'db' as source_format,
    -- Ten years after 1970 in ns: no device counts that far from its own start.
    case when coalesce(s.startNs, (select min(startNs) from _task)) > 315360000000000000 then 'epoch'
         when coalesce(s.startNs, (select min(startNs) from _task)) is not null then 'device' end as clock,
    s.startNs as window_start_ns, s.endNs as window_end_ns
from session as s;
