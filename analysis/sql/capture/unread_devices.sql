-- Which devices of a producer's table stand for no rank, because the rank is one of several?
--
--   run      varchar    run of the training job
--   capture  varchar    ranks profiled at the same time
--   rank     integer    global rank
--   known    boolean    the rank's own device is known and among them
--   devices  integer[]  all devices of the table
with
_light as (
    select distinct run, capture, rank from step_summary where basis = 'profiler_table'
),
_own as (
    select run, capture, rank, min(device_id) as own_device from ranks group by run, capture, rank
)
select run, capture, rank,
    coalesce(bool_or(device_id = own_device), false) as known,
    list_sort(list(distinct device_id)) as devices
from profiler_steps
semi join _light using (run, capture, rank)
left join _own using (run, capture, rank)
where device_id is not null
group by run, capture, rank
having count(distinct device_id) > 1
order by run, capture, rank
