-- How long was each step on its rank?
--
-- From its recorded start to the next one's where the next step is recorded too, else the recorded window, else from
-- first to last kernel or operation. The time that MFU divides by.
--
-- title: Step length
-- meaning: Length of each step on its rank: the denominator of MFU.
--
--   run           varchar  run of the training job
--   capture       varchar  ranks profiled at the same time
--   rank          integer  global rank
--   step          bigint   producer's step number; NULL: the capture has no steps
--   step_ns       bigint   length of the step; NULL where not recorded
--   length_basis  varchar  to_next, window or activity; NULL where not recorded
with
_following as (
    select run, capture, rank, step, window_start_ns, window_end_ns, start_ns, end_ns,
        lead(step) over _later as next_step,
        lead(window_start_ns) over _later as next_start_ns
    from step_summary
    window _later as (partition by run, capture, rank order by step nulls last)
),
_lengths as (
    select run, capture, rank, step,
        case when next_step = step + 1 then next_start_ns - window_start_ns end as to_next_ns,
        window_end_ns - window_start_ns as window_ns,
        end_ns - start_ns as activity_ns
    from _following
)
select run, capture, rank, step,
    case when to_next_ns > 0 then to_next_ns when window_ns > 0 then window_ns when activity_ns > 0 then activity_ns end
        as step_ns,
    case when to_next_ns > 0 then 'to_next' when window_ns > 0 then 'window' when activity_ns > 0 then 'activity' end
        as length_basis
from _lengths
order by run, capture, rank, step nulls last
