-- Where does each rank run, and which part of the model is its own?
--
-- As the ranks' metadata tell it.
--
-- title: Places of ranks
-- meaning: Host, device and parallel coordinates of each rank.
-- gauge: npuscope_rank_info{rank, node, device_id, chip, tp, pp, dp, cp, ep} = 1: Host, device and parallel coordinates of a rank.
--
--   run        varchar  run of the training job
--   capture    varchar  ranks profiled at the same time
--   rank       integer  global rank
--   node       varchar  name of its host, else the host's own number; NULL where not recorded
--   device_id  integer  device on that host
--   chip       varchar  e.g. Ascend910B
--   tp         integer  tensor-parallel rank
--   pp         integer  pipeline-parallel rank
--   dp         integer  data-parallel rank
--   cp         integer  context-parallel rank
--   ep         integer  expert-parallel rank
with
_facts as (
    select run, capture, rank, coalesce(host_name, host_uid) as node, device_id, chip_name, tp_rank, pp_rank, dp_rank,
        cp_rank, ep_rank
    from ranks
)
select run, capture, rank, any_value(node) as node, any_value(device_id) as device_id, any_value(chip_name) as chip,
    any_value(tp_rank) as tp, any_value(pp_rank) as pp, any_value(dp_rank) as dp, any_value(cp_rank) as cp,
    any_value(ep_rank) as ep
from _facts group by run, capture, rank order by run, capture, rank
