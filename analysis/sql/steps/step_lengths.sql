-- How long was each step on its rank?
--
-- From its first kernel or operation to the next step's where that follows, else to its own last one: as job_steps, of
-- one rank, so that consecutive steps add up to what was captured. The host's windows tell only of ranks whose device
-- times are unknown (to the next window where that follows): a host that runs ahead is done with a step long before the
-- device. The time that MFU divides by.
--
-- title: Step length
-- meaning: Length of each step on its rank: the denominator of MFU.
--
--   run           varchar  run of the training job
--   capture       varchar  ranks profiled at the same time
--   rank          integer  global rank
--   step          bigint   producer's step number; NULL: the capture has no steps
--   step_ns       bigint   length of the step; NULL where not recorded
--   length_basis  varchar  to_next (start to start on the device), activity (its own start to end there) or window (of the host); NULL where not recorded
with
_following as (
    select run, capture, rank, step, window_start_ns, window_end_ns, start_ns, end_ns,
        lead(step) over _later as next_step,
        lead(start_ns) over _later as next_start_ns,
        lead(window_start_ns) over _later as next_window_ns
    from step_summary
    window _later as (partition by run, capture, rank order by step nulls last)
),
_lengths as (
    select run, capture, rank, step,
        case when next_step = step + 1 then next_start_ns - start_ns end as to_next_ns,
        end_ns - start_ns as activity_ns,
        case when next_step = step + 1 and next_window_ns > window_start_ns then next_window_ns else window_end_ns end
            - window_start_ns as window_ns
    from _following
)
select run, capture, rank, step,
    case when to_next_ns > 0 then to_next_ns when activity_ns > 0 then activity_ns when window_ns > 0 then window_ns end
        as step_ns,
    case when to_next_ns > 0 then 'to_next' when activity_ns > 0 then 'activity' when window_ns > 0 then 'window' end
        as length_basis
from _lengths
order by run, capture, rank, step nulls last
