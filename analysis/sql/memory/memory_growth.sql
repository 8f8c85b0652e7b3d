-- Does memory grow from step to step, and does it do so steadily?
--
-- Levels at the ends of a rank's recorded steps, as in memory_steps. Growth per step is the median of the changes from
-- one end to the next (divided by how many steps apart they are), so that a single jump is no trend. Growth is
-- steady only if at least five steps were recorded, the level rose from every end to the next, each time by half to
-- twice the median, and at this pace it doubles within 100,000 steps. With less than five steps nothing is said
-- (NULL): two or three levels in a row rise by chance.
--
-- title: Growth of memory
-- meaning: How much memory grows per step, and whether steadily.
-- command: memory --by growth
-- table: memory_growth
-- figure: growth
--
--   run                    varchar  run of the training job
--   capture                varchar  ranks profiled at the same time
--   rank                   integer  global rank
--   component              varchar  PTA (framework), GE (graph engine), PTA+GE, APP (process), DEVICE, HCCL, ...
--   is_steady              boolean  grows steadily; NULL with less than five steps
--   growth_per_step_bytes  double   median change from step to step; NULL with less than two steps
--   growth_bytes           bigint   level at the end of the last step less that of the first; NULL with less than two
--   step_count             bigint   recorded steps with a known level
--   first_step             bigint   the first of them
--   last_step              bigint   the last of them
--   last_bytes             bigint   level at its end
--   level                  varchar  allocated or reserved: what is measured
--   source                 varchar  record or module, as in memory
--   device_id              integer  device the curve belongs to; NULL where unknown
with
_changes as (
    select *,
        cast(end_bytes - lag(end_bytes) over _in_time as double) / nullif(step - lag(step) over _in_time, 0)
            as change_per_step_bytes
    from memory_steps
    window _in_time as (partition by run, capture, rank, component, source, device_id order by step)
),
_growth as (
    select run, capture, rank, component, source, device_id, level,
        count(*) as step_count,
        min(step) as first_step,
        max(step) as last_step,
        arg_max(end_bytes, step) as last_bytes,
        case when count(*) > 1 then arg_max(end_bytes, step) - arg_min(end_bytes, step) end as growth_bytes,
        median(change_per_step_bytes) as growth_per_step_bytes,
        min(change_per_step_bytes) as least_growth_bytes,
        max(change_per_step_bytes) as most_growth_bytes
    from _changes
    group by run, capture, rank, component, source, device_id, level
)
select run, capture, rank, component,
    case when step_count >= 5 then
        least_growth_bytes > 0 and 2 * least_growth_bytes >= growth_per_step_bytes
            and 2 * growth_per_step_bytes >= most_growth_bytes and 100000 * growth_per_step_bytes >= last_bytes
    end as is_steady,
    growth_per_step_bytes, growth_bytes, step_count, first_step, last_step, last_bytes, level, source, device_id
from _growth
order by run, capture, rank, source desc, device_id nulls last, component
