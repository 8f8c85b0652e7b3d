-- How far does the host run ahead of the device, and how fast would it launch if it never waited?
--
-- Launches of kernels and operations, in the step in whose window the host's call starts. Lead: from a launch to the
-- start of what it launched; where the device is free it is the latency of a launch alone, as a rule that of the lowest
-- tenth. Queue: launched and not yet started, as a launch finds it. Pace: from the first to the last launch without
-- calls that wait for the device (to synchronise, or to copy) and without calls that a full queue blocked, over
-- launches; what one starts (a kernel, or all of a graph) must take as long on average for this host to keep up. A call
-- is blocked for what it takes beyond ten times the step's median while at least 1,000 tasks stand in the queue it puts
-- one into: that of the framework, or of the device.
--
-- title: Pace of the host
-- meaning: Lead of the host over the device, its queue, and its time for a launch.
-- rows from: launches
-- command: host --by pace
-- table: host_pace
--
--   run               varchar  run of the training job
--   capture           varchar  ranks profiled at the same time
--   rank              integer  global rank
--   step              bigint   producer's step number; NULL: outside every step, or the capture has none
--   launch_count      bigint   launches of kernels and operations
--   lead_p10_ns       bigint   lead that a tenth of launches have at most
--   lead_p50_ns       bigint   median lead
--   lead_p90_ns       bigint   lead that a tenth of launches exceed
--   call_p50_ns       bigint   median length of a launching call; NULL: ends were not recorded
--   call_p99_ns       bigint   length that one of a hundred calls exceeds
--   queue_p50_count   bigint   median of tasks in the device's queue
--   queue_max_count   bigint   most tasks in it
--   queue_full_ns     bigint   time between first and last launch in which calls were blocked by a full queue
--   host_wait_ns      bigint   time between first and last launch in calls that wait for the device
--   pace_ns           double   host time for a launch; NULL: fewer than two launches
--   device_ns         double   device time from launch to launch: span of what was launched over launches
with
_launches as materialized (
    select run, capture, rank, api_start_ns, api_end_ns, min(device_start_ns) as device_start_ns
    from launches
    where api_start_ns is not null and device_start_ns is not null and target in ('kernel', 'communication')
    group by all
),
-- Whose queue is a truth value: windows by text take twice as long.
_moments as (
    select run, capture, rank, true as is_device, api_start_ns as at_ns, api_end_ns as until_ns, device_start_ns, 1 as sign
    from _launches
    union all
    select run, capture, rank, true, device_start_ns, null, null, -1 from _launches
    union all
    select run, capture, rank, false, start_ns, start_ns + dur_ns, null, if(kind = 'enqueue', 1, -1)
    from host_ops where kind in ('enqueue', 'dequeue') and start_ns is not null
),
_queued as (
    select *, sum(sign) over (
        partition by run, capture, rank, is_device order by at_ns, sign rows between unbounded preceding and current row
    ) - 1 as depth
    from _moments
),
_calls as (
    select q.run, q.capture, q.rank, if(q.at_ns < s.window_end_ns, s.step, null) as step, is_device, at_ns, until_ns, q.device_start_ns, greatest(depth, 0) as depth
    from (select * from _queued where sign = 1) as q
    asof left join (select * from steps where window_start_ns is not null) as s
        on q.run = s.run and q.capture = s.capture and q.rank = s.rank and q.at_ns >= s.window_start_ns
),
_usual as (
    select *, median(until_ns - at_ns) over (partition by run, capture, rank, step, is_device) as usual_ns from _calls
),
_paces as (
    select run, capture, rank, step,
        count(*) filter (where is_device) as launch_count,
        quantile_disc(device_start_ns - at_ns, [0.1, 0.5, 0.9]) filter (where is_device) as leads,
        quantile_disc(until_ns - at_ns, [0.5, 0.99]) filter (where is_device) as calls,
        quantile_disc(depth, 0.5) filter (where is_device) as queue_p50_count,
        max(depth) filter (where is_device) as queue_max_count,
        min(at_ns) filter (where is_device) as first_ns,
        max(at_ns) filter (where is_device) as last_ns,
        max(device_start_ns) - min(device_start_ns) as device_span_ns
    from _usual
    group by all
),
-- What each adds to the time in calls of its kind and of both: several threads may wait, or be blocked, at once.
_holders as (
    select run, capture, rank, true as is_wait, start_ns, start_ns + dur_ns as end_ns
    from host_ops
    where kind = 'api' and (name ilike 'aclrtSynchronize%' or name = 'aclrtMemcpy') and dur_ns > 0
    union all
    select run, capture, rank, false, at_ns + cast(10 * usual_ns as bigint), until_ns
    from _usual where depth >= 1000 and until_ns - at_ns > 10 * usual_ns
),
_added as (
    select *,
        greatest(start_ns, max(end_ns) over (
            partition by run, capture, rank, is_wait order by start_ns, end_ns rows between unbounded preceding and 1 preceding
        )) as kind_from_ns,
        greatest(start_ns, max(end_ns) over (
            partition by run, capture, rank order by start_ns, end_ns rows between unbounded preceding and 1 preceding
        )) as from_ns
    from _holders
),
_losses as (
    select p.run, p.capture, p.rank, p.step,
        sum(greatest(least(end_ns, last_ns) - greatest(kind_from_ns, first_ns), 0)) filter (where is_wait) as waiting_ns,
        sum(greatest(least(end_ns, last_ns) - greatest(kind_from_ns, first_ns), 0)) filter (where not is_wait) as full_ns,
        sum(greatest(least(end_ns, last_ns) - greatest(from_ns, first_ns), 0)) as lost_ns
    from _paces as p join _added as a on a.run = p.run and a.capture = p.capture and a.rank = p.rank
        and a.start_ns < p.last_ns and a.end_ns > p.first_ns
    group by all
)
select p.run, p.capture, p.rank, p.step, launch_count, leads[1] as lead_p10_ns, leads[2] as lead_p50_ns,
    leads[3] as lead_p90_ns, calls[1] as call_p50_ns, calls[2] as call_p99_ns,
    cast(queue_p50_count as bigint) as queue_p50_count, cast(queue_max_count as bigint) as queue_max_count,
    cast(coalesce(full_ns, 0) as bigint) as queue_full_ns, cast(coalesce(waiting_ns, 0) as bigint) as host_wait_ns,
    (last_ns - first_ns - coalesce(lost_ns, 0)) / nullif(launch_count - 1, 0) as pace_ns,
    device_span_ns / nullif(launch_count - 1, 0) as device_ns
from _paces as p
left join _losses as l on l.run = p.run and l.capture = p.capture and l.rank = p.rank
    and l.step is not distinct from p.step
where launch_count > 0
order by p.run, p.capture, p.rank, p.step nulls last
