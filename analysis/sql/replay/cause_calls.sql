-- When did calls keep the host of each rank from launching?
--
-- Calls with one of the priorities of host_causes, by this operator (NULL: by any), as times that do not overlap. A call
-- of the device's interface within an operator that waits is that operator's.
with
_host_causes
_mine as (
    select rank, start_ns, end_ns, operator, priority from _host_calls where run = $run and capture = $capture
),
_own as (
    select m.* from (select * from _mine where list_contains($priorities, priority)) as m
    asof left join (select rank, start_ns, end_ns from _mine where priority = 6) as o
        on o.rank = m.rank and m.start_ns >= o.start_ns
    where m.priority <> 7 or o.end_ns is null or m.start_ns >= o.end_ns
),
_apart as (
    select rank, end_ns, greatest(start_ns, coalesce(max(end_ns) over (
            partition by rank order by start_ns, end_ns rows between unbounded preceding and 1 preceding
        ), start_ns)) as start_ns
    from _own where $operator is null or operator = $operator
)
select rank, start_ns, end_ns from _apart where start_ns < end_ns order by rank, start_ns
