-- Which tensors do the kernels of each step work on, and for how long?
--
-- Compute kernels, gathered by type, core and tensors. FLOPs and bytes are computed from these few rows. Kernels of
-- vector cores, AI CPU and DSA, which multiply no matrices, are gathered by type alone. Cycles and core times are of
-- kernels that have both, and say at what frequency the cube cores ran: 1000 * cycles / core time, in MHz.
--
-- title: Shapes
-- meaning: Compute kernels by type and tensors, from which their FLOPs follow.
-- view: shape_summary
-- rows from: kernels
--
--   run                varchar  run of the training job
--   capture            varchar  ranks profiled at the same time
--   rank               integer  global rank
--   step               bigint   producer's step number; NULL: outside every step, or the capture has none
--   type               varchar  operator type; NULL where the profiler level has none
--   core               varchar  core the kernels ran on; NULL where unknown
--   input_shapes       varchar  tensors by ';', dimensions by ','; NULL where unknown, and of vector kernels
--   input_dtypes       varchar  types of their elements by ';'
--   input_formats      varchar  their layouts by ';'
--   output_shapes      varchar  likewise of the results
--   output_dtypes      varchar  types of their elements by ';'
--   output_formats     varchar  their layouts by ';'
--   count              bigint   kernels
--   total_ns           bigint   sum of their durations
--   most_blocks_count  integer  most cores one of them was given
--   cube_cycles_count  double   cycles of the cube cores, all cores
--   cube_core_time_ns  double   time the cube cores were busy, times cores
with
_counts as (
    select run, capture, rank, step, type, core,
        coalesce(core in ('AI_VECTOR_CORE', 'AI_CPU', 'DSA_SQE'), false) as is_vector,
        input_shapes, input_dtypes, input_formats, output_shapes, output_dtypes, output_formats,
        dur_ns, block_count,
        case when aic_time_ns > 0 and block_count > 0 then aic_cycles end as cycles,
        case when aic_cycles > 0 and block_count > 0 then aic_time_ns * block_count end as core_time_ns
    from kernels
    where is_compute and dur_ns >= 0
)
select run, capture, rank, step, type, core,
    case when not is_vector then input_shapes end as input_shapes,
    case when not is_vector then input_dtypes end as input_dtypes,
    case when not is_vector then input_formats end as input_formats,
    case when not is_vector then output_shapes end as output_shapes,
    case when not is_vector then output_dtypes end as output_dtypes,
    case when not is_vector then output_formats end as output_formats,
    count(*) as count,
    cast(sum(dur_ns) as bigint) as total_ns,
    max(block_count) as most_blocks_count,
    sum(cycles) as cube_cycles_count,
    sum(core_time_ns) as cube_core_time_ns
from _counts
group by all
order by run, capture, rank, step nulls last, total_ns desc, type, core, input_shapes, output_shapes
