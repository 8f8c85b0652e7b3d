-- How much memory does each component take at the end of each step, and how much most inside it?
--
-- The level of a curve is what is allocated, or what is reserved where the curve knows no allocation at all. Between
-- two records it stays what it was, and before the first it is unknown. A step is its range on the host, because
-- memory is allocated there; where no range was recorded, from the first start to the last end of its kernels and
-- operations. What happens at the very end of a step belongs to the next. Of several records of one instant the
-- highest is taken. Curves that never held anything are left out.
--
-- title: Memory by step
-- meaning: Memory at the end of each step, and the most inside it, by component.
-- rows from: memory
-- command: memory --by step
-- figure: memory_curve, growth
--
--   run           varchar  run of the training job
--   capture       varchar  ranks profiled at the same time
--   rank          integer  global rank
--   component     varchar  PTA (framework), GE (graph engine), PTA+GE, APP (process), DEVICE, HCCL, ...
--   step          bigint   producer's step number
--   end_bytes     bigint   level at the end of the step
--   change_bytes  bigint   that less the level at the end of the step before; NULL for the first
--   peak_bytes    bigint   highest level inside the step, with what it began at
--   level         varchar  allocated or reserved: what is measured
--   sample_count  bigint   records inside the step
--   start_ns      bigint   start of the step
--   end_ns        bigint   end of the step
--   source        varchar  record or module, as in memory
--   device_id     integer  device the curve belongs to; NULL where unknown
with
_curves as materialized (
    select *, cast(row_number() over () as integer) as curve
    from (
        select run, capture, rank, component, source, device_id, count(allocated_bytes) > 0 as has_allocated,
            min(timestamp_ns) as first_ns, max(timestamp_ns) as last_ns
        from memory
        where component is not null
        group by run, capture, rank, component, source, device_id
        having max(coalesce(allocated_bytes, 0)) > 0 or max(coalesce(reserved_bytes, 0)) > 0
    )
    -- True of every one. It tells the planner that they are few, so that it looks for records among them.
    qualify curve > 0
),
_recorded as (
    select run, capture, rank, step,
        case when window_start_ns < window_end_ns then window_start_ns else device_start_ns end as start_ns,
        case when window_start_ns < window_end_ns then window_end_ns else device_end_ns end as end_ns
    from steps
    where step is not null
),
_worked as (
    select run, capture, rank, step, min(start_ns) as start_ns, max(start_ns + dur_ns) as end_ns
    from (
        select run, capture, rank, step, start_ns, dur_ns from kernels where step is not null
        union all
        select run, capture, rank, step, start_ns, dur_ns from comm_ops where step is not null
    )
    anti join (select run, capture, rank from _recorded where start_ns < end_ns) using (run, capture, rank)
    group by run, capture, rank, step
),
_steps as materialized (
    select run, capture, rank, step, min(start_ns) as start_ns, max(end_ns) as end_ns
    from (select * from _recorded union all select * from _worked)
    where start_ns < end_ns
    group by run, capture, rank, step
),

-- Time is cut where a step starts or ends; the first piece is all that lies before them.
--
--   records   .  . |  .   . . |.    .   .|  ...       end of a step: the last level in the piece that ends with it,
--   steps          [    11    )[    12   )            or in the last piece before that has any
--   pieces  0      |    1     |    2     |
_cuts as (
    select distinct run, capture, rank, unnest([start_ns, end_ns]) as at_ns from _steps
),
_pieces as materialized (
    select run, capture, rank, at_ns as until_ns,
        lag(at_ns) over _in_time as from_ns,
        cast(row_number() over _in_time as integer) as piece
    from _cuts
    window _in_time as (partition by run, capture, rank order by at_ns)
),
-- Records find their piece through a grid of equal widths, so that none is compared with every piece. It covers the
-- time of the records only: a step with a torn time makes no cell wide.
_ranges as (
    select run, capture, rank, greatest(min(until_ns), any_value(first_record_ns)) as zero_ns,
        least(max(until_ns), any_value(last_record_ns)) as end_ns, count(*) as pieces
    from _pieces join (
        select run, capture, rank, min(first_ns) as first_record_ns, max(last_ns) as last_record_ns
        from _curves group by run, capture, rank
    ) using (run, capture, rank)
    group by run, capture, rank
),
_grids as materialized (
    select *, greatest(end_ns - zero_ns, 0) // (2 * pieces) + 1 as width_ns,
        cast(row_number() over () as integer) as grid
    from _ranges join _curves using (run, capture, rank)
    qualify grid > 0
),
_places as materialized (
    select *, cast(row_number() over () as integer) as place
    from (
        select curve, piece, from_ns, until_ns,
            unnest(case when from_ns is null then [-1] else range(
                (greatest(from_ns, zero_ns) - zero_ns) // width_ns,
                (least(until_ns - 1, end_ns) - zero_ns) // width_ns + 1
            ) end) as cell
        from _pieces join _grids using (run, capture, rank)
    )
    qualify place > 0
),
_levels as (
    select curve, timestamp_ns,
        case when timestamp_ns < zero_ns then -1 else (timestamp_ns - zero_ns) // width_ns end as cell,
        case when has_allocated then allocated_bytes else reserved_bytes end as level_bytes
    from memory as m
    join _grids as g on g.run = m.run and g.capture = m.capture and g.rank = m.rank and g.source = m.source
        and g.component = m.component and g.device_id is not distinct from m.device_id
),
_matches as (
    select curve, piece, count(*) as sample_count, max(level_bytes) as most_bytes,
        arg_max(level_bytes, timestamp_ns * 18446744073709551616 + level_bytes) as last_bytes
    from _levels join _places using (curve, cell)
    where level_bytes is not null and (from_ns is null or timestamp_ns >= from_ns) and timestamp_ns < until_ns
    group by curve, piece
),
_holders as (
    select run, capture, rank, component, source, device_id, has_allocated, piece, from_ns, until_ns,
        coalesce(sample_count, 0) as sample_count,
        most_bytes,
        last_value(last_bytes ignore nulls) over (_in_time rows between unbounded preceding and 1 preceding)
            as first_bytes,
        last_value(last_bytes ignore nulls) over (_in_time rows between unbounded preceding and current row)
            as last_bytes
    from _pieces
    join _curves using (run, capture, rank)
    left join _matches using (curve, piece)
    window _in_time as (partition by curve order by piece)
),
-- A step is one piece, or several where steps overlap.
_answer as (
    select h.run, h.capture, h.rank, component, step,
        max(h.last_bytes) filter (where h.until_ns = s.end_ns) as end_bytes,
        max(greatest(h.first_bytes, h.most_bytes)) as peak_bytes,
        case when has_allocated then 'allocated' else 'reserved' end as level,
        cast(sum(sample_count) as bigint) as sample_count,
        s.start_ns, s.end_ns, source, device_id
    from _holders as h
    join _steps as s on s.run = h.run and s.capture = h.capture and s.rank = h.rank
        and h.from_ns >= s.start_ns and h.until_ns <= s.end_ns
    group by h.run, h.capture, h.rank, component, step, has_allocated, s.start_ns, s.end_ns, source, device_id
)
select run, capture, rank, component, step, end_bytes,
    end_bytes - lag(end_bytes) over (
        partition by run, capture, rank, component, source, device_id order by step
    ) as change_bytes,
    peak_bytes, level, sample_count, start_ns, end_ns, source, device_id
from _answer
where end_bytes is not null
order by run, capture, rank, source desc, device_id nulls last, component, step
