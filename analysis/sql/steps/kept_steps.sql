-- Which rows of an answer belong to steps that were kept when their rank was read?
--
-- Put around every answer by step (`_query` stands for it). Of a rank that was read with --steps, kernels of
-- neighbouring steps stay where they hide communication; what could be said of those steps would be wrong.
select _answer.*
from (
_query
) as _answer
left join (
    select run, capture, rank, any_value(kept_steps) as kept_steps
    from ranks where kept_steps is not null group by all
) as _kept using (run, capture, rank)
where _kept.kept_steps is null or list_contains(_kept.kept_steps, _answer.step)
