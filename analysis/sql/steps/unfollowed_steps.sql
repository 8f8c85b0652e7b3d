-- Of which captures are steps measured to their own end, though their host took longer?
--
-- Of a step without a recorded next one nobody knows how long the device would wait for that: a window of the host that
-- is longer tells that it would. Where these windows exceed all lengths together by less than a twentieth, it hardly
-- matters.
--
--   run        varchar   run of the training job
--   capture    varchar   ranks profiled at the same time
--   steps      bigint[]  such steps
--   longer_ns  bigint    the most by which a window is longer
with
_windows as (
    select l.run, l.capture, l.step, step_ns,
        case when length_basis = 'activity' then greatest(window_end_ns - window_start_ns - step_ns, 0) end as longer_ns
    from step_lengths as l
    join step_summary as s on s.run = l.run and s.capture = l.capture and s.rank = l.rank
        and s.step is not distinct from l.step
)
select run, capture, list_sort(list(distinct step) filter (where longer_ns > 0)) as steps, max(longer_ns) as longer_ns
from _windows
group by run, capture
having sum(longer_ns) > 0.05 * sum(step_ns) and count(step) filter (where longer_ns > 0) > 0
order by run, capture
