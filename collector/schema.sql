-- Every canonical table and column of the store, once.
--
-- * A name ends in its unit. `_ns`: integer nanoseconds; instants count from the Unix epoch where
--   ranks.clock is 'epoch', else from the device's own zero. `_bytes`: bytes. `_ratio`: 0..1.
--   `_mhz`, `_count`, `_id` as they say.
-- * Intervals are half open: [start_ns, start_ns + dur_ns).
-- * Unknown is NULL: never 0, -1, 'N/A' or ''.
-- * Decimal-microsecond text becomes integer ns by integer arithmetic; digits below one ns
--   are rounded half to even.
-- * DOUBLE columns ending in `_ns` or `_bytes` hold the producer's own figures with their digits.
-- * `step` is the producer's step number; NULL outside every step or where there are no steps.
-- * `group_hash` names a communication group in every table: HCCL's 64-bit hash of the
--   communicator's name, as decimal text; '...868' where its last three digits are all that is told.
-- * The store puts `run VARCHAR, capture VARCHAR, rank INTEGER` before the columns of each table.

-- One row per rank: where it ran, what recorded it.
create table ranks (
    device_id             integer,   -- NPU the rank ran on (as the profiler numbers it)
    host_name             varchar,   -- as recorded, else as the exporter named its folder after it
    host_uid              varchar,
    framework             varchar,   -- pytorch | mindspore | msprof | kineto (PyTorch on a GPU)
    chip_name             varchar,   -- e.g. Ascend910B
    ai_core_count         integer,   -- AI cores (of a GPU: multiprocessors) by metadata; NULL where the profile does not say
    ai_core_frequency_mhz double,    -- configured or first recorded frequency
    profiler_level        varchar,   -- Level_none | Level0 | Level1 | Level2
    aic_metrics           varchar,   -- which PMU set was recorded
    source_format         varchar,   -- db | text | db+text | light | cluster (results over all ranks)
    framework_version     varchar,   -- torch_npu's or MindSpore's version
    cann_version          varchar,
    environment           varchar,   -- environment variables as recorded, name -> value (JSON); {}: none was set
    model_config          varchar,   -- what the job told the profiler of its model, name -> value (JSON)
    clock                 varchar,   -- epoch | device
    window_start_ns       bigint,    -- profiling session on this rank
    window_end_ns         bigint,
    world_size            integer,   -- ranks of the whole job
    tp_size integer, pp_size integer, dp_size integer, cp_size integer, ep_size integer,
    tp_rank integer, pp_rank integer, dp_rank integer, cp_rank integer, ep_rank integer,  -- coordinates
    left_out_tables       varchar[], -- not selected when the rank was read, so unknown here; NULL: none
    kept_steps            bigint[]   -- steps that were selected when it was read; NULL: all, and what is outside
);

-- Communication groups this rank belongs to.
create table groups (
    group_hash    varchar,
    group_name    varchar,     -- HCCL communicator name
    group_label   varchar,     -- framework's label: tp, dp_cp, default_group, ...
    parallel_kind varchar,     -- closed list: tp pp dp ep cp dp_cp tp_cp tp_dp tp_dp_cp tp_ep dp_ep mp mp_ep embd world unknown
    group_rank    integer,     -- this rank's position in it
    global_ranks  integer[]    -- members in group order
);

-- Training steps as recorded.
create table steps (
    step            bigint,
    window_start_ns bigint,    -- host range of the step (ProfilerStep#N / STEP_TIME)
    window_end_ns   bigint,
    device_start_ns bigint,    -- first start of what the step launched (else window_start_ns)
    device_end_ns   bigint     -- last end of what the step launched, not before window_end_ns
);

-- Device kernels. Only is_compute rows count as computing.
create table kernels (
    step               bigint,
    device_id          integer,
    stream_id          bigint,
    task_id            bigint,
    context_id         bigint,
    model_id           bigint,    -- NULL in eager mode
    name               varchar,
    type               varchar,   -- operator type, e.g. MatMulV3 (of a GPU's kernel: the framework's operator that launched it); NULL where the profiler level has none
    core               varchar,   -- AI_CORE | AI_VECTOR_CORE | MIX_AIC | MIX_AIV | AI_CPU | DSA_SQE | ...
    is_compute         boolean,   -- false: HCCL wrapper kernels, notify, event, memcpy, SDMA
    op_state           varchar,   -- static | dynamic
    start_ns           bigint,
    dur_ns             bigint,
    wait_ns            bigint,    -- gap to the task before it on the device, as recorded
    block_count        integer,   -- cores used
    mix_block_count    integer,   -- cores of the second kind in MIX kernels
    hf32_eligible      boolean,
    input_shapes       varchar,   -- "32,9216;4096,9216": tensors by ';', dimensions by ','
    input_dtypes       varchar,
    input_formats      varchar,
    output_shapes      varchar,
    output_dtypes      varchar,
    output_formats     varchar,
    connection_id      varchar,   -- joins launches and host_ops
    aic_time_ns        double,    -- time the cube cores were busy
    aic_cycles         double,    -- cube-core cycles, all cores
    aiv_time_ns        double,    -- time the vector cores were busy
    aiv_cycles         double,    -- vector-core cycles, all cores
    cube_utilization_ratio double,
    pmu                map(varchar, double)   -- other PMU columns: times in ns, ratios 0..1, names as recorded without unit
);

-- Tasks of the device that are neither kernels nor part of a communication operation.
create table device_tasks (
    device_id     integer,
    stream_id     bigint,
    task_id       bigint,
    type          varchar,   -- EVENT_RECORD | EVENT_WAIT | MEMCPY_ASYNC | Notify Wait | ..., as the runtime names it
    start_ns      bigint,
    dur_ns        bigint,    -- of a wait: from when the stream got to it until it went on
    connection_id varchar    -- joins launches and host_ops
);

-- Communication operations (never their tasks).
create table comm_ops (
    step          bigint,
    device_id     integer,
    stream_id     bigint,      -- of its first task: where it stands in the order of a stream; NULL: not told
    op_id         bigint,      -- unique within the rank; joins comm_tasks
    name          varchar,     -- e.g. hcom_allReduce__868_0_1
    op_type       varchar,     -- allReduce allGather reduceScatter allToAll allToAllV broadcast reduce send receive batchSendRecv ...
    group_hash    varchar,
    start_ns      bigint,
    dur_ns        bigint,
    algorithm     varchar,     -- e.g. MESH-RING
    data_type     varchar,     -- FP32, BFP16, ...
    element_count bigint,
    size_bytes    bigint,      -- element_count x width of data_type
    relay         boolean,     -- bandwidth-sharing relay was used
    retry         boolean,     -- the operation was retried
    group_size    integer,     -- ranks in the group, where the profile says it
    peer_ranks    integer[],   -- of send, receive, batchSendRecv: global ranks at the other end, ascending; NULL: not told
    connection_id varchar
);

-- What a communication operation did on its planes.
create table comm_tasks (
    op_id          bigint,
    op_name        varchar,
    group_hash     varchar,
    plane_id       integer,
    task_type      varchar,    -- Notify_Wait | Notify_Record | Memcpy | Reduce_Inline | RDMASend | ...
    stream_id      bigint,
    task_id        bigint,
    start_ns       bigint,
    dur_ns         bigint,
    transport      varchar,    -- SDMA | RDMA | LOCAL | UB | ...
    link           varchar,    -- ON_CHIP | HCCS | PCIE | ROCE | SIO | ...
    rdma_type      varchar,
    src_group_rank integer,    -- position in the group
    dst_group_rank integer,
    src_rank       integer,    -- global rank; NULL where the group's members are unknown
    dst_rank       integer,
    size_bytes     bigint,
    data_type      varchar,
    notify_id      varchar,
    is_master      boolean     -- on the master plane, where the profile says it
);

-- Times HCCL measured on the master plane of an operation.
create table comm_times (
    step               bigint,
    name               varchar,
    op_type            varchar,
    category           varchar,   -- p2p | collective
    group_hash         varchar,
    start_ns           bigint,    -- rounded by the producer to 0.25 us or worse
    elapse_ns          double,
    transit_ns         double,
    wait_ns            double,
    synchronization_ns double,    -- the part of wait before the first transit
    idle_ns            double
);

-- Traffic of an operation per link type, all planes. SDMA is the sum of HCCS, PCIE and SIO: never add it to them.
create table comm_links (
    step                  bigint,
    name                  varchar,
    op_type               varchar,
    category              varchar,
    group_hash            varchar,
    link                  varchar,   -- HCCS | RDMA | PCIE | SIO | SDMA (aggregate)
    size_bytes            double,
    time_ns               double,
    bandwidth_bytes_per_s double,    -- as printed by the producer
    large_packet_ratio    double,
    packets               struct(size_bytes double, packet_count bigint, time_ns double)[]
);

-- Link matrix as the profiler exports it.
create table comm_matrix (
    step                  bigint,
    op_type               varchar,
    category              varchar,
    variant               varchar,   -- total | top1 | middle | bottom1 | bottom2 | bottom3 | op (one operation, old exports)
    name                  varchar,   -- the operation, where one is meant
    group_hash            varchar,
    src_group_rank        integer,
    dst_group_rank        integer,
    src_rank              integer,
    dst_rank              integer,
    link                  varchar,   -- LOCAL | HCCS | PCIE | SIO | RDMA | ...
    size_bytes            double,
    time_ns               double,
    bandwidth_bytes_per_s double
);

-- Host side: framework operators, Python frames, task queue, CANN interfaces, garbage collection.
create table host_ops (
    kind              varchar,   -- operator | python | enqueue | dequeue | api | gc
    level             varchar,   -- api only: acl | model | node | communication | runtime
    name              varchar,
    process_id        bigint,
    thread_id         bigint,
    start_ns          bigint,
    dur_ns            bigint,
    connection_id     varchar,   -- joins launches and kernels (api), or enqueue to dequeue
    sequence_number   bigint,    -- autograd sequence, joins forward and backward
    forward_thread_id bigint,
    input_shapes      varchar,
    input_dtypes      varchar,
    call_stack        varchar,   -- innermost frame first, lines split by newline; NULL unless asked for (ingest --stacks)
    module            varchar,
    flops             double
);

-- One row per device task that a host call launched.
create table launches (
    connection_id   varchar,
    api_name        varchar,
    api_thread_id   bigint,
    api_start_ns    bigint,
    api_end_ns      bigint,
    operator_name   varchar,   -- framework operator above the call
    operator_thread_id bigint,
    operator_start_ns  bigint,
    target          varchar,   -- kernel | communication | task
    target_name     varchar,
    device_id       integer,
    stream_id       bigint,
    device_start_ns bigint,
    latency_ns      bigint     -- device_start_ns - api_start_ns; clock noise can make it negative
);

-- Memory over time, per component.
create table memory (
    device_id       integer,
    source          varchar,   -- record (framework's and app's curve) | module (CANN modules)
    component       varchar,   -- PTA | GE | PTA+GE | APP | WORKSPACE | MindSpore | HCCL | RUNTIME | ...
    timestamp_ns    bigint,
    allocated_bytes bigint,
    reserved_bytes  bigint,
    active_bytes    bigint,
    stream_ptr      varchar
);

-- Blocks of device memory and who held them.
create table operator_memory (
    device_id                       integer,
    name                            varchar,
    size_bytes                      bigint,    -- negative: freed here, allocated before the window
    allocated_at_ns                 bigint,
    released_at_ns                  bigint,    -- NULL: not freed within the window
    active_released_at_ns           bigint,
    dur_ns                          bigint,
    active_dur_ns                   bigint,
    allocation_total_allocated_bytes bigint,
    allocation_total_reserved_bytes bigint,
    allocation_total_active_bytes   bigint,
    release_total_allocated_bytes   bigint,
    release_total_reserved_bytes    bigint,
    release_total_active_bytes      bigint,
    stream_ptr                      varchar
);

-- Hardware counters over time.
create table counters (
    device_id    integer,   -- NULL: host
    name         varchar,   -- counter as the timeline names it: AI Core Freq, HBM 0/Read, ...
    series       varchar,   -- one of its series with its unit: MHz, Read(B/s), Hit Rate(%) of 0..100, ...
    timestamp_ns bigint,
    value        double
);

-- Ranges and instants that users or the framework marked.
create table marks (
    kind            varchar,   -- profiler_step | mstx
    name            varchar,
    domain          varchar,
    process_id      bigint,
    thread_id       bigint,
    start_ns        bigint,
    dur_ns          bigint,    -- 0: an instant
    connection_id   varchar,
    device_start_ns bigint,
    device_dur_ns   bigint
);

-- Tokens routed to each expert.
create table expert_load (
    step    bigint,
    phase   varchar,   -- train | prefill | decode
    layer   integer,
    expert  integer,   -- logical expert
    ep_rank integer,   -- expert-parallel rank that held it; NULL: counted globally
    tokens  bigint
);

-- Tokens that single ranks routed, where they were counted so.
create table expert_counts (
    step        bigint,
    phase       varchar,   -- train | prefill | decode
    layer       integer,
    counted_by  integer,   -- global rank that routed them
    micro_batch integer,   -- NULL: all of the step together
    tokens      bigint[]   -- of expert 0, 1, ...
);

-- Which expert sits in which slot.
create table expert_placement (
    layer     integer,
    device    integer,   -- position in the expert-parallel group
    slot      integer,
    expert    integer
);

-- What the trainer logged.
create table train_log (
    step              bigint,
    elapsed_s         double,
    tokens_per_s      double,
    loss              double,
    grad_norm         double,
    learning_rate     double,
    mfu_ratio         double,
    tflops_per_s      double,
    loss_scale        double,
    skipped_count     double,   -- iterations skipped since the line before
    nan_count         double,   -- iterations without a number since the line before
    not_finite_count  double,   -- figures of the line that are no number
    consumed_tokens   double,   -- of the job since its start
    step_tokens       double,   -- of the job in this step
    memory_bytes      double,
    generation_s      double,   -- of reinforcement learning: phases of the step
    old_log_prob_s    double,
    reference_s       double,
    reward_s          double,
    advantage_s       double,
    update_actor_s    double,
    update_critic_s   double,
    generation_min_s  double,   -- the soonest, mean and slowest of generate_sequences
    generation_mean_s double,
    generation_max_s  double,
    weight_sync_s     double,
    resharding_s      double,
    mtp_1_loss        double,   -- of heads that predict further tokens
    mtp_2_loss        double,
    mtp_3_loss        double,
    at_s              double,   -- when the line was written, by its writer's clock
    per_device        double,   -- 1: tokens_per_s is one device's
    global_batch_size double    -- sequences
);

-- The producer's own table of steps: for cross-checks, and the only figures of light inputs.
create table profiler_steps (
    device_id                                     integer,
    step                                          bigint,
    computing_ns                                  double,
    communication_not_overlapped_ns               double,
    overlapped_ns                                 double,
    communication_ns                              double,
    free_ns                                       double,
    stage_ns                                      double,
    bubble_ns                                     double,
    communication_not_overlapped_and_exclude_receive_ns double,
    preparing_ns                                  double    -- NULL before 2024-04
);
