-- Where does each ns of a step go on each rank: computing, moving bytes, waiting for whom, host, idle?
--
-- One decomposition: the parts of a step add up to its computing, exposed communication and free time, to the ns.
-- Free time is the host's or idle, as steps tell it by launches, or just free where nothing tells.
-- Exposed communication is taken apart by group and operation type (their attributed exposure, see comm), in proportion
-- to what is known of their operations. Of one that all members recorded, the time beyond the shortest member's is
-- waiting, the rest moves bytes. Of one that lacks members, the time beyond the shortest recorded one's is waiting for
-- these; beyond that it waits for as long as HCCL saw no transit at first, or as it takes longer than the shortest of
-- its kind on this rank (same members, type and size; sends and receives are of one kind, also where sizes are unknown:
-- stages pass on tensors of one size). It waits for a member that was not captured where the group has one, moves bytes
-- as far as HCCL saw transit, and the rest is unknown. Where nothing is hidden and nothing overlaps, proportions are exact; ranks
-- without kernels of their own share out the producer's figure by the durations HCCL measured, to no operation more
-- than it lasted: what no measured operation covers is unknown.
--
-- title: Parts of a step
-- meaning: Decomposition of a step: computing, transfer, waiting and for whom, idle.
-- over all ranks of: arrivals, step_summary, comm_summary, comm_progress, comm_times, ranks
-- command: comm --by part
--
--   run      varchar  run of the training job
--   capture  varchar  ranks profiled at the same time
--   rank     integer  global rank
--   step     bigint   producer's step number; NULL: the capture has none
--   part     varchar  computing, transfer (moving bytes), peer_wait (for captured ranks), absent_wait (for ranks that were not captured), pipeline_wait (for captured stages), unknown_communication, host (free until a late launch), idle (free, though launched), free (neither is known)
--   kind     varchar  parallel kind of the communication: tp, pp, dp, ep, ...; NULL: no communication, or not recorded
--   op_type  varchar  allReduce, allToAllV, send, ...; NULL likewise
--   ns       bigint   its length; NULL: unknown
with
-- How many members of a group were captured, and how many not (NULL: unknown).
_listed as (
    select group_key, count(ranks.rank) as captured_count, count(*) - count(ranks.rank) as absent_count
    from (select distinct group_key, unnest(global_ranks) as rank from _groups)
    left join (select distinct rank from ranks) as ranks using (rank)
    group by group_key
),
_peers as (
    select m.rank, m.group_hash,
        coalesce(hash(list_sort(global_ranks)), hash(m.group_hash)) as members,
        coalesce(captured_count, len(seen_ranks)) as captured_count,
        coalesce(absent_count, case
            when m.group_size > (select count(distinct rank) from ranks) then m.group_size - len(seen_ranks)
            when m.group_size = len(seen_ranks) then 0
        end) as absent_count
    from _members as m join _groups as g using (group_key) left join _listed using (group_key)
),
_progress as (
    select rank, group_hash, name, start_ns, any_value(exposed_ns) as exposed_ns from comm_progress group by all
),
-- Where names repeat: see repeats.sql.
_sightings as (select rank as rank_key, group_hash, name, step from _arrivals),
_hccl as (select rank as rank_key, group_hash, name, step from comm_times),
_repeats
_measures as (
    select rank, group_hash, name, of_step,
        row_number() over (partition by rank, group_hash, name, of_step order by start_ns) as nth,
        -- Neither seen means not measured.
        case when transit_ns > 0 or wait_ns > 0 then cast(round(synchronization_ns) as bigint) end as late_ns,
        case when transit_ns > 0 then cast(round(transit_ns) as bigint) end as transit_ns
    from (
        select t.*, case when i.rank_key is not null then step end as of_step
        from comm_times as t
        left join _in_step as i on i.rank_key = t.rank and i.group_hash = t.group_hash and i.name = t.name
    )
),
_ops as (
    select a.rank, a.step, a.group_hash, a.kind, a.op_type, a.name, a.start_ns, a.size_bytes, a.is_complete,
        a.end_ns - a.start_ns as dur_ns,
        a.op_type in ('send', 'receive', 'batchSendRecv') as is_transfer,
        coalesce(exposed_ns, a.end_ns - a.start_ns) as exposed_ns,
        case when is_complete or rank_count < group_size
            then min(a.end_ns - a.start_ns) over (partition by instance) end as least_ns,
        case when i.rank_key is not null then a.step end as of_step,
        row_number() over (
            partition by a.rank, a.group_hash, a.name, case when i.rank_key is not null then a.step end
            order by a.start_ns
        ) as nth
    from _arrivals as a
    left join _progress using (rank, group_hash, name, start_ns)
    left join _in_step as i on i.rank_key = a.rank and i.group_hash = a.group_hash and i.name = a.name
),
_alone as (
    select _ops.*, late_ns, transit_ns, captured_count, absent_count,
        case when size_bytes is not null or is_transfer
            then min(dur_ns) over (
                partition by _ops.rank, members, case when not is_transfer then op_type end, size_bytes
            ) end as alike_ns
    from _ops
    left join _measures as m on m.rank = _ops.rank and m.group_hash = _ops.group_hash and m.name = _ops.name
        and m.nth = _ops.nth and m.of_step is not distinct from _ops.of_step
    left join _peers as p on p.rank = _ops.rank and p.group_hash = _ops.group_hash
    where not is_complete
),
-- The one peer of transfers in larger groups, some of whose members were captured.
_single as (
    select rank, group_hash, name, start_ns, bool_or(peer in (select rank from ranks)) as is_captured
    from (
        select o.*, unnest([src_rank, dst_rank]) as peer
        from (
            select rank, group_hash, name, start_ns, op_id
            from comm_ops semi join (
                select * from _alone where is_transfer and captured_count > 1 and absent_count > 0
            ) using (rank, group_hash, name, start_ns)
        ) as o join comm_tasks as t using (rank, op_id)
    )
    where peer <> rank
    group by rank, group_hash, name, start_ns
    having count(distinct peer) = 1
),
_answers as (
    select *, greatest(dur_ns - least_ns, 0) as seen_wait_ns,
        least(greatest(dur_ns - least_ns, late_ns, dur_ns - alike_ns, 0), dur_ns) as wait_ns
    from _alone
),
_waits as (
    select rank, step, group_hash, op_type, kind, is_transfer, dur_ns, exposed_ns,
        coalesce(seen_wait_ns, 0) as seen_wait_ns, wait_ns, transit_ns,
        case
            when absent_count = 0 or is_captured then 'captured'
            when captured_count <= 1 and absent_count > 0 or not is_transfer and absent_count > 0
                or not is_captured then 'absent'
            when absent_count is null and (op_type = 'receive' or kind = 'pp') then 'captured'
            else 'unknown'
        end as peer
    from _answers left join _single using (rank, group_hash, name, start_ns)
),
_apart as (
    select rank, step, group_hash, op_type, kind, is_transfer, dur_ns, exposed_ns,
        dur_ns - least_ns as captured_ns, 0 as absent_ns, least_ns as transfer_ns
    from _ops where is_complete
    union all
    select rank, step, group_hash, op_type, kind, is_transfer, dur_ns, exposed_ns,
        case when peer = 'captured' then wait_ns else seen_wait_ns end,
        case when peer = 'absent' then wait_ns - seen_wait_ns else 0 end,
        case when transit_ns is null then 0 else least(transit_ns, dur_ns - wait_ns) end
    from _waits
),
-- In thousandths of a ns, in proportion to what of the operation is exposed.
_exposed as (
    select rank, step, group_hash, op_type, part, sum(part_ns * exposed_ns * 1000 // dur_ns) as weight
    from (
        select rank, step, group_hash, op_type, dur_ns, cast(exposed_ns as hugeint) as exposed_ns,
            unnest([
                case when kind = 'pp' or kind = 'unknown' and is_transfer then 'pipeline_wait' else 'peer_wait' end,
                'absent_wait', 'transfer', 'unknown_communication'
            ]) as part,
            unnest([captured_ns, absent_ns, transfer_ns, dur_ns - captured_ns - absent_ns - transfer_ns]) as part_ns
        from _apart
    )
    where dur_ns > 0 and part_ns > 0
    group by all
),
_steps as (select rank, step, computing_ns, exposed_communication_ns, free_ns, host_ns, idle_ns from step_summary),
_kind_of as (select rank, group_hash, min(kind) as kind from _members group by rank, group_hash),
_of_ops as (
    select c.rank, c.step, coalesce(_kind_of.kind, 'unknown') as kind, c.group_hash, c.op_type,
        coalesce(
            cast(exposed_attributed_ns as hugeint),
            least(
                cast(exposed_communication_ns as hugeint) * total_ns
                    // nullif(sum(total_ns) over (partition by c.rank, c.step), 0),
                cast(total_ns as hugeint)
            )
        ) as own_ns
    from comm_summary as c
    join _steps as s on s.rank = c.rank and s.step is not distinct from c.step
    left join _kind_of on _kind_of.rank = c.rank and _kind_of.group_hash = c.group_hash
    where by_key = 'op' and exposed_communication_ns is not null
),
-- Rounded, and what that leaves goes to the largest part.
_shares as (
    select o.rank, o.step, o.kind, o.group_hash, o.op_type, part, own_ns,
        (2 * own_ns * weight + sum(weight) over _of_op) // (2 * sum(weight) over _of_op) as ns,
        row_number() over (_of_op order by weight desc, part) = 1 as is_largest
    from _of_ops as o
    join _exposed as e on e.rank = o.rank and e.step is not distinct from o.step
        and e.group_hash is not distinct from o.group_hash and e.op_type is not distinct from o.op_type
    where weight > 0
    window _of_op as (partition by o.rank, o.step, o.kind, o.group_hash, o.op_type)
),
_facts as (
    select rank, step, part, kind, op_type, sum(ns) as ns
    from (
        select * replace (case when is_largest
            then ns + own_ns - sum(ns) over (partition by rank, step, kind, group_hash, op_type)
            else ns end as ns)
        from _shares
    )
    group by all
),
-- What is left of each kind and type, and of the step: not recorded.
_of_types as (
    select * from _facts
    union all
    select rank, step, 'unknown_communication', kind, op_type, sum(ns)
    from (
        select rank, step, kind, op_type, own_ns as ns from _of_ops
        union all select rank, step, kind, op_type, -ns from _facts
    )
    group by rank, step, kind, op_type
),
_all as (
    select * from _of_types
    union all
    select rank, step, 'unknown_communication', null, null, sum(ns)
    from (
        select rank, step, exposed_communication_ns as ns from _steps
        union all select rank, step, -ns from _of_types
    )
    group by rank, step
    union all select rank, step, 'computing', null, null, computing_ns from _steps
    union all select rank, step, 'host', null, null, host_ns from _steps where host_ns > 0
    union all select rank, step, 'idle', null, null, idle_ns from _steps where idle_ns > 0
    union all
    select rank, step, 'free', null, null, free_ns - coalesce(host_ns, 0) - coalesce(idle_ns, 0) from _steps
),
_here as (select any_value(run) as run, any_value(capture) as capture from ranks)
select run, capture, rank, step, part, kind, op_type, cast(ns as bigint) as ns
from (select rank, step, part, kind, op_type, sum(ns) as ns from _all group by all), _here
where ns is null or ns <> 0 or part = 'computing'
order by rank, step nulls last, part, kind nulls last, op_type nulls last
