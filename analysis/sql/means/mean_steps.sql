-- Where does the time of a mean step go: of the capture, of each rank, step and pipeline stage?
--
-- Means are over the pairs of rank and step of which computing, exposed communication and free time are all known, so
-- that these add up to length_ns; where there is no such pair, each is the mean of what is known. Warm-up steps
-- (job_steps) are left out where several steps are added up and others remain. Ratios are quotients of sums over the
-- same pairs.
--
-- title: Mean steps
-- meaning: A mean step of the capture, of each rank and stage, and of each step over its ranks.
-- gauge: npuscope_capture_warm_up_steps = case when by_key = 'capture' then warm_up_count end: Warm-up steps of the capture, excluded from means except those of expert load.
-- gauge: npuscope_step_seconds = job_step_ns: Time of a step of the job, mean over the capture's steps.
-- gauge: npuscope_step_part_seconds{part} = computing_ns, exposed_communication_ns, free_ns: Where a step's time goes: computing, exposed_communication or free (neither a kernel nor an operation of the step; another step's may run); mean of ranks and steps.
-- gauge: npuscope_job_masking_ratio = masking_ratio: Masking ratio: communication overlapped by computing over communication, all kinds.
-- gauge: npuscope_free_ratio = free_ratio: Free time share: neither a kernel nor an operation of the step runs (another step's may), over first start to last end.
-- gauge: npuscope_pipeline_wait_ratio{stage} = bubble_ratio: Pipeline bubble share: time ranks of a stage wait to receive, over first start to last end.
-- gauge: npuscope_rank_step_seconds{rank} = step_ns: Length of a step, mean of steps.
-- gauge: npuscope_rank_computing_seconds{rank} = computing_ns: Computing in a step, mean of steps.
-- gauge: npuscope_rank_exposed_seconds{rank} = exposed_communication_ns: Exposed communication per step, mean over steps.
-- gauge: npuscope_rank_free_seconds{rank} = free_ns: Time with neither a kernel nor an operation of the step (another step's may run), mean of steps.
-- gauge: npuscope_rank_masking_ratio{rank} = masking_ratio: Masking ratio: communication overlapped by computing over communication.
-- table: ranks_by_host
-- figure: masking, ranks, hosts
--
--   run                       varchar  run of the training job
--   capture                   varchar  ranks profiled at the same time
--   by_key                    varchar  capture, rank, step, rank_step, stage or stage_step: what the row is of
--   rank                      integer  global rank, by rank or rank_step
--   step                      bigint   producer's step number, by step, rank_step or stage_step
--   stage                     integer  pipeline stage, by stage or stage_step: of captures with several
--   rank_count                bigint   ranks that the means are over
--   step_count                bigint   steps that the means are over
--   rank_step_count           bigint   pairs of rank and step that the means are over
--   warm_up_count             bigint   steps left out as warm-up
--   job_step_ns               double   time of the job's step (job_steps), mean of the steps; NULL by rank and stage, and where no length is known
--   step_ns                   double   length of the step on its rank (step_lengths)
--   length_ns                 double   computing, exposed communication and free time together
--   computing_ns              double   time in which compute kernels run
--   exposed_communication_ns  double   communication that no compute hides
--   free_ns                   double   time of neither
--   stage_ns                  double   first start to last end without receiving, as in steps
--   communication_ns          double   time in which the rank communicates
--   overlapped_ns             double   communication that compute hides
--   masking_ratio             double   overlapped / communication; NULL where there is none
--   free_ratio                double   free / first start to last end
--   bubble_ratio              double   waiting to receive that no compute hides / first start to last end
with
_stages as (
    select run, capture, rank, any_value(pp_rank) as stage, any_value(pp_size) as pp_size
    from ranks group by run, capture, rank
),
_all as (
    select s.run, s.capture, s.rank, s.step,
        case when pp_size > 1 then stage end as stage,
        case when j.step_ns > 0 then j.step_ns end as job_step_ns,
        l.step_ns,
        computing_ns, exposed_communication_ns, free_ns, stage_ns, communication_ns, overlapped_ns, bubble_ns,
        computing_ns + exposed_communication_ns + free_ns as length_ns,
        coalesce(end_ns - start_ns, computing_ns + exposed_communication_ns + free_ns) as extent_ns,
        coalesce(is_warm_up, false) as is_warm_up
    from step_summary as s
    left join _stages as p on p.run = s.run and p.capture = s.capture and p.rank = s.rank
    left join job_steps as j on j.run = s.run and j.capture = s.capture and j.step is not distinct from s.step
    left join step_lengths as l on l.run = s.run and l.capture = s.capture and l.rank = s.rank
        and l.step is not distinct from s.step
    qualify s.step is not null or not bool_or(s.step is not null) over (partition by s.run, s.capture)
),
_keyed as (
    select * replace (
            case when by_key in ('rank', 'rank_step') then rank end as rank,
            case when by_key in ('step', 'rank_step', 'stage_step') then step end as step,
            case when by_key in ('stage', 'stage_step') then stage end as stage
        ),
        rank as of_rank, step as of_step
    from _all, (select unnest(['capture', 'rank', 'step', 'rank_step', 'stage', 'stage_step']) as by_key)
    where by_key not in ('stage', 'stage_step') or stage is not null
),
_apart as (
    select *, is_warm_up and not bool_and(is_warm_up) over _of as is_apart
    from _keyed
    window _of as (partition by run, capture, by_key, rank, step, stage)
),
_counts as (
    select *, not is_apart and (
            length_ns is not null
            or not coalesce(bool_or(length_ns is not null) filter (where not is_apart) over _of, false)
        ) as is_counted
    from _apart
    window _of as (partition by run, capture, by_key, rank, step, stage)
)
select run, capture, by_key, rank, step, stage,
    count(distinct of_rank) filter (where is_counted) as rank_count,
    count(distinct of_step) filter (where is_counted) as step_count,
    count(*) filter (where is_counted) as rank_step_count,
    count(distinct of_step) filter (where is_apart) as warm_up_count,
    case when by_key in ('capture', 'step') then
        list_avg(list_transform(
            list(distinct {'step': of_step, 'step_ns': job_step_ns}) filter (where is_counted), lambda one: one.step_ns))
    end as job_step_ns,
    avg(step_ns) filter (where is_counted) as step_ns,
    avg(length_ns) filter (where is_counted) as length_ns,
    avg(computing_ns) filter (where is_counted) as computing_ns,
    avg(exposed_communication_ns) filter (where is_counted) as exposed_communication_ns,
    avg(free_ns) filter (where is_counted) as free_ns,
    avg(stage_ns) filter (where is_counted) as stage_ns,
    avg(communication_ns) filter (where is_counted) as communication_ns,
    avg(overlapped_ns) filter (where is_counted) as overlapped_ns,
    cast(sum(overlapped_ns) filter (where is_counted and communication_ns is not null) as double)
        / nullif(sum(communication_ns) filter (where is_counted and overlapped_ns is not null), 0) as masking_ratio,
    cast(sum(free_ns) filter (where is_counted and extent_ns is not null) as double)
        / nullif(sum(extent_ns) filter (where is_counted and free_ns is not null), 0) as free_ratio,
    cast(sum(bubble_ns) filter (where is_counted and extent_ns is not null) as double)
        / nullif(sum(extent_ns) filter (where is_counted and bubble_ns is not null), 0) as bubble_ratio
from _counts
group by run, capture, by_key, rank, step, stage
order by run, capture, by_key, rank nulls first, step nulls first, stage nulls first
