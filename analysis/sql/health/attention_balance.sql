-- How unequal is the attention of ranks that hold the same part of the model?
--
-- Kernels of attention, forward and backward, by their durations: of packed sequences they tell lengths that shapes do
-- not. Ranks of a pipeline stage are held beside each other (all, where stages are not recorded). Ranks of one
-- tensor-parallel group have the same sequences; what differs among them is the device.
--
-- title: Attention
-- meaning: Time of attention kernels, of the slowest rank of each stage beside the mean.
--
--   run              varchar  run of the training job
--   capture          varchar  ranks profiled at the same time
--   step             bigint   producer's step number; NULL: there are none
--   stage            integer  pipeline stage; NULL where not recorded
--   ranks_count      bigint   ranks of it with attention
--   mean_ns          bigint   attention of a rank, on average
--   max_ns           bigint   of the rank with most
--   slowest_rank     integer  that rank
--   imbalance_ns     bigint   max - mean
--   imbalance_share  double   of max
with
_attention as (
    select run, capture, rank, step, sum(total_ns) as total_ns
    from shape_summary where regexp_matches(lower(type), 'attention|promptflash|fusedinfer')
    group by all
),
_places as (
    select a.*, p.pp as stage
    from _attention as a left join rank_places as p using (run, capture, rank)
)
select run, capture, step, stage, count(*) as ranks_count, cast(round_even(avg(total_ns), 0) as bigint) as mean_ns,
    cast(max(total_ns) as bigint) as max_ns, arg_max(rank, total_ns) as slowest_rank,
    cast(max(total_ns) as bigint) - cast(round_even(avg(total_ns), 0) as bigint) as imbalance_ns,
    1 - avg(total_ns) / nullif(max(total_ns), 0) as imbalance_share
from _places group by run, capture, step, stage order by all
