-- Which recorded operations of different ranks are one operation?
--
-- Collectives of a group have one name on all its members: HCCL numbers the operations of a group in each process.
-- The two sides of a transfer in a group of two have one number, but names that say send or receive. Where members
-- count their own transfers both sides of a number may send: as in larger groups the n-th transfer from a to b in a
-- step is then the n-th that b receives from a; in larger ones the tasks tell the peer. So it is in a group of two whose
-- transfers have no numbers, as on GPUs, where each n-th has one size on both sides. Where a name repeats, its n-th on
-- one rank is the n-th on the others.
--
-- A row per operation with a start and an end: instance (numbered from 1 in order of start), what it is, whose, when,
-- and is_matchable (false where repeated names or transfers are not equally many on all ranks, so that it is not sure
-- which is which). Needs `_members`.
with
-- Light inputs have HCCL's times of an operation instead of the operation.
_recorded as (
    select rank, step, name, op_type, group_hash, op_id, start_ns, dur_ns, size_bytes, group_size from comm_ops
    union all
    select rank, step, name, op_type, group_hash, null, start_ns, cast(round(elapse_ns) as bigint), null, null
    from comm_times anti join (select distinct rank from comm_ops) using (rank)
),
_ops as materialized (
    select _recorded.rank, step, name, op_type, _recorded.group_hash, group_key, coalesce(kind, 'unknown') as kind,
        op_id, start_ns, start_ns + dur_ns as end_ns, size_bytes,
        case when op_type in ('send', 'receive') or (op_type = 'batchSendRecv' and _members.group_size = 2) then 2
            when op_type <> 'batchSendRecv' then coalesce(_members.group_size, _recorded.group_size) end as group_size,
        coalesce(_members.group_size, _recorded.group_size) = 2 as is_pair,
        case
            when name is null or op_type is null or group_key is null then null
            when op_type not in ('send', 'receive', 'batchSendRecv') then name
            when coalesce(_members.group_size, _recorded.group_size) = 2
                then nullif(regexp_extract(name, '__(\w+)$', 1), '')
        end as alike
    from _recorded left join _members using (group_hash, rank)
    where start_ns is not null and dur_ns >= 0
),
-- Groups of two of which both members send, or receive, under one number, or whose transfers have none.
_crossed as (
    select group_key, min(low) as low, max(high) as high
    from (
        select group_key, min(rank) as low, max(rank) as high
        from _ops where is_pair and op_type in ('send', 'receive')
        group by group_key, alike, if(alike is null, null, op_type) having low < high
    )
    group by group_key
),
-- Peers of transfers whose numbers say nothing.
_peers as (
    select rank, op_id, min(peer) as peer
    from (
        select rank, op_id, unnest([src_rank, dst_rank]) as peer
        from comm_tasks semi join (
            select rank, op_id from _ops
            where alike is null and is_pair is not true and op_type in ('send', 'receive') and op_id is not null
        ) using (rank, op_id)
    )
    where peer <> rank group by rank, op_id
    having count(distinct peer) = 1
    union all
    select rank, op_id, if(rank = low, high, low)
    from _ops join _crossed using (group_key) where op_type in ('send', 'receive')
),
_keyed as (
    select _ops.* exclude (alike, is_pair), alike is null as is_unnumbered,
        case when alike is not null and peer is null then alike
            when peer is not null and op_type = 'send' then _ops.rank || '>' || peer || ':' || coalesce(step, -1)
            when peer is not null then peer || '>' || _ops.rank || ':' || coalesce(step, -1)
        end as alike
    from _ops left join _peers using (rank, op_id)
),
-- Few names repeat, so only those are put in order.
_repeated as (
    select rank, group_key, alike, count(*) as count
    from _keyed where alike is not null group by rank, group_key, alike
),
_uneven as (
    select group_key, alike, min(count) = max(count) as is_even
    from _repeated group by group_key, alike having max(count) > 1
),
_numbers as (
    select *, cast(1 as bigint) as nth, true as is_even
    from _keyed anti join _uneven using (group_key, alike) where alike is not null
    union all
    select _keyed.*,
        row_number() over (partition by rank, group_key, alike order by start_ns, end_ns, op_id) as nth, is_even
    from _keyed join _uneven using (group_key, alike)
),
-- Members of a group that recorded any of its operations.
_recording as (
    select group_key, count(distinct rank) as seen_count
    from (select distinct group_key, rank from _ops) group by group_key
),
_instances as (
    select group_key, alike, nth, count(*) as rank_count,
        count(*) filter (where op_type = 'send') as send_count,
        count(*) filter (where op_type = 'receive') as receive_count,
        min(size_bytes) filter (where is_unnumbered) as least_bytes,
        max(size_bytes) filter (where is_unnumbered) as most_bytes,
        row_number() over (order by min(start_ns), group_key, alike, nth) as instance
    from _numbers group by group_key, alike, nth
),
-- One side lacks some, and the other as many others.
_shifted as (
    select distinct group_key, alike, true as is_shifted
    from _instances where send_count + receive_count > 0 and least_bytes < most_bytes
),
_alone as (
    select *, (select count(*) from _instances) + row_number() over (order by start_ns, rank, op_id, name) as instance
    from _keyed where alike is null
)
select instance, rank, step, name, op_type, group_hash, group_key, kind, start_ns, end_ns, size_bytes,
    case when op_type in ('send', 'receive', 'batchSendRecv') then 2 else seen_count end as seen_count,
    cast(group_size as integer) as group_size, rank_count,
    is_even and is_shifted is null
        and (send_count + receive_count = 0 or (send_count = 1 and receive_count = 1)) as is_matchable
from _numbers join _instances using (group_key, alike, nth) join _recording using (group_key)
left join _shifted using (group_key, alike)
union all
select instance, rank, step, name, op_type, group_hash, group_key, kind, start_ns, end_ns, size_bytes,
    1 as seen_count, cast(group_size as integer) as group_size, 1 as rank_count, false as is_matchable
from _alone
