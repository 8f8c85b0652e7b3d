-- How much work of its own had a rank done when it came to each communication operation?
--
-- A row per operation. A rank's own time runs while a compute kernel runs, and while nothing does: it stands
-- still while the rank communicates with no kernel running, which is when others can make it wait. So the own
-- time between two operations tells what the rank itself took, whoever it waited for, and needs no clock but
-- its own. What an idle device waits for (its host, as a rule) counts as the rank's own.
--
-- title: Own work before communication
-- meaning: Own work of a rank before each communication operation, without its waiting.
-- rows from: comm_ops
--
--   run           varchar  run of the training job
--   capture       varchar  ranks profiled at the same time
--   rank          integer  global rank
--   step          bigint   producer's step number; NULL: outside every step, or the capture has none
--   name          varchar  operation
--   op_type       varchar  allReduce, allToAllV, send, ...
--   group_hash    varchar  communication group
--   start_ns      bigint   start on the rank's clock
--   dur_ns        bigint   duration
--   own_ns        bigint   own time from the rank's first event to the start of the operation
--   exposed_ns    bigint   part of the operation not overlapped by a compute kernel
with
_keys as materialized (
    select *, cast(row_number() over (order by run, capture, rank) as integer) as rank_key
    from (select distinct run, capture, rank from comm_ops)
    -- True of every one. It tells the planner that they are few, so that it looks for events among them.
    qualify rank_key > 0
),
_operations as materialized (
    select rank_key, step, name, op_type, group_hash, start_ns, dur_ns,
        cast(row_number() over () as bigint) as op_key
    from comm_ops join _keys using (run, capture, rank)
    where start_ns is not null and dur_ns >= 0
),
_edges as (
    select rank_key, start_ns as t_ns, start_ns + dur_ns as kernel_end_ns, null as op_end_ns,
        null as op_key, null as is_end
    from kernels join _keys using (run, capture, rank)
    where is_compute and dur_ns > 0 and start_ns is not null
    union all
    select rank_key, start_ns, null, start_ns + dur_ns, op_key, false from _operations
    union all
    select rank_key, start_ns + dur_ns, null, null, op_key, true from _operations
),
-- One walk in order of time, the furthest end of a kernel, and of anything, so far: an instant t of the n-th rank
-- is taken as n * 2^64 + t. (`greatest` and `least` ignore NULLs.)
_walk as (
    select rank_key, op_key, is_end, t_ns, rank_key * 18446744073709551616 + t_ns as instant,
        max(rank_key * 18446744073709551616 + kernel_end_ns)
            over (rows between unbounded preceding and current row) as kernel_reach,
        max(rank_key * 18446744073709551616 + greatest(kernel_end_ns, op_end_ns))
            over (rows between unbounded preceding and current row) as reach
    from (select * from _edges order by rank_key, t_ns)
),
-- Between two neighbours nothing starts, so what is covered goes from the first of them to the furthest end.
_after as (
    select rank_key, op_key, is_end, t_ns,
        cast(greatest(least(coalesce(kernel_reach, instant), lead(instant) over ()) - instant, 0) as bigint)
            as computing_ns,
        cast(greatest(least(coalesce(reach, instant), lead(instant) over ()) - instant, 0) as bigint) as busy_ns
    from _walk
),
_before as (
    select rank_key, op_key, is_end, t_ns,
        sum(computing_ns) over (rows between unbounded preceding and current row) - computing_ns as computing_ns,
        sum(busy_ns) over (rows between unbounded preceding and current row) - busy_ns as busy_ns,
        min(t_ns) over (partition by rank_key) as first_ns,
        min(sum_busy_ns) over (partition by rank_key) as rank_busy_ns,
        min(sum_computing_ns) over (partition by rank_key) as rank_computing_ns
    from (
        select *,
            sum(busy_ns) over (rows between unbounded preceding and current row) - busy_ns as sum_busy_ns,
            sum(computing_ns) over (rows between unbounded preceding and current row) - computing_ns
                as sum_computing_ns
        from _after
    )
),
_places as (
    select op_key,
        min(t_ns - first_ns - (busy_ns - rank_busy_ns) + (computing_ns - rank_computing_ns))
            filter (where not is_end) as own_ns,
        max(computing_ns) - min(computing_ns) as covered_ns
    from _before
    where op_key is not null
    group by op_key
)
select run, capture, rank, step, name, op_type, group_hash, start_ns, dur_ns,
    cast(own_ns as bigint) as own_ns,
    cast(dur_ns - covered_ns as bigint) as exposed_ns
from _operations
join _places using (op_key)
join _keys using (rank_key)
order by run, capture, rank, start_ns, name
