-- What was each step's free time lost to?
--
-- Of each gap of steps whose launch is known. Its host part (as in steps) goes by stages, each from where the one before
-- ends: Python until the operator began that launched what came next, preparing until that was enqueued, enqueuing, in the
-- queue until a thread took it, dequeuing until the call that launches, launching until it reaches the device. Where there
-- is no task queue, preparing lasts until the launch; where no operator is known, the stage before is unknown.
-- Of these, time in garbage collection, data loading, checkpoints, logging, the profiler or a call that waits for the
-- device counts as that, in this order. Where the host waited for the device when the device fell free, the whole host
-- part is the wait's: the host had lost its lead. The idle part is the device's: behind an event, a copy or another task
-- of the stream that went on, or between tasks, where nothing that was recorded says why.
-- An episode joins gaps of host time that follow each other with less work than free time between them; the costliest 20
-- of each step are kept, with the cause and stage that most of it is.
--
-- title: Causes of free time
-- meaning: What free time of each step was lost to, and the costliest episodes of it.
-- rows from: kernels, comm_ops
--
--   run         varchar  run of the training job
--   capture     varchar  ranks profiled at the same time
--   rank        integer  global rank
--   step        bigint   producer's step number; NULL: the capture has no steps
--   by_key      varchar  cause or episode: what the row is of
--   part        varchar  host or idle, as in steps
--   cause       varchar  dispatch, synchronisation, garbage_collection, data_loading, checkpoint, logging, profiler or device
--   stage       varchar  where the host was: python, prepare, enqueue, queue, dequeue, launch, unknown, or call (of a cause); of the device: event, copy, task, between
--   operator    varchar  that launched what came next, or that waited; NULL: unknown
--   thread_id   bigint   thread of it
--   start_ns    bigint   begin of an episode
--   end_ns      bigint   end of an episode
--   count       bigint   gaps
--   free_ns     bigint   time lost
--   longest_ns  bigint   the most in one gap
with
_gaps
_facts as materialized (
    select cast(row_number() over (order by label, start_ns) as integer) as gap, rank_key, label,
        start_ns - gap_ns as from_ns, start_ns as to_ns, start_ns - gap_ns + host_ns as host_until_ns,
        case when host_ns > 0 then start_ns - gap_ns + least(launch_ns, gap_ns) end as launch_ns,
        start_ns - gap_ns + launch_ns as api_start_ns
    from _launch_gaps
),
-- Of several launches of one moment any would do: the first of the lowest stream.
_ended_by as (
    select gap, rank_key, from_ns, api_start_ns, launch_ns, one.*
    from (
        select gap, any_value(k.rank_key) as rank_key, any_value(from_ns) as from_ns,
            any_value(k.api_start_ns) as api_start_ns, any_value(launch_ns) as launch_ns,
            min_by({
                'stream_id': stream_id, 'operator': operator_name, 'operator_start_ns': operator_start_ns,
                'operator_thread_id': operator_thread_id, 'api_thread_id': api_thread_id
            }, (coalesce(stream_id, -1), coalesce(connection_id, ''))) as one
        from _facts as k
        join (select * from launches join _keys using (run, capture, rank)) as l
            on l.rank_key = k.rank_key and l.device_start_ns = k.to_ns and l.api_start_ns = k.api_start_ns
        group by gap
    )
),
_dequeues as (
    select rank_key, h.thread_id, h.start_ns, h.start_ns + h.dur_ns as end_ns, e.start_ns as enqueue_ns,
        e.start_ns + e.dur_ns as enqueued_ns
    from (select * from host_ops join _keys using (run, capture, rank) where kind = 'dequeue') as h
    left join (
        select rank_key, connection_id, min(start_ns) as start_ns, any_value(dur_ns) as dur_ns
        from host_ops join _keys using (run, capture, rank)
        where kind = 'enqueue' and connection_id is not null group by all
    ) as e using (rank_key, connection_id)
),
_chain as (
    select e.*, e.api_start_ns <= d.end_ns as is_queued, if(is_queued, d.start_ns, null) as dequeue_ns,
        if(is_queued, d.enqueue_ns, null) as enqueue_ns, if(is_queued, d.enqueued_ns, null) as enqueued_ns
    from _ended_by as e
    asof left join _dequeues as d
        on d.rank_key = e.rank_key and d.thread_id = e.api_thread_id and e.api_start_ns >= d.start_ns
    where launch_ns is not null
),
-- Where stages end, each no sooner than the one before and no later than the launch.
_bounds as (
    select *, greatest(least(coalesce(enqueued_ns, dequeue_ns, launch_ns), launch_ns), prepared_ns) as put_ns
    from (
        select *, greatest(least(coalesce(enqueue_ns, dequeue_ns, launch_ns), launch_ns), from_ns) as prepared_ns
        from _chain
    )
),
_stages as (
    select gap, unnest([
        {
            'stage': if(operator_start_ns is null, 'unknown', 'python'), 'low_ns': from_ns,
            'high_ns': greatest(least(coalesce(operator_start_ns, prepared_ns), prepared_ns), from_ns),
            'thread_id': operator_thread_id
        },
        {
            'stage': 'prepare',
            'low_ns': greatest(least(coalesce(operator_start_ns, prepared_ns), prepared_ns), from_ns),
            'high_ns': prepared_ns, 'thread_id': operator_thread_id
        },
        {'stage': 'enqueue', 'low_ns': prepared_ns, 'high_ns': put_ns, 'thread_id': operator_thread_id},
        {
            'stage': 'queue', 'low_ns': put_ns,
            'high_ns': greatest(least(coalesce(dequeue_ns, launch_ns), launch_ns), put_ns),
            'thread_id': api_thread_id
        },
        {
            'stage': 'dequeue', 'low_ns': greatest(least(coalesce(dequeue_ns, launch_ns), launch_ns), put_ns),
            'high_ns': launch_ns, 'thread_id': api_thread_id
        }
    ], recursive := true), operator
    from _bounds
),
_spans as materialized (
    select row_number() over (order by gap, low_ns, stage) as span, *
    from (
        select gap, 'host' as part, 'dispatch' as cause, stage, operator, thread_id, low_ns, high_ns
        from _stages where high_ns > low_ns
        union all
        select k.gap, 'host', 'dispatch', 'launch', operator, api_thread_id, k.launch_ns, host_until_ns
        from _facts as k left join _ended_by using (gap) where host_until_ns > k.launch_ns
        union all
        select k.gap, 'idle', 'device', 'between', null, null, host_until_ns, to_ns
        from _facts as k where to_ns > host_until_ns
    )
),

-- What else went on in them: of the host on any of its threads, of the device on the stream that went on.
_host_causes
_host_hits as materialized (
    select span, gap, greatest(low_ns, h.start_ns) as low_ns, least(high_ns, h.end_ns) as high_ns, priority, h.operator,
        h.thread_id, h.start_ns <= from_ns as is_before
    from (select s.*, rank_key, from_ns from _spans as s join _facts using (gap) where part = 'host' and stage <> 'launch')
        as s
    join (select * from _host_calls join _keys using (run, capture, rank)) as h on s.rank_key * 18446744073709551616 + low_ns < h.rank_key * 18446744073709551616 + h.end_ns
        and h.rank_key * 18446744073709551616 + h.start_ns < s.rank_key * 18446744073709551616 + high_ns
),
_waiting as (
    select gap, min_by({'operator': operator, 'thread_id': thread_id}, (priority, -low_ns, operator)) as waits
    from _host_hits where priority >= 6 and is_before group by gap
),
_streams as (
    select *, row_number() over (order by rank_key, stream_id) as stream_key
    from (select distinct rank_key, stream_id from _ended_by where stream_id is not null)
),
_tasks as (
    select stream_key, start_ns, start_ns + dur_ns as end_ns, type,
        case when type ilike 'event_%' or type ilike 'notify%' then 8 when type ilike 'mem%' then 9 else 10 end as priority
    from device_tasks join _keys using (run, capture, rank) join _streams using (rank_key, stream_id)
    where dur_ns > 0 and start_ns is not null
),
-- Most have no task in them: only where the last end of those that began before is within one, is any looked for.
_interrupted as (
    select s.*
    from (
        select s.*, stream_key from _spans as s join _ended_by as e using (gap)
        join _streams as k on k.rank_key = e.rank_key and k.stream_id = e.stream_id where part = 'idle'
    ) as s
    asof join (
        select stream_key, start_ns, max(end_ns) over (
            partition by stream_key order by start_ns range between unbounded preceding and current row
        ) as reached_ns
        from _tasks
    ) as t on t.stream_key = s.stream_key and s.high_ns > t.start_ns
    where reached_ns > low_ns
),
_hits as materialized (
    select span, low_ns, high_ns, priority, operator, thread_id from _host_hits
    union all
    select span, greatest(low_ns, t.start_ns), least(high_ns, t.end_ns), priority, type, null
    from _interrupted as s
    join _tasks as t on s.stream_key * 18446744073709551616 + low_ns < t.stream_key * 18446744073709551616 + t.end_ns
        and t.stream_key * 18446744073709551616 + t.start_ns < s.stream_key * 18446744073709551616 + high_ns
),
-- Those that something went on in, cut wherever it began or ended: each piece is what comes first in order.
_cuts as (
    select span, low_ns as at_ns from _hits union select span, high_ns from _hits
    union select span, low_ns from _spans where span in (select span from _hits)
    union select span, high_ns from _spans where span in (select span from _hits)
),
_pieces as (
    select * from (
        select span, at_ns as low_ns, lead(at_ns) over (partition by span order by at_ns) as high_ns from _cuts
    ) where high_ns is not null
),
_names as (
    select c.span, c.low_ns, c.high_ns,
        min_by({'priority': priority, 'operator': h.operator, 'thread_id': h.thread_id},
            (priority, -h.low_ns, coalesce(h.operator, ''))) filter (where h.span is not null) as hit
    from _pieces as c left join _hits as h on h.span = c.span and h.low_ns <= c.low_ns and h.high_ns >= c.high_ns
    group by all
),
_pieces_of_gaps as (
    select gap, part, cause, stage, operator, thread_id, s.low_ns, s.high_ns
    from _spans as s where span not in (select span from _hits)
    union all
    select gap, part,
        coalesce(['garbage_collection', 'data_loading', 'checkpoint', 'logging', 'profiler', 'synchronisation',
            'synchronisation'][hit.priority], cause),
        case when hit is null then stage when hit.priority <= 7 then 'call'
            else ['event', 'copy', 'task'][hit.priority - 7] end,
        if(hit is null, s.operator, hit.operator), if(hit is null, s.thread_id, hit.thread_id), n.low_ns, n.high_ns
    from _names as n join _spans as s using (span)
),
_causes as materialized (
    select gap, part, if(is_lost, 'synchronisation', cause) as cause, stage,
        if(is_lost, waits.operator, operator) as operator, if(is_lost, waits.thread_id, thread_id) as thread_id,
        sum(high_ns - low_ns) as free_ns
    from (
        select p.*, waits, coalesce(waits is not null and cause = 'dispatch', false) as is_lost
        from _pieces_of_gaps as p left join _waiting using (gap)
    )
    group by all
),
_by_cause as (
    select label, 'cause' as by_key, part, cause, stage, operator, thread_id, null as start_ns, null as end_ns,
        count(*) as count, sum(free_ns) as free_ns, max(free_ns) as longest_ns
    from _causes join _facts using (gap) group by all
),
_host_gaps as (
    select gap, label, from_ns, host_until_ns,
        lag(host_until_ns) over _order as before_ns, lag(host_until_ns - from_ns) over _order as before_free_ns
    from _facts where host_until_ns > from_ns
    window _order as (partition by label order by from_ns)
),
_episodes as (
    select gap, label, from_ns, host_until_ns,
        sum(if(before_ns is null or from_ns - before_ns >= greatest(before_free_ns, host_until_ns - from_ns), 1, 0))
            over (partition by label order by from_ns) as episode
    from _host_gaps
),
_costly as (
    select label, episode, min(from_ns) as start_ns, max(host_until_ns) as end_ns, count(*) as count,
        sum(host_until_ns - from_ns) as free_ns, max(host_until_ns - from_ns) as longest_ns
    from _episodes group by label, episode
    qualify row_number() over (partition by label order by free_ns desc, start_ns) <= 20
),
_most as (
    select label, episode,
        max_by({'cause': cause, 'stage': stage, 'operator': operator, 'thread_id': thread_id},
            (free_ns, cause, stage, coalesce(operator, ''))) as most
    from (
        select label, episode, cause, stage, operator, thread_id, sum(c.free_ns) as free_ns
        from _episodes join _costly using (label, episode) join _causes as c using (gap)
        where part = 'host' group by all
    )
    group by label, episode
)
select run, capture, rank, step, by_key, part, cause, stage, operator, thread_id, start_ns, end_ns,
    cast(count as bigint) as count, cast(free_ns as bigint) as free_ns, cast(longest_ns as bigint) as longest_ns
from (
    select * from _by_cause
    union all by name
    select label, 'episode' as by_key, 'host' as part, most.*, start_ns, end_ns, count, free_ns, longest_ns
    from _costly join _most using (label, episode)
)
join (select run, capture, rank, step, label from _labels) using (label)
order by run, capture, rank, step nulls last, by_key, free_ns desc, part, cause, stage, operator nulls last, thread_id nulls last, start_ns
