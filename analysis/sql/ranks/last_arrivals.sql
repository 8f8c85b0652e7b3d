-- Who came last to each operation, and what did that cost?
--
-- A row per complete operation that was matched across ranks. Waits are those of the other members that no kernel of
-- theirs fills; what of all waits goes back to this arrival is what the last one took longer than its peers.
--
-- title: Last arrivals
-- meaning: Last rank to arrive at each operation, and the waiting that caused.
-- over all ranks of: arrivals, comm_progress, ranks
--
--   run             varchar  run of the training job
--   capture         varchar  ranks profiled at the same time
--   instance        bigint   the operation, as in arrivals
--   rank            integer  global rank that came last
--   step            bigint   producer's step number on that rank; NULL: outside every step, or there is none
--   margin_ns       bigint   how much later it came than the one before it
--   clock_error_ns  bigint   how far clocks of members may be off against each other
--   is_evidence     boolean  the margin is more than the clock error
--   wait_ns         bigint   waiting of the others for it, in this operation
--   caused_ns       bigint   waiting, here and later, that goes back to what it took longer before this operation
with
_arrived as (select * from _last_arrivals)
select run, capture, instance, rank, step, margin_ns, clock_error_ns, is_evidence, wait_ns, caused_ns
from _arrived
order by run, capture, instance
