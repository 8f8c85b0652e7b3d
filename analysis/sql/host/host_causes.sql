-- Which calls of the host keep it from launching, and what are they for?
--
-- Part of the queries that ask: it stands where they say `_host_causes`. It makes `_host_calls`: where several go on at
-- once the lowest priority tells what a moment is: 1 garbage collection, 2 data loading, 3 checkpoint, 4 logging, 5 the
-- profiler, 6 an operator that waits for the device, 7 a call that does.
--
-- What the few kinds and names are is asked of each once, not of every row.
_causing as (
    select kind, operator, priority from (
        select kind, name as operator, case
            when kind = 'gc' then 1
            when kind = 'operator' and name like 'enumerate(DataLoader)%' then 2
            when kind = 'python' and regexp_matches(name, 'torch/utils/data/dataloader\.py\(\d+\): __next__') then 2
            when kind = 'python' and regexp_matches(name,
                'torch/serialization\.py\(\d+\): save|/checkpointing\.py\(\d+\): save|dist_checkpointing/') then 3
            when kind = 'python' and regexp_matches(name,
                'logging/__init__\.py\(|torch/utils/tensorboard/|/wandb/|built-in function print') then 4
            when kind = 'python' and regexp_matches(name, 'torch(_npu)?/profiler/') then 5
            when kind = 'api' and name ilike 'aclprof%' then 5
            when kind = 'operator' and name in ('aten::item', 'aten::_local_scalar_dense', 'aten::is_nonzero') then 6
            when kind = 'python' and regexp_matches(name, 'npu/utils\.py\(\d+\): synchronize') then 6
            when kind = 'api' and (name ilike 'aclrtSynchronize%' or name = 'aclrtMemcpy') then 7
        end as priority
        -- Through an aggregate, so that the planner does not ask it of the rows again.
        from (select any_value(kind) as kind, any_value(name) as name from host_ops group by host_ops.kind, host_ops.name)
    )
    where priority is not null
),
_host_calls as (
    select run, capture, rank, start_ns, start_ns + dur_ns as end_ns, thread_id, name as operator, call_stack, priority
    from host_ops as h join _causing as c on c.kind = h.kind and c.operator is not distinct from h.name
    where dur_ns > 0
    union all
    select run, capture, rank, start_ns, start_ns + dur_ns, thread_id, name, null,
        case when name ilike '%dataloader%' then 2 when name ilike '%save_checkpoint%' then 3 end as priority
    from marks
    where kind = 'mstx' and dur_ns > 0 and priority is not null
),
