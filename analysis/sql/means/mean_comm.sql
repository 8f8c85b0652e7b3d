-- Which communication does a mean step of a rank have, and what of it does compute not hide?
--
-- Sums over ranks and steps, divided by all pairs of rank and step that were counted, also those without such an
-- operation: so exposed_attributed_ns adds up to the exposed communication of mean_steps. Counted are the pairs of
-- which the exposed time is known from events; of a capture without any, those with operations as events; else those
-- that HCCL measured. Of these, HCCL's times and bytes are means over the pairs that know them, and over those without
-- any communication: where HCCL measured nothing of a pair, or sizes were not recorded, the pair is left out of that
-- column alone. What lies outside of every step counts only where there are no steps. Warm-up steps (job_steps) are
-- left out where others remain, so not of one step. Union, masked and exposed time of several groups is added up.
--
-- title: Communication of a mean step
-- meaning: Communication of a rank's mean step by parallel kind, type and group.
-- table: communication_means
-- gauge: npuscope_masking_ratio{kind} = masking_ratio: Masking ratio of a parallel kind: its communication overlapped by computing over all of it.
-- gauge: npuscope_exposed_seconds{kind} = exposed_attributed_ns: Exposed communication of a parallel kind, mean over ranks and steps; kinds exposed at the same time share that time, so kinds add up.
-- figure: communication
--
--   run                          varchar  run of the training job
--   capture                      varchar  ranks profiled at the same time
--   by_step                      boolean  whether the row is of one step over its ranks; else of all steps
--   step                         bigint   producer's step number, by step
--   by_key                       varchar  kind, type, op (kind and type) or group (kind, type and group)
--   kind                         varchar  parallel kind, but by type
--   op_type                      varchar  allReduce, allToAllV, send, ...; but by kind
--   group_hash                   varchar  communication group, by group
--   group_count                  bigint   different groups, by op
--   rank_count                   bigint   ranks that the means are over
--   step_count                   bigint   steps that the means are over
--   rank_step_count              bigint   pairs of rank and step that the means are over
--   transit_rank_step_count      bigint   those of them that transit_ns is the mean of; 0 where it is NULL
--   wait_rank_step_count         bigint   those that wait_ns is the mean of, likewise
--   size_rank_step_count         bigint   those that size_bytes is the mean of, likewise
--   op_count                     double   operations
--   total_ns                     double   sum of durations
--   union_ns                     double   time in which at least one of them runs
--   masked_ns                    double   time of that in which compute runs too
--   masking_ratio                double   masked / union
--   exposed_ns                   double   union - masked
--   exposed_attributed_ns        double   its part of the exposed time, shared by those that are exposed at once
--   share_ratio                  double   that part of all exposed time
--   transit_ns                   double   time HCCL measured for moving data
--   wait_ns                      double   time HCCL measured for waiting
--   size_bytes                   double   bytes the operations were given
--   worst_rank                   integer  rank whose mean step has the most exposed_attributed_ns, the lowest of equals
--   worst_exposed_attributed_ns  double   of that rank
with
-- What is known of a rank and step that communicates.
_facts as (
    select run, capture, rank, step,
        bool_or(union_ns is not null) as has_ops,
        bool_or(transit_ns is not null) as has_transit,
        bool_or(wait_ns is not null) as has_wait,
        bool_or(size_bytes is not null) as has_size
    from comm_summary
    group by run, capture, rank, step
),
_ranks as (select run, capture, rank, bool_or(has_ops) as has_ops from _facts group by run, capture, rank),
_by_step as (
    select run, capture, rank, step,
        basis = 'events' and communication_ns is not null as is_seen,
        basis = 'events' and exposed_communication_ns is not null as is_exposed,
        communication_ns = 0 as has_none
    from step_summary
),
-- A step without a row here: events tell that nothing ran, or the producer's table does of a rank whose communication
-- is known. Else its communication is unknown, and it is left out.
_pairs as (
    select s.run, s.capture, s.rank, s.step,
        case when is_exposed then 2 when is_seen or r.has_ops then 1 else 0 end as known,
        coalesce(has_transit, true) as has_transit,
        coalesce(has_wait, true) as has_wait,
        coalesce(has_size, true) as has_size
    from _by_step as s
    left join _ranks as r on r.run = s.run and r.capture = s.capture and r.rank = s.rank
    left join _facts as t on t.run = s.run and t.capture = s.capture and t.rank = s.rank
        and t.step is not distinct from s.step
    where is_seen or t.rank is not null or has_none and r.rank is not null
    union all
    from (
        select run, capture, rank, step, cast(has_ops as integer) as known, has_transit, has_wait, has_size
        from _facts anti join (select distinct run, capture, rank from step_summary) using (run, capture, rank)
    )
),
_marked as (
    select p.* rename (step as of_step), by_step, case when by_step then p.step end as step,
        coalesce(is_warm_up, false) as is_warm_up
    from (select *, unnest([false, true]) as by_step from _pairs) as p
    left join job_steps as j on j.run = p.run and j.capture = p.capture and j.step is not distinct from p.step
    qualify p.step is not null or not bool_or(p.step is not null) over (partition by p.run, p.capture)
),
_later as (
    select * from _marked
    qualify not is_warm_up or bool_and(is_warm_up) over (partition by run, capture, by_step, step)
),
_counts as (
    select * from _later qualify known = max(known) over (partition by run, capture, by_step, step)
),
_over as (
    select run, capture, by_step, step,
        count(distinct rank) as rank_count, count(distinct of_step) as step_count, count(*) as rank_step_count,
        count(*) filter (where has_transit) as transit_count,
        count(*) filter (where has_wait) as wait_count,
        count(*) filter (where has_size) as size_count
    from _counts group by run, capture, by_step, step
),
_rows as (
    select c.* exclude (step)
            replace (unnest(case when by_key = 'op' then ['op', 'group'] else [by_key] end) as by_key),
        by_step, p.step, p.of_step, has_transit, has_wait, has_size
    from comm_summary as c
    join _counts as p on p.run = c.run and p.capture = c.capture and p.rank = c.rank
        and p.of_step is not distinct from c.step
),
_keyed as (
    select * replace (case when by_key = 'group' then group_hash end as group_hash), group_hash as of_group from _rows
),
_of_rank as (
    select k.run, k.capture, by_step, step, k.rank, by_key, kind, op_type, group_hash,
        sum(exposed_attributed_ns) / case when by_step then 1 else any_value(steps) end as exposed_attributed_ns
    from _keyed as k
    join (select run, capture, rank, count(*) as steps from _counts where not by_step group by run, capture, rank) as n
        on n.run = k.run and n.capture = k.capture and n.rank = k.rank
    group by k.run, k.capture, by_step, step, k.rank, by_key, kind, op_type, group_hash
),
_worst as (
    select run, capture, by_step, step, by_key, kind, op_type, group_hash,
        max(exposed_attributed_ns) as worst_exposed_attributed_ns,
        arg_max(rank, {'most': exposed_attributed_ns, 'lowest': -rank})
            filter (where exposed_attributed_ns is not null) as worst_rank
    from _of_rank
    group by run, capture, by_step, step, by_key, kind, op_type, group_hash
),
_of_pair as (
    select run, capture, by_step, step, by_key, kind, op_type, group_hash,
        list(distinct of_group) as of_groups,
        sum(op_count) as op_count,
        sum(total_ns) as total_ns,
        sum(union_ns) as union_ns,
        sum(masked_ns) as masked_ns,
        sum(exposed_ns) as exposed_ns,
        sum(exposed_attributed_ns) as exposed_attributed_ns,
        sum(transit_ns) as transit_ns,
        sum(wait_ns) as wait_ns,
        case when count(size_bytes) = count(*) then sum(size_bytes) end as size_bytes,
        -- Known of the pair, but not of these operations.
        any_value(has_transit) and count(transit_ns) = 0 as lacks_transit,
        any_value(has_wait) and count(wait_ns) = 0 as lacks_wait,
        any_value(has_size) and count(size_bytes) < count(*) as lacks_size
    from _keyed
    group by run, capture, rank, of_step, by_step, step, by_key, kind, op_type, group_hash
),
_sums as (
    select run, capture, by_step, step, by_key, kind, op_type, group_hash,
        case when by_key = 'op' then len(list_distinct(flatten(list(of_groups)))) end as group_count,
        sum(op_count) as op_count,
        sum(total_ns) as total_ns,
        sum(union_ns) as union_ns,
        sum(masked_ns) as masked_ns,
        sum(exposed_ns) as exposed_ns,
        sum(exposed_attributed_ns) as exposed_attributed_ns,
        sum(transit_ns) as transit_ns,
        sum(wait_ns) as wait_ns,
        sum(size_bytes) as size_bytes,
        count(*) filter (where lacks_transit) as transit_lacks,
        count(*) filter (where lacks_wait) as wait_lacks,
        count(*) filter (where lacks_size) as size_lacks
    from _of_pair
    group by run, capture, by_step, step, by_key, kind, op_type, group_hash
)
select s.run, s.capture, s.by_step, s.step, s.by_key, s.kind, s.op_type, s.group_hash, group_count,
    rank_count, step_count, rank_step_count,
    case when transit_ns is null then 0 else transit_count - transit_lacks end as transit_rank_step_count,
    case when wait_ns is null then 0 else wait_count - wait_lacks end as wait_rank_step_count,
    case when size_bytes is null then 0 else size_count - size_lacks end as size_rank_step_count,
    op_count / rank_step_count as op_count,
    total_ns / rank_step_count as total_ns,
    union_ns / rank_step_count as union_ns,
    masked_ns / rank_step_count as masked_ns,
    cast(masked_ns as double) / nullif(cast(union_ns as double), 0) as masking_ratio,
    exposed_ns / rank_step_count as exposed_ns,
    exposed_attributed_ns / rank_step_count as exposed_attributed_ns,
    exposed_attributed_ns
        / nullif(cast(sum(exposed_attributed_ns) over (partition by s.run, s.capture, s.by_step, s.step, s.by_key) as double), 0)
        as share_ratio,
    transit_ns / nullif(transit_rank_step_count, 0) as transit_ns,
    wait_ns / nullif(wait_rank_step_count, 0) as wait_ns,
    size_bytes / nullif(size_rank_step_count, 0) as size_bytes,
    worst_rank, worst_exposed_attributed_ns
from _sums as s
join _over as o on o.run = s.run and o.capture = s.capture and o.by_step = s.by_step
    and o.step is not distinct from s.step
left join _worst as w on w.run = s.run and w.capture = s.capture and w.by_step = s.by_step
    and w.step is not distinct from s.step and w.by_key = s.by_key
    and w.kind is not distinct from s.kind and w.op_type is not distinct from s.op_type
    and w.group_hash is not distinct from s.group_hash
order by s.run, s.capture, s.by_step, s.step nulls first, s.by_key, exposed_attributed_ns desc nulls last, total_ns desc nulls last,
    s.kind nulls last, s.op_type nulls last, s.group_hash nulls last
