-- Which steps of a capture run no gradients on any rank, though others do?
--
-- An evaluation does: it has forward passes alone. By types of kernels, else by their names.
--
--   run      varchar   run of the training job
--   capture  varchar   ranks profiled at the same time
--   steps    bigint[]  such steps
--   others   bigint[]  steps with gradients
with
_trains
_steps as (
    select run, capture, step, bool_or(trains) as trains from _trains group by all
)
select run, capture,
    list(step order by step) filter (where not trains) as steps,
    list(step order by step) filter (where trains) as others
from _steps
group by run, capture
having bool_or(trains) and not bool_and(trains)
order by run, capture
