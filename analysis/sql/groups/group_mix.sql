-- What do the operations of a group look like when no metadata records its purpose?
--
-- Per group_hash: operations of each sort, how many a rank has in a step, their bytes, and where in the step's device
-- range they start (0: at its begin, 1: at its end; NULL where no step range is recorded).
with
_open as (select distinct group_hash from _group_rows where told_kind is null and group_hash is not null),
_choice as (
    select rank, step, group_hash, op_type, size_bytes, start_ns
    from comm_ops join _open using (group_hash)
    union all
    select rank, step, group_hash, op_type, null, start_ns
    from comm_times join _open using (group_hash)
    anti join (select distinct rank from comm_ops) using (rank)
),
_places as (
    select _choice.*,
        cast(_choice.start_ns - device_start_ns as double) / nullif(device_end_ns - device_start_ns, 0) as place
    from _choice left join steps using (rank, step)
),
_counts as (
    select group_hash, avg(op_count) as op_count
    from (select group_hash, rank, step, count(*) as op_count from _choice group by all)
    group by group_hash
)
select group_hash,
    count(*) as total_count,
    count(*) filter (where op_type in ('allToAll', 'allToAllV', 'allToAllVC')) as all_to_all_count,
    count(*) filter (where op_type in ('send', 'receive', 'batchSendRecv')) as pair_count,
    count(*) filter (where op_type = 'allReduce') as all_reduce_count,
    count(*) filter (where op_type in ('allGather', 'reduceScatter')) as shard_count,
    any_value(_counts.op_count) as count_per_step,
    median(size_bytes) as size_bytes,
    quantile_cont(place, 0.25) as early_place,
    quantile_cont(place, 0.5) as middle_place,
    quantile_cont(place, 0.75) as late_place
from _places join _counts using (group_hash)
group by group_hash
