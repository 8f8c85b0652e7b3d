-- What did the clocks of different ranks read at operations that they had in common?
--
-- Starts and ends count from the first start of the capture. Only operations that every recorded member of their group
-- has, and of which it is sure which is which. Of too many rows a share is taken, whole operations at a time: every
-- `_share`-th. Needs `_matched`, `_rank_clock` (rank, clock) and `_share`.
with
_zero as (select min(start_ns) as zero_ns from _matched),
_share_of as (select share from _share)
select instance, rank, clock, group_key,
    cast(start_ns - zero_ns as double) as start_ns,
    cast(end_ns - zero_ns as double) as end_ns,
    op_type not in ('send', 'receive') as is_barrier,
    op_type <> 'receive' as begins,
    op_type <> 'send' as ends
from _matched join _rank_clock using (rank), _zero, _share_of
where rank_count > 1 and rank_count = seen_count and is_matchable
    and op_type in ('allReduce', 'allGather', 'reduceScatter', 'allToAll', 'allToAllV', 'allToAllVC', 'barrier',
        'send', 'receive')
    and hash(instance) % share = 0
order by instance, rank
