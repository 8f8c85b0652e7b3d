-- Do launches take longer while threads are on cores far from their device?
--
-- Of ranks whose placement was recorded (counters named NUMA node: series device, and thread N of threads). A launch is
-- far where the thread of its operator (the only one recorded: that one) was read on another node than the device's
-- last before it. Its time is that from the launch before it to it, over the median of near launches of the same operator
-- behind the same operator; slow_ratio is the median of that over far launches, with the interval that order statistics
-- give it at 95 %. Where a thread was read on another node than before, it had moved.
--
-- title: Placement of threads
-- meaning: How often launching threads are on cores far from their device, and what that costs a launch.
-- rows from: counters
-- command: host --by placement
-- table: host_placement
--
--   run             varchar  run of the training job
--   capture         varchar  ranks profiled at the same time
--   rank            integer  global rank
--   device_node     bigint   NUMA node of the device
--   sample_count    bigint   times at which the place of a thread was read
--   far_ratio       double   share of them on another node
--   migration_count bigint   times at which a thread had moved to another node
--   near_count      bigint   launches with another one like them before, on the device's node
--   far_count       bigint   such launches on other nodes
--   slow_ratio      double   how many times longer a far launch takes; NULL: fewer than 30 of either
--   slow_low_ratio  double   low end of the interval
--   slow_high_ratio double   high end of the interval
with
_raw as (
    select run, capture, rank, series, timestamp_ns, cast(value as bigint) as node
    from counters where name = 'NUMA node' and value is not null and timestamp_ns is not null
),
_devices as (
    select run, capture, rank, any_value(node) as device_node from _raw where series = 'device' group by all
),
_threads as (
    select r.*, device_node, try_cast(regexp_extract(series, '^thread (\d+)$', 1) as bigint) as thread_id,
        node is distinct from lag(node, 1, node) over (
            partition by r.run, r.capture, r.rank, series order by timestamp_ns) as is_moved
    from _raw as r join _devices using (run, capture, rank)
    where series like 'thread %'
),
_places as (
    select run, capture, rank, any_value(device_node) as device_node, count(*) as sample_count,
        avg(if(node <> device_node, 1, 0)) as far_ratio, count(*) filter (where is_moved) as migration_count
    from _threads group by all
),
_launches as (
    select run, capture, rank, api_start_ns as at_ns, any_value(operator_name) as operator
    from launches where api_start_ns is not null and operator_name is not null
        and target in ('kernel', 'communication')
    group by all
),
_pauses as (
    select *, at_ns - lag(at_ns) over _order as pause_ns, lag(operator) over _order as before
    from _launches join _devices using (run, capture, rank)
    window _order as (partition by run, capture, rank order by at_ns)
),
_positions as (
    select p.*, t.node <> t.device_node as is_far
    from (select * from _pauses where pause_ns > 0) as p
    asof join (select * from _threads) as t
        on t.run = p.run and t.capture = p.capture and t.rank = p.rank and p.at_ns >= t.timestamp_ns
),
_ratios as (
    select p.*, pause_ns / usual_ns as ratio
    from _positions as p
    join (
        select run, capture, rank, operator, before, median(pause_ns) as usual_ns
        from _positions where not is_far group by all having count(*) >= 3
    ) using (run, capture, rank, operator, before)
),
_pairs as (
    select run, capture, rank, count(*) filter (where not is_far) as near_count,
        count(*) filter (where is_far) as far_count,
        list(ratio order by ratio) filter (where is_far) as far,
        0.98 * sqrt(far_count) as reach
    from _ratios group by all
)
select run, capture, rank, device_node, sample_count, far_ratio, migration_count,
    coalesce(near_count, 0) as near_count, coalesce(far_count, 0) as far_count,
    if(least(near_count, far_count) >= 30, far[far_count // 2 + 1], null) as slow_ratio,
    if(least(near_count, far_count) >= 30, far[cast(floor(far_count / 2 - reach) as bigint) + 1], null) as slow_low_ratio,
    if(least(near_count, far_count) >= 30, far[least(cast(ceil(far_count / 2 + reach) as bigint) + 1, far_count)], null)
        as slow_high_ratio
from _places left join _pairs using (run, capture, rank)
order by run, capture, rank
