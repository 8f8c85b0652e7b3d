-- Which recorded steps have no figures, because no compute kernel or operation belongs to them?
--
-- Ranks without any event are left out: nothing of theirs could.
--
--   run      varchar  run of the training job
--   capture  varchar  ranks profiled at the same time
--   rank     integer  global rank
--   step     bigint   producer's step number
with
_with_events as (
    select distinct run, capture, rank from step_summary where basis = 'events'
)
select distinct run, capture, rank, step
from steps
semi join _with_events using (run, capture, rank)
anti join step_summary using (run, capture, rank, step)
where step is not null
order by run, capture, rank, step
