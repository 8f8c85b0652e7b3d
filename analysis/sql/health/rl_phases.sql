-- Which phase of reinforcement learning keeps a worker's device busy?
--
-- Phases are the marks (mstx) that workers set around their calls, known by their names: generate_sequences, rollout,
-- compute_log_prob, compute_ref_log_prob, reward, advantage, update_actor, update_critic, resharding, weights. What a
-- mark encloses on the device counts, where that was recorded, else the mark itself. Busy is what kernels or
-- communication operations cover of it. A phase that is marked within itself counts once.
--
-- title: Phases of workers
-- meaning: Time that each rank spent in each marked phase of reinforcement learning, and what of it the device worked.
--
--   run       varchar  run of the training job
--   capture   varchar  ranks profiled at the same time
--   rank      integer  global rank
--   phase     varchar  generation, old_log_prob, reference, reward, advantage, update_actor, update_critic, resharding, weights
--   count     bigint   calls
--   dur_ns    bigint   union of them
--   busy_ns   bigint   of it, covered by kernels or communication operations
--   idle_ns   bigint   the rest
with
_marked as (
    select run, capture, rank, coalesce(device_start_ns, start_ns) as start_ns,
        coalesce(device_start_ns, start_ns) + coalesce(device_dur_ns, dur_ns) as end_ns,
        lower(name) as name
    from marks where kind = 'mstx'
),
_names as (
    select run, capture, rank, start_ns, end_ns,
        case
            when regexp_matches(name, 'reshard') then 'resharding'
            when regexp_matches(name, '(sync|update)\w*_weights|weight_sync|update_weights') then 'weights'
            when regexp_matches(name, 'generate_sequences') then 'generation'
            when regexp_matches(name, '(^|[^a-z_])ref_compute_log_prob|ref_log_prob|reference') then 'reference'
            when regexp_matches(name, 'compute_log_prob|old_log_p') then 'old_log_prob'
            when regexp_matches(name, 'update_critic|critic_update') then 'update_critic'
            when regexp_matches(name, 'update_actor|actor_update|update_policy') then 'update_actor'
            when regexp_matches(name, 'advantage') then 'advantage'
            when regexp_matches(name, 'reward|rm_score') then 'reward'
            -- Last: workers that do several are named by all, as in actor_rollout_update_actor.
            when regexp_matches(name, 'rollout') then 'generation'
        end as phase
    from _marked where end_ns > start_ns
),
_phases as (
    select *, max(end_ns) over (partition by run, capture, rank, phase order by start_ns
        rows between unbounded preceding and 1 preceding) as before_ns
    from _names where phase is not null
),
_ranges as (
    select run, capture, rank, phase, greatest(start_ns, coalesce(before_ns, start_ns)) as start_ns, end_ns
    from _phases
),
_work as (
    select run, capture, rank, start_ns, start_ns + dur_ns as end_ns from kernels where dur_ns > 0
    union all
    select run, capture, rank, start_ns, start_ns + dur_ns from comm_ops where dur_ns > 0
),
_order_of as (
    select *, max(end_ns) over (partition by run, capture, rank order by start_ns
        rows between unbounded preceding and 1 preceding) as before_ns
    from _work semi join _names using (run, capture, rank)
),
_pieces as (
    select run, capture, rank, greatest(start_ns, coalesce(before_ns, start_ns)) as start_ns, end_ns
    from _order_of where end_ns > coalesce(before_ns, start_ns)
),
_busy as (
    select r.run, r.capture, r.rank, r.phase,
        sum(least(p.end_ns, r.end_ns) - greatest(p.start_ns, r.start_ns)) as busy_ns
    from _ranges as r join _pieces as p
        on p.run = r.run and p.capture = r.capture and p.rank = r.rank
        and p.start_ns < r.end_ns and p.end_ns > r.start_ns
    where r.end_ns > r.start_ns
    group by all
),
_sums as (
    select run, capture, rank, phase, count(*) as count, cast(sum(greatest(0, end_ns - start_ns)) as bigint) as dur_ns
    from _ranges group by all
)
select s.run, s.capture, s.rank, s.phase, s.count, s.dur_ns, cast(coalesce(b.busy_ns, 0) as bigint) as busy_ns,
    s.dur_ns - cast(coalesce(b.busy_ns, 0) as bigint) as idle_ns
from _sums as s left join _busy as b using (run, capture, rank, phase)
order by all
