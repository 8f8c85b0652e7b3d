-- Which links are slower than others of their kind?
--
-- Transfers between two ranks, both ways, against those of all pairs in the same step, link type, type of task and class
-- of message size (at least three pairs). Where all pairs of one rank are slower than every other one, the others (two
-- at least) alone tell what is usual. A pair is slow where its transfers take a quarter longer than usual and lie five
-- robust standard deviations (1.4826 times the median distance of the faster half, of logarithms) above it.
--
-- title: Slow links
-- meaning: Transfer rates between pairs of ranks, compared with the usual ones.
-- over all ranks of: link_transfers, ranks
-- table: slow_pairs
--
--   run                    varchar  run of the training job
--   capture                varchar  ranks profiled at the same time
--   link                   varchar  link type
--   low_rank               integer  one of the two global ranks
--   high_rank              integer  the other
--   bandwidth_bytes_per_s  double   rate of the pair, weighted by bytes
--   usual_bytes_per_s      double   median rate of the pairs that tell it, weighted alike
--   slow_ratio             double   usual / rate, median over steps and classes
--   is_slow                boolean  far below the others
--   excess_ns              double   time of its transfers over what they take at the usual rate
--   size_bytes             bigint   bytes moved
--   transfer_count         bigint   transfers
with
_rated as (select * from _slow_pairs)
select run, capture, link, low_rank, high_rank, bandwidth_bytes_per_s, usual_bytes_per_s, slow_ratio, is_slow,
    excess_ns, size_bytes, transfer_count
from _rated
order by run, capture, link, slow_ratio desc, low_rank, high_rank
