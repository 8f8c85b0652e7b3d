-- How much longer do kernels take while the rank communicates?
--
-- A compute kernel is overlapped when any communication operation of its rank runs during any part of it, and alone
-- otherwise. Kernels are the same when type (name where there is none), core, input shapes and input types are equal;
-- those without recorded shapes are like no other. An overlapped kernel is compared where the rank has the same kernel
-- alone, in any step: it is expected to take what they take on average (the sum of each kind rounded to ns). Ranks
-- without an operation have no row.
--
-- title: Kernels during communication
-- meaning: Durations of compute kernels during communication, compared with the same kernels without it.
-- rows from: comm_ops
--
--   run                      varchar  run of the training job
--   capture                  varchar  ranks profiled at the same time
--   rank                     integer  global rank
--   step                     bigint   producer's step number; NULL: outside every step, or the capture has none
--   kernel_count             bigint   compute kernels
--   overlapped_kernel_count  bigint   of them overlapped
--   overlapped_ns            bigint   sum of their durations
--   compared_kernel_count    bigint   of the overlapped ones those with the same kernel alone
--   compared_ns              bigint   sum of their durations
--   expected_ns              bigint   what they would take alone
with
_keys as materialized (
    select *, cast(row_number() over (order by run, capture, rank) as integer) as rank_key
    from (select distinct run, capture, rank from comm_ops)
    -- True of every one. It tells the planner that they are few, so that it looks for events among them.
    qualify rank_key > 0
),
_labels as materialized (
    select *, cast(row_number() over (order by rank_key, step) as integer) as label
    from (select distinct run, capture, rank, step from kernels where is_compute) join _keys using (run, capture, rank)
    qualify label > 0
),
-- One walk over ends of kernels and starts of operations: a kernel is overlapped when one of the operations that start
-- before its end ends after its start. Of a kernel and an operation at one instant the kernel comes first. An instant t
-- of the n-th rank is taken as n * 2^64 + t: whatever came before lies before all its instants.
_walk as (
    select label, dur_ns, same,
        coalesce(max(rank_key * 18446744073709551616 + until_ns) over (rows between unbounded preceding and current row)
            > rank_key * 18446744073709551616 + t_ns - dur_ns, false) as is_overlapped
    from (
        select * from (
            select rank_key, start_ns + dur_ns as t_ns, null as until_ns, label, dur_ns,
                case when input_shapes is not null
                    then hash(coalesce(type, name), core, input_shapes, input_dtypes) end as same
            from kernels as k join _labels as l on l.run = k.run and l.capture = k.capture and l.rank = k.rank
                and l.step is not distinct from k.step
            where is_compute and dur_ns > 0 and start_ns is not null
            union all
            select rank_key, start_ns, start_ns + dur_ns, null, null, null
            from comm_ops join _keys using (run, capture, rank)
            where dur_ns > 0 and start_ns is not null
        ) order by rank_key, t_ns, label nulls last
    )
),
_same as (
    select rank_key, step, same,
        count(*) as kernel_count,
        count(*) filter (is_overlapped) as overlapped_kernel_count,
        coalesce(sum(dur_ns) filter (is_overlapped), 0) as overlapped_ns,
        count(*) filter (not is_overlapped) as alone_count,
        coalesce(sum(dur_ns) filter (not is_overlapped), 0) as alone_ns
    from _walk join _labels using (label)
    group by rank_key, step, same
),
_alone as (
    select rank_key, same, sum(alone_count) as alone_count, sum(alone_ns) as alone_ns
    from _same where same is not null
    group by rank_key, same
    having sum(alone_count) > 0
)
select run, capture, rank, step,
    cast(sum(kernel_count) as bigint) as kernel_count,
    cast(sum(overlapped_kernel_count) as bigint) as overlapped_kernel_count,
    cast(sum(overlapped_ns) as bigint) as overlapped_ns,
    cast(coalesce(sum(overlapped_kernel_count) filter (_alone.alone_count > 0), 0) as bigint) as compared_kernel_count,
    cast(coalesce(sum(overlapped_ns) filter (_alone.alone_count > 0), 0) as bigint) as compared_ns,
    cast(coalesce(sum(
        (2 * overlapped_kernel_count * _alone.alone_ns + _alone.alone_count) // (2 * _alone.alone_count)
    ), 0) as bigint) as expected_ns
from _same
join _keys using (rank_key)
left join _alone using (rank_key, same)
group by run, capture, rank, step
order by run, capture, rank, step nulls last
