-- When did each rank arrive at each operation that ranks do together, and when did it leave?
--
-- Operations of one group with one name are one operation; the two sides of a transfer have one number, or are each
-- other's n-th of a step. A row per rank that was recorded. What not all members recorded, or where it is not sure which
-- is which, is kept and is not complete. Aligned times are those that the clock of the capture's reference host
-- would have read: see clocks. Between ranks of one host they can be compared as they are.
--
-- title: Arrivals
-- meaning: Operations matched across ranks: arrival and end of each rank, on one clock.
-- over all ranks of: comm_ops, comm_times, comm_tasks, groups, ranks
--
--   run               varchar  run of the training job
--   capture           varchar  ranks profiled at the same time
--   instance          bigint   number of the operation within the capture, from 1 in order of start
--   group_hash        varchar  communication group
--   kind              varchar  what the group is for: tp, pp, dp, ep, ...; unknown where not recorded
--   op_type           varchar  allReduce, allToAllV, send, ...
--   name              varchar  as recorded on this rank
--   step              bigint   producer's step number on this rank; NULL: outside every step, or there is none
--   rank              integer  global rank
--   host              varchar  where it ran; NULL: unknown
--   start_ns          bigint   start on the rank's own clock
--   end_ns            bigint   end on the rank's own clock
--   aligned_start_ns  bigint   start on the reference clock; NULL: nothing joins the two clocks
--   aligned_end_ns    bigint   end on the reference clock
--   size_bytes        bigint   bytes of the operation on this rank; NULL: unknown
--   rank_count        integer  members that recorded it
--   group_size        integer  members that take part; NULL: unknown
--   is_complete       boolean  all members recorded it, and it is sure that it is this one
--   clock_error_ns    bigint   how far this rank's clock may be off against another member's (95 %); 0: one clock
with
_clocked as (
    select _matched.*, clock, host, error_ns,
        cast(round(offset_ns + drift * (start_ns - reference_ns - offset_ns) / (1 + drift)) as bigint) as start_off_ns,
        cast(round(offset_ns + drift * (end_ns - reference_ns - offset_ns) / (1 + drift)) as bigint) as end_off_ns
    from _matched left join _aligning using (rank)
),
_meetings as (
    select instance, min(clock) = max(clock) as is_one_clock,
        case when count(error_ns) = count(*) then max(error_ns) end as most_error_ns
    from _clocked where rank_count > 1 group by instance
),
_here as (select any_value(run) as run, any_value(capture) as capture from ranks)
select run, capture,
    cast(instance as bigint) as instance,
    group_hash, kind, op_type, name, step, rank, host, start_ns, end_ns,
    start_ns - start_off_ns as aligned_start_ns,
    end_ns - end_off_ns as aligned_end_ns,
    size_bytes,
    cast(rank_count as integer) as rank_count,
    group_size,
    is_matchable and coalesce(rank_count = group_size, false) as is_complete,
    case when coalesce(is_one_clock, true) then 0
        when error_ns is not null and most_error_ns is not null
            then cast(ceil(sqrt(cast(error_ns as double) * error_ns + cast(most_error_ns as double) * most_error_ns)) as bigint)
    end as clock_error_ns
from _clocked left join _meetings using (instance), _here
