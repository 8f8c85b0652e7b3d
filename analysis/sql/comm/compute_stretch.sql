-- What does overlap gain, given that kernels slow down during communication?
--
-- Stretch is the time of overlapped kernels over that of the same kernels alone, of those that can be compared (see
-- stretched_kernels), so that longer kernels weigh more. The net gain is the communication that compute hides, less
-- what hiding it costs the kernels. It is unknown where less than half of the overlapped time can be compared. Kernels
-- that take longer during communication can have other reasons too: their place in the step, the clock of the chip.
--
-- title: Net gain of overlap
-- meaning: Slowdown of kernels during communication, and the net gain of overlap.
-- command: comm --by stretch
--
--   run                      varchar  run of the training job
--   capture                  varchar  ranks profiled at the same time
--   rank                     integer  global rank
--   step                     bigint   producer's step number; NULL: outside every step, or the capture has none
--   overlapped_kernel_count  bigint   compute kernels that overlap communication
--   overlapped_ns            bigint   sum of their durations
--   compared_kernel_count    bigint   of them those with the same kernel alone
--   compared_ns              bigint   sum of their durations
--   expected_ns              bigint   what they would take alone
--   stretch_ratio            double   compared / expected; NULL where nothing can be compared
--   extra_ns                 bigint   compared - expected; less than 0 where they are faster; NULL likewise
--   masked_ns                bigint   communication of the step that compute hides
--   net_gain_ns              bigint   masked - extra; NULL where less than half can be compared
with
_stretch as (
    select *,
        case when compared_kernel_count > 0 or overlapped_kernel_count = 0 then compared_ns - expected_ns end
            as extra_ns
    from stretched_kernels
),
_masked as (
    select run, capture, rank, step, overlapped_ns as masked_ns from step_summary
)
select s.run, s.capture, s.rank, s.step,
    overlapped_kernel_count,
    overlapped_ns,
    compared_kernel_count,
    compared_ns,
    expected_ns,
    cast(compared_ns as double) / nullif(cast(expected_ns as double), 0) as stretch_ratio,
    extra_ns,
    masked_ns,
    case when 2 * compared_ns >= overlapped_ns then masked_ns - extra_ns end as net_gain_ns
from _stretch as s
left join _masked as m on m.run = s.run and m.capture = s.capture and m.rank = s.rank
    and m.step is not distinct from s.step
order by s.run, s.capture, s.rank, s.step nulls last
