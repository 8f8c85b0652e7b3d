-- Which steps of each rank run gradients?
--
-- Part of the queries that ask: it stands where they say `_trains`. It makes `_trains` (run, capture, rank, step,
-- trains). By types of kernels, else by their names.
_trains as (
    select run, capture, rank, step,
        -- A regular expression would take four times as long of large jobs.
        bool_or(contains(kind, 'grad') or contains(kind, 'backward') or contains(kind, 'backprop')) as trains
    from (select *, lower(coalesce(type, name, '')) as kind from kernel_kinds where step is not null)
    group by all
),
