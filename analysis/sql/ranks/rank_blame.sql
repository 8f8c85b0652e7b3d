-- Ranks that make others wait, and why?
--
-- Last arrivals: complete operations at which the rank came last by more than the clock error. Each wait of the others
-- not filled by their own kernels is traced back: to the last one there, as far as that took longer than its peers
-- since the operation before; to the ranks at the ends of a slow link, as far as that made the operation before longer
-- than such ones of other groups; else, as far as that one was ready late, to whoever came last there, and so on. The
-- rest is attributed to no rank. Waiting time of a rank counts once. Peers are ranks of one pipeline stage. Score and
-- verdict are about all steps of the capture. A verdict needs a test (being the slowest of n peers is 1/n
-- by chance; exact binomial tails, corrected by Holm for the number of ranks, at most 0.1 %, of a host 1 %) and an amount that matters.
--
-- title: Slow ranks
-- meaning: Ranks by the waiting they cause, with a verdict for suspected stragglers.
-- over all ranks of: arrivals, comm_progress, kernel_summary, rank_work, step_summary, comm_summary, link_transfers, ranks
-- table: ranks
--
--   run                  varchar  run of the training job
--   capture              varchar  ranks profiled at the same time
--   rank                 integer  global rank
--   step                 bigint   producer's step number; NULL: outside every step, or the capture has none
--   last_arrivals_count  bigint   operations at which it arrived last, by more than the clock error; NULL: no operation met all its members
--   caused_wait_ns       bigint   waiting of all other ranks that goes back to this rank or to slow links at its end; NULL: unknown, nothing to compare its own work with
--   score                double   -log10 of the smallest corrected p-value of its tests, at most 99
--   verdict              varchar  host, compute, frequency, alltoall_bytes, link or unknown; NULL: no suspect
--   evidence             varchar  JSON list of {what, value, peers, unit}, of counts also `of` how many; empty where there is no verdict
with
_judged as (select * from _rank_blame)
select run, capture, rank, step, last_arrivals_count, caused_wait_ns, score, verdict, evidence
from _judged
order by run, capture, rank, step nulls last
