-- Which steps of each rank run gradients?
--
-- Part of the queries that ask: it stands where they say `_trains`. It makes `_trains` (run, capture, rank, step,
-- trains). By types of kernels, else by their names.
_trains as (
    select run, capture, rank, step,
        bool_or(regexp_matches(coalesce(type, name, ''), 'grad|backward|backprop', 'i')) as trains
    from kernel_kinds
    where step is not null
    group by all
),
