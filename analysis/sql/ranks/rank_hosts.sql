-- On which host does each rank run?
--
-- Databases record a host's id and its name, text exports at most its name: a name stands for the id that another rank
-- of that name has. Ranks whose hosts are both known run on one host where these are equal.
--
-- title: Hosts
-- meaning: On which host each rank runs.
-- figure: rank_steps, hosts
--
--   run        varchar  run of the training job
--   capture    varchar  ranks profiled at the same time
--   rank       integer  global rank
--   host       varchar  the host's id, else its name; NULL: unknown
--   host_name  varchar  what people call it: its name, else its id
with
_facts as (
    select run, capture, rank, max(host_uid) as host_uid, max(host_name) as host_name
    from ranks group by run, capture, rank
)
select run, capture, rank,
    coalesce(
        host_uid,
        case when host_name is not null then max(host_uid) over (partition by run, capture, host_name) end,
        host_name
    ) as host,
    coalesce(host_name, host_uid) as host_name
from _facts
order by run, capture, rank
