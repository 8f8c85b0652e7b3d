-- How much does each kind of communication take, and how much of it is hidden behind compute?
--
-- Operations of one step of one rank, gathered three times: by parallel kind, by operation type, and by operation type
-- and group (op). Lengths are those of unions; communication is masked where any compute kernel of the rank runs.
-- Kinds can communicate at the same time, so their unions do not add up. The attributed exposure does: at an instant
-- that no compute covers, each of the n kinds that communicate gets 1/n of it, so that over all kinds (or types, or
-- ops) of a step it adds up to the step's exposed communication, to the ns: shares are rounded down, and what is left
-- goes to the largest remainders. Operations outside every step stand under step NULL. HCCL's own times are those of
-- the operations it measured, found by name and group (the n-th of a name that repeats), in the operation's step. A
-- rank with HCCL's measurements but no operation has these, and their elapsed time as total; the rest is unknown.
--
--   run                    varchar  run of the training job
--   capture                varchar  ranks profiled at the same time
--   rank                   integer  global rank
--   step                   bigint   producer's step number; NULL: outside every step, or the capture has none
--   by_key                 varchar  what is gathered: kind, type or op
--   kind                   varchar  parallel kind: tp, pp, dp, ep, ...; unknown where nothing tells; NULL by type
--   op_type                varchar  allReduce, allToAllV, send, ...; NULL by kind
--   group_hash             varchar  communication group; by op only
--   op_count               bigint   operations
--   total_ns               bigint   their durations added up
--   union_ns               bigint   length of their union
--   masked_ns              bigint   length of the union inside compute; NULL for a rank without a compute kernel
--   masking_ratio          double   masked / union
--   exposed_ns             bigint   length of the union outside compute
--   exposed_attributed_ns  bigint   this one's share of the exposed instants
--   measured_count         bigint   operations that HCCL measured
--   transit_ns             double   moving data, as HCCL measured it; NULL where it measured none of them
--   wait_ns                double   waiting for other ranks, likewise
--   synchronization_ns     double   the part of wait before the first transit, likewise
--   idle_ns                double   neither of them, likewise
--   size_bytes             bigint   bytes of all of them; NULL where one of them is unknown
with
_keys as materialized (
    select *, cast(row_number() over (order by run, capture, rank) as integer) as rank_key
    from (
        select distinct run, capture, rank from comm_ops
        union
        select distinct run, capture, rank from comm_times
    )
    -- True of every one. It tells the planner that they are few, so that it looks for events among them.
    qualify rank_key > 0
),
_kinds
-- Operations of one type and group in one step as one small number.
_ops as materialized (
    select *, cast(row_number() over () as integer) as op_key
    from (
        select rank_key, step, op_type, group_hash,
            count(*) as op_count,
            sum(dur_ns) as total_ns,
            case when count(size_bytes) = count(*) then sum(size_bytes) end as size_bytes
        from comm_ops join _keys using (run, capture, rank)
        where dur_ns >= 0
        group by rank_key, step, op_type, group_hash
    )
    qualify op_key > 0
),
_numbered as (
    select _ops.rank_key, op_key, comm_ops.group_hash, name, start_ns, dur_ns
    from comm_ops
    join _keys using (run, capture, rank)
    join _ops on _ops.rank_key = _keys.rank_key
        and _ops.step is not distinct from comm_ops.step
        and _ops.op_type is not distinct from comm_ops.op_type
        and _ops.group_hash is not distinct from comm_ops.group_hash
    where dur_ns >= 0
),

-- What HCCL measured of them. Added up as decimals: the order of doubles would show in their last digits.
_times as (
    select rank_key, step, op_type, group_hash, name, start_ns,
        try_cast(elapse_ns as decimal(28, 9)) as elapse_ns,
        try_cast(transit_ns as decimal(28, 9)) as transit_ns,
        try_cast(wait_ns as decimal(28, 9)) as wait_ns,
        try_cast(synchronization_ns as decimal(28, 9)) as synchronization_ns,
        try_cast(idle_ns as decimal(28, 9)) as idle_ns
    from comm_times join _keys using (run, capture, rank)
),
_measured as (
    select op_key,
        count(*) as measured_count,
        sum(transit_ns) as transit_ns,
        sum(wait_ns) as wait_ns,
        sum(synchronization_ns) as synchronization_ns,
        sum(idle_ns) as idle_ns
    from (
        select *, row_number() over (partition by rank_key, group_hash, name order by start_ns) as place
        from _numbered where rank_key in (select rank_key from _times)
    ) as o
    join (
        select *, row_number() over (partition by rank_key, group_hash, name order by start_ns) as place from _times
    ) as t on t.rank_key = o.rank_key and t.name = o.name and t.place = o.place
        and t.group_hash is not distinct from o.group_hash
    group by op_key
),
_silent as (
    select rank_key, step, op_type, group_hash,
        count(*) as op_count,
        round_even(sum(elapse_ns), 0) as total_ns,
        sum(transit_ns) as transit_ns,
        sum(wait_ns) as wait_ns,
        sum(synchronization_ns) as synchronization_ns,
        sum(idle_ns) as idle_ns
    from _times where rank_key not in (select rank_key from _ops)
    group by rank_key, step, op_type, group_hash
),

-- Every row of the answer as a series of intervals; operations are in one series of each key. A label is what the
-- series of one key share: their step.
_all as materialized (
    select rank_key, step, op_type, group_hash, coalesce(kind, 'unknown') as kind, _told.* exclude (rank_key, step, op_type, group_hash)
    from (
        select _ops.*, _measured.* exclude (op_key), false as is_silent
        from _ops left join _measured using (op_key)
        union all by name
        select *, op_count as measured_count, true as is_silent from _silent
    ) as _told
    left join _kinds using (rank_key, group_hash)
),
_rows as materialized (
    select *,
        cast(row_number() over (order by rank_key, step, by_key, kind, op_type, group_hash) as integer) as series,
        cast(dense_rank() over (order by rank_key, step, by_key) as integer) as label
    from (
        select rank_key, step,
            unnest(['kind', 'type', 'op']) as by_key,
            unnest([kind, null, kind]) as kind,
            unnest([null, op_type, op_type]) as op_type,
            unnest([null, null, group_hash]) as group_hash,
            * exclude (rank_key, step, kind, op_type, group_hash)
        from _all
    )
)
select 1
