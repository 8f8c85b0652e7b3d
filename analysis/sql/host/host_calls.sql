-- Which calls keep the host from launching, how often, and for how long?
--
-- Calls of the causes of free_causes but dispatch and the device, whether the device was free meanwhile or not. A call of
-- the device's interface within an operator that waits for the device is that operator's, and a call within another of
-- its thread and cause is the outer one's. Between two steps it is the one's before.
--
-- title: Calls that keep the host from launching
-- meaning: Garbage collection, data loading, checkpoints, logging and waits for the device, with their lengths.
-- rows from: host_ops, marks
-- command: host --by call
-- table: host_calls
--
--   run         varchar  run of the training job
--   capture     varchar  ranks profiled at the same time
--   rank        integer  global rank
--   step        bigint   producer's step number in which it began, until the next one begins; NULL: before or after all
--   cause       varchar  garbage_collection, data_loading, checkpoint, logging, profiler or synchronisation
--   operator    varchar  operator, Python function or call of the interface
--   location    varchar  line of source, the innermost that is no library's; NULL: stacks were not recorded or not read
--   count       bigint   calls
--   total_ns    bigint   time in them
--   longest_ns  bigint   the longest of them
with
_host_causes
_reached as (
    select *, max(end_ns) over (
        partition by run, capture, rank, thread_id, least(priority, 6)
        order by start_ns, end_ns desc, priority, operator desc
        rows between unbounded preceding and 1 preceding
    ) as reached_ns
    from _host_calls
),
_outer as (
    select * exclude (reached_ns) from _reached where reached_ns is null or end_ns > reached_ns
),
-- Until when those that began so far wait, on any thread: the last to begin need not be the last to end.
_within as (
    select run, capture, rank, start_ns,
        max(end_ns) over (partition by run, capture, rank order by start_ns) as end_ns
    from _outer where priority = 6
),
_own as (
    select c.*
    from _outer as c
    asof left join _within as o
        on o.run = c.run and o.capture = c.capture and o.rank = c.rank and c.start_ns >= o.start_ns
    where c.priority <> 7 or o.end_ns is null or c.start_ns >= o.end_ns
),
_windows as (
    select run, capture, rank, step, window_start_ns,
        coalesce(
            lead(window_start_ns) over (partition by run, capture, rank order by window_start_ns, step), window_end_ns
        ) as until_ns
    from steps where window_start_ns is not null
),
_places as (
    select o.*, case when o.start_ns < until_ns then step end as step
    from _own as o
    asof left join _windows as w
        on w.run = o.run and w.capture = o.capture and w.rank = o.rank and o.start_ns >= w.window_start_ns
)
select run, capture, rank, step,
    ['garbage_collection', 'data_loading', 'checkpoint', 'logging', 'profiler', 'synchronisation', 'synchronisation'][priority]
        as cause,
    operator,
    coalesce(
        list_filter(string_split(call_stack, chr(10)), lambda line: line <> ''
            and not regexp_matches(line, 'site-packages|dist-packages|/lib/python|<frozen|torch(_npu)?/'))[1],
        nullif(trim(split_part(call_stack, chr(10), 1)), '')) as location,
    count(*) as count, cast(sum(end_ns - start_ns) as bigint) as total_ns, max(end_ns - start_ns) as longest_ns
from _places group by all
order by run, capture, rank, total_ns desc, cause, operator, location nulls last, step
