-- Which kinds of kernels run in each step, and for how long?
--
-- Compute kernels, gathered by type, core and shapes of their inputs; by name where they have no type. What runs are
-- compared by, without a look at each kernel.
--
-- title: Kinds of kernels
-- meaning: Compute kernels by type, core and shapes, or by name where types were not recorded.
-- rows from: kernels
--
--   run           varchar  run of the training job
--   capture       varchar  ranks profiled at the same time
--   rank          integer  global rank
--   step          bigint   producer's step number; NULL: outside every step, or the capture has none
--   type          varchar  operator type; NULL where the profiler level has none
--   name          varchar  name of the kernel where it has no type
--   core          varchar  core the kernels ran on; NULL where unknown
--   input_shapes  varchar  tensors by ';', dimensions by ','; NULL where unknown
--   count         bigint   kernels
--   total_ns      bigint   sum of their durations
with
_counts as (
    select * from kernels where is_compute and dur_ns > 0 and start_ns is not null
)
select run, capture, rank, step, type, case when type is null then name end as name, core, input_shapes,
    count(*) as count,
    cast(sum(dur_ns) as bigint) as total_ns
from _counts
group by all
order by run, capture, rank, step nulls last, total_ns desc, type, name, core, input_shapes
