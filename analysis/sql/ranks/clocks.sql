-- How far is each host's clock ahead of the reference host's, how fast does that grow, and how sure is it?
--
-- Collectives end on all members at once: what clocks read then differs by their offsets. One offset and one drift per
-- host are fitted over the ends of all collectives that every recorded member has, robustly, and held against
-- causality: nothing ends before what it waits for begins. Hosts that only transfers join are placed in the middle of
-- what causality allows. A rank whose host is unknown, that contradicts its host, or whose device counts from a zero of
-- its own, has a clock of its own. Errors are 95 % bounds: the true offset lies within them, at any time of the capture,
-- in 95 of 100 clocks. They grow with the time from where a clock was fitted, by the drift's error; where no drift is
-- told, by all of what it may be (what was fitted and its error; with fewer than eight common operations 100 ppm).
-- A reference that no other clock is joined with has no offset. Recorded times stay as they are.
--
-- title: Clocks
-- meaning: Offset and drift of each host's clock, with their basis.
-- over all ranks of: comm_ops, comm_times, comm_tasks, groups, ranks
-- command: clocks
--
--   run              varchar    run of the training job
--   capture          varchar    ranks profiled at the same time
--   host             varchar    whose clock; NULL: unknown
--   ranks            integer[]  ranks that read it
--   rank_count       bigint     how many
--   reference_rank   integer    first rank of the reference clock
--   reference_ns     bigint     timestamp on the reference clock for which offset_ns holds: the middle of the capture
--   offset_ns        bigint     how far it is ahead of the reference; NULL: nothing joins the two, or there is no other
--   drift_ppm        double     growth of the offset, us per second; NULL: cannot be separated from jitter (see note)
--   drift_error_ppm  double     95 % bound on the error of the drift, known or not; NULL: unknown
--   residual_ns      double     how far single ends lie off (robust standard deviation)
--   error_ns         bigint     95 % bound on the error of the offset anywhere in the capture; NULL: unknown
--   lower_ns         bigint     least offset that causality allows; NULL: none
--   upper_ns         bigint     largest offset that causality allows; NULL: none
--   instance_count   bigint     collectives it has in common with other clocks
--   basis            varchar    reference, collectives, transfers or none
--   note             varchar    what else is to know; NULL: nothing
--   remarks          varchar    its parts as a JSON list of templates with values
with
_here as (select any_value(run) as run, any_value(capture) as capture from ranks)
select run, capture, host, ranks, cast(len(ranks) as bigint) as rank_count, reference_rank, reference_ns,
    offset_ns, drift_ppm, drift_error_ppm, residual_ns, error_ns, lower_ns, upper_ns, instance_count, basis, note,
    remarks
from _clocks, _here
order by ranks
