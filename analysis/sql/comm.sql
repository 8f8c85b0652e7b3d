-- How much does each kind of communication take, and how much of it is hidden behind compute?
--
-- Operations of one type and group in one step of one rank. Communication is masked where any compute kernel of
-- the rank runs. Different groups can communicate at the same time, so these lengths do not add up to the
-- step's communication. Operations outside every step stand under step NULL.
--
--   run            varchar  run of the training job
--   capture        varchar  ranks profiled at the same time
--   rank           integer  global rank
--   step           bigint   producer's step number; NULL: outside every step, or the capture has none
--   op_type        varchar  allReduce, allToAllV, send, ...
--   group_hash     varchar  communication group
--   parallel_kind  varchar  what the group is for: tp, pp, dp, ep, ...; unknown where nothing tells
--   count          bigint   operations
--   total_ns       bigint   their durations added up
--   union_ns       bigint   length of their union
--   masked_ns      bigint   length of the union inside compute; NULL for a rank without a compute kernel
--   exposed_ns     bigint   length of the union outside compute
--   masking_ratio  double   masked / union
--   size_bytes     bigint   bytes of all of them; NULL where one of them is unknown
with
_keys as materialized (
    select *, cast(row_number() over (order by run, capture, rank) as integer) as rank_key
    from (select distinct run, capture, rank from comm_ops)
    -- True of every one. It tells the planner that they are few, so that it looks for events among them.
    qualify rank_key > 0
),
_kinds as (
    select rank_key, group_hash,
        coalesce(min(parallel_kind) filter (where parallel_kind <> 'unknown'), 'unknown') as parallel_kind
    from groups join _keys using (run, capture, rank)
    group by rank_key, group_hash
),
-- One small number per row of the answer.
_rows as materialized (
    select *, cast(row_number() over () as integer) as row_key
    from (
        select rank_key, step, op_type, group_hash,
            count(*) as count,
            sum(dur_ns) as total_ns,
            case when count(size_bytes) = count(*) then sum(size_bytes) end as size_bytes
        from comm_ops join _keys using (run, capture, rank)
        where dur_ns >= 0
        group by rank_key, step, op_type, group_hash
    )
    qualify row_key > 0
),
_covering as materialized (
    select rank_key, start_ns, start_ns + dur_ns as end_ns
    from kernels join _keys using (run, capture, rank)
    where is_compute and dur_ns > 0 and start_ns is not null
),
_asked as (
    select _rows.rank_key, row_key as series, start_ns, start_ns + dur_ns as end_ns
    from comm_ops
    join _keys using (run, capture, rank)
    join _rows on _rows.rank_key = _keys.rank_key
        and _rows.step is not distinct from comm_ops.step
        and _rows.op_type is not distinct from comm_ops.op_type
        and _rows.group_hash is not distinct from comm_ops.group_hash
    where dur_ns > 0 and start_ns is not null
),
_lengths
_measured as (
    select _rows.*,
        coalesce(union_ns, 0) as union_ns,
        case when rank_key in (select rank_key from _covering) then coalesce(covered_ns, 0) end as masked_ns
    from _rows left join _lengths on series = row_key
)
select run, capture, rank, step, op_type, group_hash,
    coalesce(parallel_kind, 'unknown') as parallel_kind,
    count,
    cast(total_ns as bigint) as total_ns,
    union_ns,
    masked_ns,
    union_ns - masked_ns as exposed_ns,
    cast(masked_ns as double) / nullif(cast(union_ns as double), 0) as masking_ratio,
    cast(size_bytes as bigint) as size_bytes
from _measured
join _keys using (rank_key)
left join _kinds using (rank_key, group_hash)
order by run, capture, rank, step nulls last, total_ns desc, op_type nulls last, group_hash nulls last
