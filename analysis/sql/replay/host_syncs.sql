-- When did the host wait for the device, and for which of its operations?
--
-- Calls that synchronise a stream, an event or the device. They wait for what had been launched before they returned:
-- of that the operation that ended last, if it ended within the call and at most 1 ms before its return; else nothing
-- says what was waited for, and the columns of it are NULL. Times are those of the rank's own clock.
--
-- title: Waits of the host
-- meaning: Calls in which the host waited for the device, and what for.
-- view: host_syncs
--
--   run           varchar  run of the training job
--   capture       varchar  ranks profiled at the same time
--   rank          integer  global rank
--   name          varchar  of the call
--   thread_id     bigint   thread that called
--   start_ns      bigint   start of the call
--   dur_ns        bigint   duration of the call
--   target        varchar  kernel, communication or task; NULL: not told
--   target_name   varchar  what it waited for
--   stream_id     bigint   stream of that
--   device_end_ns bigint   end of that
--   return_ns     bigint   from that end to the return of the call
with
_ran as (
    select run, capture, rank, 'kernel' as target, connection_id, name, stream_id, start_ns + dur_ns as end_ns from kernels
    union all
    select run, capture, rank, 'communication', connection_id, name, stream_id, start_ns + dur_ns from comm_ops
    union all
    select run, capture, rank, 'task', connection_id, type, stream_id, start_ns + dur_ns from device_tasks
),
_launches as (
    select run, capture, rank, target, connection_id, min(api_start_ns) as launch_ns
    from launches where connection_id is not null group by all
),
_latest as (
    select run, capture, rank, launch_ns,
        max({end_ns: end_ns, target: target, name: name, stream_id: stream_id}) over (
            partition by run, capture, rank order by launch_ns) as latest
    from _ran join _launches using (run, capture, rank, target, connection_id)
    where end_ns is not null
),
_syncs as (
    select run, capture, rank, name, thread_id, start_ns, dur_ns, start_ns + dur_ns as until_ns
    from host_ops where kind = 'api' and name ilike 'aclrtSynchronize%' and dur_ns > 0
),
_waits as (
    select s.*, case when l.latest.end_ns between s.start_ns + 1 and s.until_ns
        and s.until_ns - l.latest.end_ns <= 1000000 then l.latest end as latest
    from _syncs s
    asof left join _latest l
        on l.run = s.run and l.capture = s.capture and l.rank = s.rank and l.launch_ns < s.until_ns
)
select run, capture, rank, name, thread_id, start_ns, dur_ns, latest.target as target, latest.name as target_name,
    latest.stream_id as stream_id, latest.end_ns as device_end_ns, until_ns - latest.end_ns as return_ns
from _waits
order by run, capture, rank, start_ns, thread_id
