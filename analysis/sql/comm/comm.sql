-- How much does each kind of communication take, and how much of it is hidden behind compute?
--
-- Operations of one step of one rank, gathered three times: by parallel kind, by operation type, and by operation type
-- and group (op). Lengths are those of unions; communication is masked where any compute kernel of the rank runs.
-- Kinds can communicate at the same time, so their unions do not add up. The attributed exposure does: at a moment
-- that no compute covers, each of the n kinds that communicate gets 1/n of it, so that over all kinds (or types, or
-- ops) of a step it adds up to the step's exposed communication, to the ns: shares are rounded down, and what is left
-- goes to the largest remainders. Operations outside every step stand under step NULL. HCCL's own times are those of
-- the operations it measured, found by name, group and step: of a name that repeats, the n-th of its step; or of the
-- capture, where a step is unknown, or where HCCL tells as many in all but not in each step. They stand in the
-- operation's step. A rank with HCCL's measurements but no operation has these, and their elapsed time as total; the
-- rest is unknown.
--
-- title: Communication
-- meaning: Communication by parallel kind, type and operation, and how much of it compute hides.
-- view: comm_summary
-- rows from: comm_ops, comm_times
-- command: comm --by kind, comm --by type, comm --by op
-- table: communication_by_kind, communication_by_type, communication_by_op
--
--   run                    varchar  run of the training job
--   capture                varchar  ranks profiled at the same time
--   rank                   integer  global rank
--   step                   bigint   producer's step number; NULL: outside every step, or the capture has none
--   by_key                 varchar  what is gathered: kind, type or op
--   kind                   varchar  parallel kind: tp, pp, dp, ep, ...; unknown where not recorded; NULL by type
--   op_type                varchar  allReduce, allToAllV, send, ...; NULL by kind
--   group_hash             varchar  communication group; by op only
--   op_count               bigint   operations
--   total_ns               bigint   sum of their durations
--   union_ns               bigint   length of their union
--   masked_ns              bigint   length of the union inside compute; NULL for a rank without a compute kernel
--   masking_ratio          double   masked / union
--   exposed_ns             bigint   length of the union outside compute
--   exposed_attributed_ns  bigint   its share of the exposed time
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
_numbers as (
    select _ops.rank_key, op_key, comm_ops.group_hash, name, comm_ops.step, start_ns, dur_ns
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
_sightings as (
    select rank_key, group_hash, name, step from _numbers where rank_key in (select rank_key from _times)
),
_hccl as (select rank_key, group_hash, name, step from _times where rank_key in (select rank_key from _ops)),
_repeats
_measures as (
    select op_key,
        count(*) as measured_count,
        sum(transit_ns) as transit_ns,
        sum(wait_ns) as wait_ns,
        sum(synchronization_ns) as synchronization_ns,
        sum(idle_ns) as idle_ns
    from (
        select *, row_number() over (partition by rank_key, group_hash, name, of_step order by start_ns) as place
        from (
            select o.*, case when i.rank_key is not null then step end as of_step
            from _numbers as o
            left join _in_step as i on i.rank_key = o.rank_key and i.name is not distinct from o.name
                and i.group_hash is not distinct from o.group_hash
            where o.rank_key in (select rank_key from _times)
        )
    ) as o
    join (
        select *, row_number() over (partition by rank_key, group_hash, name, of_step order by start_ns) as place
        from (
            select t.*, case when i.rank_key is not null then step end as of_step
            from _times as t
            left join _in_step as i on i.rank_key = t.rank_key and i.name is not distinct from t.name
                and i.group_hash is not distinct from t.group_hash
        )
    ) as t on t.rank_key = o.rank_key and t.name = o.name and t.place = o.place
        and t.of_step is not distinct from o.of_step
        and t.group_hash is not distinct from o.group_hash
    group by op_key
),
_silent as (
    select rank_key, step, op_type, group_hash,
        count(*) as op_count,
        cast(round_even(sum(elapse_ns), 0) as hugeint) as total_ns,
        sum(transit_ns) as transit_ns,
        sum(wait_ns) as wait_ns,
        sum(synchronization_ns) as synchronization_ns,
        sum(idle_ns) as idle_ns
    from _times where rank_key not in (select rank_key from _ops)
    group by rank_key, step, op_type, group_hash
),

-- One row per row of the answer. Operations of a row are a series of intervals; rows that share a label (one key of one
-- step) also share its exposed time.
_facts as materialized (
    select rank_key, step, op_type, group_hash, coalesce(kind, 'unknown') as kind,
        op_key, op_count, total_ns, size_bytes, measured_count, transit_ns, wait_ns, synchronization_ns, idle_ns
    from (
        select * from _ops left join _measures using (op_key)
        union all by name
        select *, op_count as measured_count from _silent
    )
    left join _kinds using (rank_key, group_hash)
),
_series as materialized (
    select *,
        cast(dense_rank() over (order by rank_key, step, by_key, kind, op_type, group_hash) as integer) as series,
        cast(dense_rank() over (order by rank_key, step, by_key) as integer) as label
    from (
        select * exclude (kind, op_type, group_hash),
            unnest(['kind', 'type', 'op']) as by_key,
            unnest([kind, null, kind]) as kind,
            unnest([null, op_type, op_type]) as op_type,
            unnest([null, null, group_hash]) as group_hash
        from _facts
    )
    qualify series > 0
),
_rows as (
    select rank_key, step, by_key, kind, op_type, group_hash, series, label,
        sum(op_count) as op_count,
        sum(total_ns) as total_ns,
        case when count(size_bytes) = count(*) then sum(size_bytes) end as size_bytes,
        coalesce(sum(measured_count), 0) as measured_count,
        sum(transit_ns) as transit_ns,
        sum(wait_ns) as wait_ns,
        sum(synchronization_ns) as synchronization_ns,
        sum(idle_ns) as idle_ns,
        count(op_key) = 0 as is_silent
    from _series
    group by all
),

-- How much of its rank is covered before each start and end of an operation: one walk over kernels and edges in order
-- of time. Between two neighbours no kernel starts, so what is covered goes from the first of them to the furthest end
-- so far. An instant t of the n-th rank is taken as n * 2^64 + t: whatever came before lies before all its instants.
_walk as (
    select op_key, sign, t_ns, rank_key * 18446744073709551616 + t_ns as instant,
        max(rank_key * 18446744073709551616 + end_ns) over (rows between unbounded preceding and current row) as reach
    from (
        select * from (
            select rank_key, start_ns as t_ns, start_ns + dur_ns as end_ns, null as op_key, null as sign
            from kernels join _keys using (run, capture, rank)
            where is_compute and dur_ns > 0 and start_ns is not null
            union all
            select rank_key, unnest([start_ns, start_ns + dur_ns]), null, op_key, unnest([1, -1]) from _numbers
            where dur_ns > 0 and start_ns is not null
        ) order by rank_key, t_ns
    )
),
_after as (
    select op_key, sign, t_ns,
        cast(greatest(least(coalesce(reach, instant), lead(instant) over ()) - instant, 0) as bigint) as covered_ns
    from _walk
),
_edges as materialized (
    select op_key, sign, t_ns, covered_ns
    from (
        select op_key, sign, t_ns,
            cast(sum(covered_ns) over (rows between unbounded preceding and current row) as bigint) - covered_ns
                as covered_ns
        from _after
    )
    where sign is not null
),

-- Edges of the unions: where the first operation of a series starts and the last one ends. As many start as end, so
-- that one running sum over sorted rows does for all series. (Edges at one instant may stand in any order: what an
-- order opens or closes too much has no length.)
_turns as (
    select series, label, sign, t_ns, covered_ns
    from (
        select *, sum(sign) over (rows between unbounded preceding and current row) as open_count
        from (
            select series, label, cast(sign as integer) as sign, t_ns, covered_ns
            from _edges join (select op_key, series, label from _series) using (op_key)
            order by series, t_ns
        )
    )
    where open_count = greatest(sign, 0)
),
-- Exposed instants before each of them, an instant of n open series counting 1/n of lcm(1, ..., 40): whole numbers, so
-- that nothing is lost (of more than 40 at once, less than 1e-15 ns).
_shares as (
    select series, sign, t_ns, covered_ns,
        sum(part) over (rows between unbounded preceding and current row) - part as shared
    from (
        select *,
            case when open_count > 0 then
                (lead(t_ns) over () - t_ns - lead(covered_ns) over () + covered_ns)
                * cast(5342931457063200 // open_count as hugeint)
            else 0 end as part
        from (
            select *, sum(sign) over (rows between unbounded preceding and current row) as open_count
            from (select * from _turns order by label, t_ns)
        )
    )
),
_lengths as (
    select series,
        -sum(sign * t_ns) as union_ns,
        -sum(sign * covered_ns) as masked_ns,
        -sum(sign * shared) as shared
    from _shares
    group by series
),
_cover as (
    select distinct rank_key from kernels join _keys using (run, capture, rank)
    where is_compute and dur_ns > 0 and start_ns is not null
),
_rounded as (
    select * exclude (shared),
        shared // 5342931457063200
        + case when row_number() over (
            partition by label
            order by shared % 5342931457063200 desc, kind, op_type, group_hash
        ) <= (sum(shared) over (partition by label) + 2671465728531600) // 5342931457063200
            - sum(shared // 5342931457063200) over (partition by label)
        then 1 else 0 end as exposed_attributed_ns
    from (
        select _rows.*,
            case when not is_silent then coalesce(union_ns, 0) end as union_ns,
            case when not is_silent and rank_key in (select rank_key from _cover) then coalesce(masked_ns, 0) end
                as masked_ns,
            case when rank_key in (select rank_key from _cover) then coalesce(shared, 0) end as shared
        from _rows left join _lengths using (series)
    )
)
select run, capture, rank, step, by_key, kind, op_type, group_hash,
    cast(op_count as bigint) as op_count,
    cast(total_ns as bigint) as total_ns,
    cast(union_ns as bigint) as union_ns,
    cast(masked_ns as bigint) as masked_ns,
    cast(masked_ns as double) / nullif(cast(union_ns as double), 0) as masking_ratio,
    cast(union_ns - masked_ns as bigint) as exposed_ns,
    case when not is_silent then cast(exposed_attributed_ns as bigint) end as exposed_attributed_ns,
    cast(measured_count as bigint) as measured_count,
    cast(transit_ns as double) as transit_ns,
    cast(wait_ns as double) as wait_ns,
    cast(synchronization_ns as double) as synchronization_ns,
    cast(idle_ns as double) as idle_ns,
    cast(size_bytes as bigint) as size_bytes
from _rounded
join _keys using (rank_key)
order by run, capture, rank, step nulls last, by_key, total_ns desc,
    kind nulls last, op_type nulls last, group_hash nulls last
