-- How fast do the chip and the host of each rank work?
--
-- What can be compared between ranks whatever they wait for: the frequency of the cube cores, the pace at which
-- the host launches, the gaps that kernels of one stream leave between them. The frequency is what the counter
-- showed over the capture and, separately, cycles over (core time x cores) of the step's kernels on cube cores.
-- Launches belong to the step in whose window the host call starts. Medians, so that a stop of the host or a
-- wait inside a gap does not count.
--
-- title: Chip clock and host pace
-- meaning: Frequency, launches and gaps between kernels of each rank, for comparison.
-- rows from: kernels
--
--   run                 varchar  run of the training job
--   capture             varchar  ranks profiled at the same time
--   rank                integer  global rank
--   step                bigint   producer's step number; NULL: outside every step, or the capture has none
--   kernel_count        bigint   compute kernels
--   kernel_gap_ns       bigint   median gap between a compute kernel and the one before it on its stream
--   launch_count        bigint   launches of kernels and operations; NULL where none are recorded
--   launch_interval_ns  bigint   median time from one launch of a host thread to the next
--   frequency_mhz       double   mean of the AI core frequency counter; NULL where there is none
--   cycles_mhz          double   frequency by cycles of cube cores; NULL where the PMU has none
with
_gaps as (
    select run, capture, rank, step, core, aic_cycles, aic_time_ns, block_count,
        greatest(start_ns - lag(start_ns + dur_ns) over (
            partition by run, capture, rank, device_id, stream_id order by start_ns
        ), 0) as gap_ns
    from kernels
    where is_compute and start_ns is not null and dur_ns >= 0
),
_kernels as (
    select run, capture, rank, step,
        count(*) as kernel_count,
        cast(quantile_disc(gap_ns, 0.5) as bigint) as kernel_gap_ns,
        sum(aic_cycles) filter (where core in ('AI_CORE', 'MIX_AIC') and aic_time_ns > 0 and block_count > 0)
            * 1000
            / nullif(sum(aic_time_ns * block_count) filter (
                where core in ('AI_CORE', 'MIX_AIC') and aic_cycles > 0 and block_count > 0
            ), 0) as cycles_mhz
    from _gaps
    group by run, capture, rank, step
),
_intervals as (
    select run, capture, rank, api_start_ns,
        lead(api_start_ns) over (
            partition by run, capture, rank, api_thread_id order by api_start_ns
        ) - api_start_ns as interval_ns
    from launches
    where api_start_ns is not null and target in ('kernel', 'communication')
),
_places as (
    select i.run, i.capture, i.rank, s.step, i.interval_ns
    from _intervals as i
    asof left join (select * from steps where window_start_ns is not null) as s
        on i.run = s.run and i.capture = s.capture and i.rank = s.rank and i.api_start_ns >= s.window_start_ns
    where s.step is null or i.api_start_ns < s.window_end_ns
),
_launches as (
    select run, capture, rank, step,
        count(*) as launch_count,
        cast(quantile_disc(interval_ns, 0.5) as bigint) as launch_interval_ns
    from _places
    group by run, capture, rank, step
),
_frequency as (
    select run, capture, rank, avg(value) as frequency_mhz
    from counters
    where name = 'AI Core Freq' and series = 'MHz' and value > 0
    group by run, capture, rank
)
select k.run, k.capture, k.rank, k.step, kernel_count, kernel_gap_ns, launch_count, launch_interval_ns,
    frequency_mhz, cycles_mhz
from _kernels as k
left join _launches as l on l.run = k.run and l.capture = k.capture and l.rank = k.rank
    and l.step is not distinct from k.step
left join _frequency as f on f.run = k.run and f.capture = k.capture and f.rank = k.rank
order by k.run, k.capture, k.rank, k.step nulls last
