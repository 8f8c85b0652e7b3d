-- What do cube and vector cores do while the kernels of each type run?
--
-- Compute kernels of the chosen ranks and steps (`_chosen`) with core times, gathered by type. Ratios are of the
-- kernels' whole duration, which is added up in timed_ns: times that PMU counters measured over it. A core's parts run
-- at the same time, so that ratios do not add up. Where a set of counters has ratios of the core's time only, that
-- times the core's time stands for it.
--
-- title: Use of cores
-- meaning: What cube and vector cores do inside kernels of each type, by PMU counters.
-- function: query.core_use
-- table: core_use
-- figure: cores
--
--   type              varchar  operator type; NULL where the profiler level has none
--   core              varchar  core the kernels ran on; NULL where several
--   count             bigint   kernels
--   total_ns          bigint   sum of their durations
--   timed_ns          bigint   those of kernels with core times; NULL: none has
--   cube_busy_ratio   double   cube cores busy
--   vector_busy_ratio double   vector cores busy
--   aic_mac_ratio     double   cube cores multiply
--   aic_mte2_ratio    double   cube cores load from memory
--   aiv_vec_ratio     double   vector cores compute
--   aiv_mte2_ratio    double   vector cores load from memory
--   aiv_mte3_ratio    double   vector cores store to memory
with
_measures as (
    select type, core, dur_ns, aic_time_ns, aiv_time_ns,
        case when coalesce(aic_time_ns, aiv_time_ns) is not null then dur_ns end as timed_ns,
        coalesce(pmu['aic_mac_time'], pmu['aic_mac_ratio'] * aic_time_ns) as mac_ns,
        coalesce(pmu['aic_mte2_time'], pmu['aic_mte2_ratio'] * aic_time_ns) as cube_load_ns,
        coalesce(pmu['aiv_vec_time'], pmu['aiv_vec_ratio'] * aiv_time_ns) as vec_ns,
        coalesce(pmu['aiv_mte2_time'], pmu['aiv_mte2_ratio'] * aiv_time_ns) as vector_load_ns,
        coalesce(pmu['aiv_mte3_time'], pmu['aiv_mte3_ratio'] * aiv_time_ns) as vector_store_ns
    from _chosen where is_compute and dur_ns > 0
)
select type,
    case when count(distinct coalesce(core, '')) = 1 then any_value(core) end as core,
    count(*) as count,
    cast(sum(dur_ns) as bigint) as total_ns,
    cast(sum(timed_ns) as bigint) as timed_ns,
    sum(aic_time_ns) / sum(dur_ns) filter (where aic_time_ns is not null) as cube_busy_ratio,
    sum(aiv_time_ns) / sum(dur_ns) filter (where aiv_time_ns is not null) as vector_busy_ratio,
    sum(mac_ns) / sum(dur_ns) filter (where mac_ns is not null) as aic_mac_ratio,
    sum(cube_load_ns) / sum(dur_ns) filter (where cube_load_ns is not null) as aic_mte2_ratio,
    sum(vec_ns) / sum(dur_ns) filter (where vec_ns is not null) as aiv_vec_ratio,
    sum(vector_load_ns) / sum(dur_ns) filter (where vector_load_ns is not null) as aiv_mte2_ratio,
    sum(vector_store_ns) / sum(dur_ns) filter (where vector_store_ns is not null) as aiv_mte3_ratio
from _measures group by type order by total_ns desc, type
