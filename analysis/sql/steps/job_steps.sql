-- How long was each step of the whole job, and which steps are warm-up?
--
-- From the latest start of the step over its ranks to the latest start of the next; of the last one, and where the next
-- was not recorded, to the latest end. Differences are taken on each rank's own clock, so clock offsets cancel. Where no
-- rank's times on the device are known, the longest of its ranks (step_lengths), else the longest in the producer's
-- table. Warm-up steps are the first of a capture, at most a quarter of its steps, as long as each is above the median of
-- the steps after that quarter by more than a fifth of it and by more than five times the median distance from it. Steps
-- without gradients, as of an evaluation, and those with them are held against their own alone. Where fewer than three
-- of those follow, none is. Means leave them out and notes name them.
--
-- title: Steps of the job
-- meaning: Time of each step of the whole job, and which steps are warm-up.
--
--   run         varchar  run of the training job
--   capture     varchar  ranks profiled at the same time
--   step        bigint   producer's step number; NULL: the capture has no steps
--   rank_count  bigint   ranks with the step
--   step_ns     bigint   time of the step
--   median_ns   double   median of the steps that this one is held against if it is among the first; NULL of fewer than three
--   is_warm_up  boolean  excluded from means
--   to_end_ns   bigint   from the latest start to the latest end of the step; NULL: without events
--   is_last     boolean  measured to its own end, as the next step was not recorded: what passes before that begins is
--     not in it; NULL: without events
with
_trains
_forward as (
    select run, capture, step from _trains group by all having not bool_or(trains)
),
_following as (
    select s.run, s.capture, s.rank, s.step, start_ns, end_ns, step_ns as length_ns,
        computing_ns + exposed_communication_ns + free_ns as parts_ns,
        case when lead(s.step) over _in_order = s.step + 1 then lead(start_ns) over _in_order end as next_start_ns
    from step_summary as s
    left join step_lengths as l on l.run = s.run and l.capture = s.capture and l.rank = s.rank
        and l.step is not distinct from s.step
    window _in_order as (partition by s.run, s.capture, s.rank order by s.step nulls last)
),
_lengths as (
    select run, capture, step,
        count(*) as rank_count,
        max(next_start_ns) - max(start_ns) filter (where next_start_ns is not null) as to_next_ns,
        max(end_ns) - max(start_ns) as to_end_ns,
        max(length_ns) as longest_ns,
        max(parts_ns) as parts_ns
    from _following
    group by run, capture, step
),
_facts as (
    select run, capture, step, rank_count,
        case when to_next_ns > 0 then to_next_ns else coalesce(to_end_ns, longest_ns, parts_ns) end as step_ns,
        cast(to_end_ns as bigint) as to_end_ns,
        case when to_end_ns is not null then not coalesce(to_next_ns > 0, false) end as is_last
    from _lengths
),
_places as (
    select f.*, w.step is not null as is_forward,
        row_number() over (partition by f.run, f.capture order by f.step) as place,
        greatest(count(*) over (partition by f.run, f.capture) // 4, 1) as first_count
    from _facts as f
    left join _forward as w on w.run = f.run and w.capture = f.capture and w.step = f.step
    where f.step is not null and step_ns is not null
),
_medians as (
    select run, capture, is_forward, median(step_ns) as median_ns
    from _places
    where place > first_count
    group by all
    having count(*) >= 3
),
_limits as (
    select run, capture, is_forward, any_value(median_ns) as median_ns,
        median(abs(step_ns - median_ns)) as distance_ns
    from _places join _medians using (run, capture, is_forward)
    where place > first_count
    group by all
),
_slow as (
    select run, capture, step, median_ns,
        place <= first_count and bool_and(step_ns > 1.2 * median_ns and step_ns > median_ns + 5 * distance_ns) over (
            partition by run, capture, is_forward order by step rows unbounded preceding
        ) as is_warm_up
    from _places join _limits using (run, capture, is_forward)
)
select k.run, k.capture, k.step,
    rank_count,
    cast(step_ns as bigint) as step_ns,
    median_ns,
    coalesce(is_warm_up, false) as is_warm_up,
    to_end_ns,
    is_last
from _facts as k
left join _slow as l on l.run = k.run and l.capture = k.capture and l.step = k.step
order by k.run, k.capture, k.step nulls last
