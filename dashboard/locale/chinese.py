"""The Chinese of what reports say, by English sentence; names in braces stand for what varies.

Terms are those of the Ascend community: 掩盖 for masking, 未掩盖通信 for exposed communication,
空闲 for free, 气泡 for bubble, 通信域 for group.
"""

from __future__ import annotations

from .chinese_columns import COLUMNS
from .chinese_experts import EXPERTS
from .chinese_frame import FRAME
from .chinese_models import MODELS
from .chinese_notes import NOTES
from .chinese_pages import PAGES, TIMELINE

_WORDS = {
    "report": "性能分析报告", "rank": "rank", "step": "step", "run": "任务", "capture": "采集批次",
    "ranks": "rank", "parallel": "并行配置", "steps": "step", "recorded": "采集环境",
    "wall time": "采集墙钟时间", "not marked": "未标记", "measure": "指标", "min": "最小",
    "median": "中位数", "max": "最大", "at rank": "所在 rank", "(max-min)/mean": "(最大-最小)/均值",
    "stage": "阶段", "computing": "计算", "communication": "通信", "exposed": "未掩盖",
    "exposed communication": "未掩盖通信", "masked": "掩盖率", "free": "空闲", "bubble": "气泡",
    "preparing": "准备", "basis": "依据", "type": "类型", "name": "名称", "core": "核",
    "shape": "形状", "count": "次数", "total ms": "总耗时 ms", "of computing": "占计算",
    "mean us": "平均 us", "max us": "最大 us", "group": "通信域", "groups": "通信域数",
    "operation": "算子", "exposed ms": "未掩盖 ms", "MB": "MB", "ms": "ms", "MiB": "MiB",
    "ms per step": "ms / step", "time unknown": "耗时未知", "try": "建议", "sure": "可信度",
    "more": "更多", "Evidence": "依据数据", "measured": "实测", "estimated": "估计",
    "hint": "提示", "hidden": "已掩盖", "reserved": "已预留", "allocated": "已分配",
    "component": "组件", "kind": "并行类型", "op type": "算子类型", "op count": "次数",
    "exposed attributed per step ms": "每 step 分摊的未掩盖 ms", "masking": "掩盖率",
    "communication ms": "通信 ms", "exposed communication ms": "未掩盖通信 ms",
    "pp rank": "PP rank", "bubble ms": "气泡 ms", "length ms": "step 长度 ms",
    "free ms": "空闲 ms", "gap ms": "间隔 ms", "preparing ms": "准备 ms",
    "computing ms": "计算 ms", "mean computing ms": "平均计算 ms", "rank count": "rank 数",
    "count per step": "每 step 次数", "total per step ms": "每 step 总耗时 ms",
    "peak MiB": "峰值 MiB", "peak allocated MiB": "已分配峰值 MiB", "fragmentation MiB": "碎片 MiB",
    "fragmentation": "碎片率", "growth per step MiB": "每 step 增长 MiB", "growth MiB": "增长 MiB",
    "step count": "step 数", "last MiB": "末尾 MiB", "caused wait ms": "造成等待 ms",
    "share": "占比", "last to arrive": "最后到达次数", "verdict": "判断", "score": "得分",
    "peak": "峰值", "where the peak goes": "峰值去向",
    "MFU points": "MFU 百分点", "stage {number}": "stage {number}", "achieved": "实际达到",
    "executed beyond the model's need": "超出模型所需的执行量",
    "clock below its nominal": "频率低于标称", "cube kernels below the peak": "Cube 算子未达峰值",
    "kernels of unknown FLOPs": "FLOPs 未知的算子", "vector and other compute": "Vector 及其他计算",
    "waiting for slower ranks": "等待较慢的 rank", "waiting in the pipeline": "流水线等待",
    "communication that moves bytes": "传输数据的通信", "not captured": "未采集",
    "{ranks}; waiting for them is shown separately": "{ranks}；对它们的等待单独列出",
    "waiting for ranks not captured": "等待未采集的 rank",
    "communication, bytes or waiting unknown": "传输还是等待未知的通信",
    "free: no work of the step": "空闲：没有本 step 的任务",
    "free: the host launches late": "空闲：host 下发晚",
    "free: idle, though launched": "空闲：已下发但未运行", "a mean step": "平均 step",
    "Where a step's time goes": "一个 step 的时间去向", "part": "部分",
    "free: neither a kernel nor an operation of the step; another step's may run":
        "空闲：既没有本 step 的计算算子也没有其通信算子；其他 step 的可能在运行",
    "before the first and after the last work": "首个任务之前与末个任务之后",
    "its host launches late": "所在主机下发慢", "same kernels take longer": "同样的算子更慢",
    "chip runs at a lower clock": "芯片降频", "slow link": "链路慢",
    "more tokens in its all-to-all": "all-to-all 中 token 更多", "most tokens": "token 最多处",
    "layer {layer}, expert {expert}: tokens per step, {share} % of the rank's":
        "第 {layer} 层专家 {expert}：每 step 的 token 数，占该 rank 的 {share} %",
    "layer {layer}: tokens per step, {share} % of the rank's":
        "第 {layer} 层：每 step 的 token 数，占该 rank 的 {share} %",
    "all layers: tokens per step, {share} % of the rank's":
        "所有层：每 step 的 token 数，占该 rank 的 {share} %",
    "which experts: not recorded; collect tokens_per_expert with the training hook and ingest it"
    " with --expert-load DIR":
        "具体专家未知：请用训练钩子采集 tokens_per_expert，并以 --expert-load DIR 给出",
    "which experts: counts cover all ranks, and the layers of this rank's pipeline stage are not"
    " recorded":
        "具体专家未知：计数为所有 rank 合计，且不知该 rank 的流水线 stage 含哪些层",
    "slower than its peers, cause unknown": "比同类 rank 慢，原因未见",
}  # fmt: skip

_TITLES = {
    "What to look at first": "首先关注",
    "Where each step goes": "各 step 的时间去向",
    "Where each step goes (ms)": "各 step 的时间去向（ms）",
    "Where a mean step goes on each rank": "各 rank 平均一个 step 的时间去向",
    "Spread across ranks (ms)": "rank 间差异（ms）",
    "Ranks that make others wait": "慢卡：让其他 rank 等待的 rank",
    "From the peak to what is achieved": "从峰值到实际达到",
    "% of the peak": "占峰值 %",
    "of a mean rank and step; points add up to 100": "平均一个 rank 的一个 step；百分点合计 100",
    "peak: {source}; attention counted as causal": "峰值：{source}；attention 按 causal 计",
    "{cores} cores ({of_cores}) x {mhz} MHz ({of_mhz}) x {per}":
        "{cores} 核（{of_cores}）× {mhz} MHz（{of_mhz}）× {per}",
    "inferred from block counts": "由 block 数推断", "metadata": "元数据",
    "table, {chip}": "芯片表，{chip}", "cycles / core time": "周期数 / 核时间",
    "cycles / core time, above the configured clock": "周期数 / 核时间，高于配置频率",
    "caused wait: sum over all other ranks and the steps shown; score: -log10 p":
        "造成等待：其他所有 rank 在所示全部 step 中的等待之和；得分：-log10 p",
    "caused wait: sum over all other ranks and the steps shown; score: -log10 p; {number} more"
    " ranks":
        "造成等待：其他所有 rank 在所示全部 step 中的等待之和；得分：-log10 p；"
        "另有 {number} 个 rank",
    "Top kernels: no single kernel was recorded, only the producer's own steps":
        "算子耗时排名：未采集单个算子，只有采集工具自己的 step 统计",
    "Communication: no communication operation was recorded": "通信：未采集到通信算子",
    "Who makes the others wait: no operation was recorded by two ranks or more":
        "谁让别人等：没有两个或以上 rank 共同记录的通信算子",
    "Expert load: no tokens per expert were recorded, and no kernel shows them":
        "专家负载：未采集各专家的 token 数，算子也未体现",
    "Memory: no memory curve was recorded": "内存：未采集内存曲线",
    "From the peak to what is achieved: not known: {why}": "从峰值到实际达到：未知：{why}",
    "no kernel has shapes that FLOPs follow from": "没有可推算 FLOPs 的算子 shape",
    "Longest kernels": "耗时最长的算子",
    "Top kernels by {key}: of a rank's step ({scope})":
        "算子耗时排名，按{key}：每个 rank 的一个 step（{scope}）",
    "Communication by group and operation: of a rank's step ({scope})":
        "按通信域和算子统计的通信：每个 rank 的一个 step（{scope}）",
    "mean of {ranks} ranks, {steps} steps": "{ranks} 个 rank、{steps} 个 step 的均值",
    "mean of {ranks} ranks, 1 step": "{ranks} 个 rank、1 个 step 的均值",
    "mean of 1 rank, {steps} steps": "1 个 rank、{steps} 个 step 的均值",
    "mean of 1 rank, 1 step": "1 个 rank、1 个 step",
    "{scope}, as HCCL measured it": "{scope}，HCCL 实测",
    "Communication, hidden behind compute or exposed": "通信：被计算掩盖与未掩盖",
    "Memory of the rank with the highest peak: rank {rank}": "显存占用最高的 rank：rank {rank}",
    "ms since the first record": "自首条记录起的 ms",
    "and {number} more: {command}": "另有 {number} 项：{command}",
    "and {number} more": "另有 {number} 项",
    "the {shown} longest of {all}: {command} gives all":
        "{all} 行中最长的 {shown} 行；{command} 给出全部",
    "What to know about these figures": "解读这些数字须知",
    "Data lost or inferred when reading": "读取时丢失或推断的内容",
    "Times are means or sums as each table says; unknown is a dash. Definitions: docs/metrics.md.":
        "时间为均值或总和，以各表标题为准；未知以“-”表示。定义见 docs/metrics.md。",
    "exposed communication {percent}": "未掩盖通信 {percent}",
    "all steps: computing {computing}, exposed {exposed}, free {free};"
    " communication masked {masked}":
        "全部 step：计算 {computing}，未掩盖通信 {exposed}，空闲 {free}；通信掩盖率 {masked}",
    "all steps: computing {computing}, exposed {exposed}, free {free}; no communication":
        "全部 step：计算 {computing}，未掩盖通信 {exposed}，空闲 {free}；无通信",
    "no step has computing, communication and free time all known":
        "没有任何 step 的计算、通信、空闲时间全部已知",
    "{seconds} s from {moment} UTC": "{seconds} s，始于 {moment} UTC",
    "{seconds} s on a device clock": "{seconds} s（设备时钟）",
    "{number} of {all} ({ranks}) on {chip}": "{all} 个中的 {number} 个（{ranks}），{chip}",
    "{number} ({ranks}) on {chip}": "{number} 个（{ranks}），{chip}",
    "rank {number}": "rank {number}",
    "ranks {numbers}": "rank {numbers}",
    "{numbers} and {number} more": "{numbers} 等另外 {number} 个",
}  # fmt: skip

_FINDINGS = {
    "{stake} ms of communication per step is not hidden behind compute (masked: {masked}).":
        "每个 step 有 {stake} ms 通信未被计算掩盖（掩盖率 {masked}）。",
    "{stake} ms of communication per step is not hidden behind compute (masked: {masked})."
    " Most of it: {op} of {kind} groups, {most} ms.":
        "每个 step 有 {stake} ms 通信未被计算掩盖（掩盖率 {masked}）。"
        "其中最多的是 {kind} 通信域的 {op}，{most} ms。",
    "{stake} ms of communication per step is not hidden behind compute (masked: {masked})."
    " Most of it: {op}, {most} ms.":
        "每个 step 有 {stake} ms 通信未被计算掩盖（掩盖率 {masked}）。"
        "其中最多的是 {op}，{most} ms。",
    "{stake} ms of communication per step is not hidden behind compute (masked: {masked})."
    " Whether {unknown} ms of it move bytes or wait is unknown.":
        "每个 step 有 {stake} ms 通信未被计算掩盖（掩盖率 {masked}）。"
        "其中 {unknown} ms 是传输还是等待未知。",
    "{stake} ms of communication per step is not hidden behind compute (masked: {masked})."
    " Most of it: {op} of {kind} groups, {most} ms."
    " Whether {unknown} ms of it move bytes or wait is unknown.":
        "每个 step 有 {stake} ms 通信未被计算掩盖（掩盖率 {masked}）。"
        "其中最多的是 {kind} 通信域的 {op}，{most} ms。其中 {unknown} ms 是传输还是等待未知。",
    "{stake} ms of communication per step is not hidden behind compute (masked: {masked})."
    " Most of it: {op}, {most} ms. Whether {unknown} ms of it move bytes or wait is unknown.":
        "每个 step 有 {stake} ms 通信未被计算掩盖（掩盖率 {masked}）。"
        "其中最多的是 {op}，{most} ms。其中 {unknown} ms 是传输还是等待未知。",
    "Communication time without a compute kernel on the rank, minus known waiting. Operations"
    " that run at the same time share it equally.":
        "通信算子落在本 rank 所有计算算子之外的时间，不含已知的等待；"
        "多个算子同时通信的时刻由它们均分。",
    "Overlap it: bucketed gradient reduction and parameter gathering, all-to-all split into"
    " chunks that overlap expert computation.":
        "让通信与计算重叠：梯度归约与参数聚合分桶进行，all-to-all 切块与专家计算并行。",
    "First find the straggler: more overlap or bandwidth shortens transfers, not waiting.":
        "先找出慢卡：重叠和带宽只能缩短数据传输，不能缩短等待。",
    "Pipeline stages compute unequally: stage {heavy} {most} ms per step, stage {light} {least} ms."
    " {stake} ms per step ({share}) pass waiting for another stage, most on stage {worst}.":
        "流水级计算不均：stage {heavy} 每个 step 计算 {most} ms，stage {light} 为 {least} ms。"
        "每个 step 有 {stake} ms（{share}）在等待其他流水级，stage {worst} 最多。",
    "Waiting of all stages, as a mean of ranks and steps. Part of it is inherent to the schedule:"
    " about (stages - 1) / (micro-batches + stages - 1) of the step even with balanced stages.":
        "所有流水级的等待，按 rank 和 step 平均。其中一部分属于调度本身："
        "即使各级均匀，约 step 的 (级数 - 1) / (微批数 + 级数 - 1) 也会如此。",
    "Move layers from the heaviest stage to lighter ones (embedding, loss and MTP heads count as"
    " layers); then more micro-batches or interleaved (virtual) stages. Faster links or more"
    " overlap do not shorten this waiting.":
        "把层从最重的流水级移到较轻的流水级（embedding、loss 和 MTP 头也算层）；"
        "然后增加微批数或使用交错（虚拟）流水级。更快的链路或更多重叠不能缩短这种等待。",
    "{stake} ms per step ({share}) pass waiting for another pipeline stage with nothing to compute:"
    " pipeline bubbles, most on {rank}.":
        "每个 step 有 {stake} ms（{share}）无计算可做，在等待其他流水级，即流水线气泡，"
        "{rank} 最多。",
    "Transfers between stages that no compute kernel overlaps. Part of it is inherent to the"
    " schedule: about (stages - 1) / (micro-batches + stages - 1) of the step.":
        "落在所有计算算子之外的流水级间传输。调度本身有不可避免的一部分："
        "约为 step 的 (级数 - 1) / (微批数 + 级数 - 1)。",
    "More micro-batches per step, interleaved (virtual) stages, or layers moved from the slowest"
    " stage.": "增加每个 step 的微批数，使用交错（虚拟）流水级，或把最慢级的部分层移走。",
    "{shown} of {exposed} ms of exposed communication per step ({share}) are waiting for a pipeline"
    " stage that was not captured ({ranks}).":
        "每个 step 的 {exposed} ms 未掩盖通信中有 {shown} ms（{share}）"
        "在等待未采集的流水级（{ranks}）。",
    "{shown} of {exposed} ms of exposed communication per step ({share}) are waiting for a pipeline"
    " stage that was not captured.":
        "每个 step 的 {exposed} ms 未掩盖通信中有 {shown} ms（{share}）在等待未采集的流水级。",
    "{shown} of {exposed} ms of exposed communication per step ({share}) are waiting for ranks that"
    " were not captured ({ranks}).":
        "每个 step 的 {exposed} ms 未掩盖通信中有 {shown} ms（{share}）在等待未采集的 {ranks}。",
    "{shown} of {exposed} ms of exposed communication per step ({share}) are waiting for ranks that"
    " were not captured.":
        "每个 step 的 {exposed} ms 未掩盖通信中有 {shown} ms（{share}）在等待未采集的 rank。",
    "For groups with members that were not captured, waiting is the initial wait measured by"
    " HCCL, or the duration above the shortest operation of the kind. What those ranks did"
    " meanwhile is unknown.":
        "通信域含未采集成员的算子：等待时间取 HCCL 测得的首次传输前的时间，"
        "或超出同类最短算子的时间。那些 rank 当时在做什么未知。",
    "Profile a rank of every stage, or all ranks, for the same steps: `npuscope doctor` names the"
    " missing ones. If another stage computes longer, move layers away from it. Overlap and"
    " bandwidth do not shorten this waiting.":
        "对同样的 step 采集每个流水级的一个 rank 或全部 rank：`npuscope doctor` 列出缺少的 rank。"
        "若另一流水级计算更久，把层从它移走。重叠和带宽不能缩短这种等待。",
    "{stake} ms of communication per step ({share}) wait for ranks that arrive later, most on"
    " {rank}.": "每个 step 有 {stake} ms（{share}）的通信在等待到得更晚的 rank，{rank} 最多。",
    "Exposed communication by which an operation is longer than on the group member that waits"
    " least.":
        "落在所有计算算子之外的通信算子，取其比等待最少的成员多出的时间。",
    "Find the straggler and its cause: a slow chip, host or link, or more tokens. Overlap and"
    " bandwidth do not shorten this waiting.":
        "找出慢卡及其原因：芯片、host 或链路慢，或 token 更多。重叠和带宽不能缩短这种等待。",
    "{stake} ms per step ({share}) have neither a kernel nor an operation of the step, most on"
    " {rank}.": "每个 step 有 {stake} ms（{share}）既没有本 step 的计算也没有其通信，{rank} 最多。",
    "{stake} ms per step ({share}) have neither a kernel nor an operation of the step, most on"
    " {rank}. In {host} ms of it the host had not launched what came next.":
        "每个 step 有 {stake} ms（{share}）既没有本 step 的计算也没有其通信，{rank} 最多。"
        "其中 {host} ms 里 host 尚未下发下一个任务。",
    "Time from a step's first to its last kernel or operation that none of them covers; another"
    " step's may run then. With the profiler on, the host is slower than without, so the job itself"
    " may idle less.":
        "一个 step 从首个到最后一个算子之间没有它自己的算子覆盖的时间；"
        "此时可能有其他 step 的算子在运行。"
        "采集会拖慢 host，因此不采集时的空闲可能更少。",
    "Usually the host launches too slowly: bind processes to cores, fuse small operators, avoid"
    " synchronisation (.item(), print of tensors), set TASK_QUEUE_ENABLE=2.":
        "通常是 host 下发不及时：绑核，融合小算子，避免同步（.item()、打印张量），"
        "设置 TASK_QUEUE_ENABLE=2。",
    "Usually the host launches too slowly: bind processes to cores, fuse small operators, avoid"
    " synchronisation (.item(), print of tensors), capture CUDA graphs.":
        "通常是 host 下发不及时：绑核，融合小算子，避免同步（.item()、打印张量），"
        "使用 CUDA graph。",
    "{stake} ms pass between one step and the next on the device.":
        "设备上相邻两个 step 之间相隔 {stake} ms。",
    "From the last kernel or operation of a step to the first of the next one.":
        "从一个 step 的最后一个算子到下一个 step 的首个算子。",
    "From the last kernel or operation of a step to the first of the next one. Kernels that belong"
    " to no step ran on these ranks and may fill a part of it.":
        "从一个 step 的最后一个算子到下一个 step 的首个算子。"
        "这些 rank 上有不属于任何 step 的算子，可能占用其中一部分。",
    "Look for data loading, logging, checkpoints or garbage collection between steps: prefetch"
    " batches, more loader workers, pinned memory, gc frozen or moved out of the loop.":
        "检查 step 之间的数据加载、日志、保存检查点和垃圾回收：预取数据，增加加载进程，"
        "使用锁页内存，冻结 gc 或移出循环。",
    "The slowest rank computes {stake} ms per step longer than the mean of its stage; most of it"
    " {rank}, slowest in {some} of {all} steps.":
        "最慢的 rank 每个 step 比同级均值多计算 {stake} ms；主要是 {rank}，"
        "{all} 个 step 中有 {some} 个最慢。",
    "If the work were spread evenly, every rank would take the mean time. Ranks of one stage"
    " may do different work by design (experts, embedding); then there is nothing to gain.":
        "若负载均匀，各 rank 都只需均值。"
        "同级 rank 的工作可能本就不同（专家、embedding），此时无可收益。",
    "Compare the kernels of the slowest rank with another's: the same kernels slower point to the"
    " chip or its clock, more of them to uneven work, such as overloaded experts.":
        "把最慢 rank 的算子与其他 rank 对比：同样的算子更慢，指向芯片或其频率；"
        "算子更多，指向负载不均，例如专家过载。",
    "Step times vary: the longest, step {step}, takes {longest} ms; half of the steps take {half}"
    " ms or less.":
        "step 长短不一：最长的 step {step} 为 {longest} ms，而一半的 step 不超过 {half} ms。",
    "Step time of the longest rank, as a mean over steps, minus the median step.":
        "各 step 最长 rank 的均值减去其中位数。",
    "See which part grows in the long steps: free time points to the host (garbage collection,"
    " data), communication to the network or a late rank, computing to longer sequences.":
        "看长 step 中哪一部分变长：空闲指向 host（垃圾回收、"
        "数据），通信指向网络或慢卡，计算指向更长的序列。",
    "{stake} ms per step ({share} of it) go to kernels that only move or convert data, most to"
    " {type}.": "每个 step 有 {stake} ms（{share}）用于只搬运或转换数据的算子，{type} 最多。",
    "Sum of the kernels' durations. Some conversions and copies cannot be avoided.":
        "这些算子耗时之和。部分转换和拷贝无法避免。",
    "Keep one layout and one type through a block: contiguous tensors, no .contiguous() or .to() in"
    " the loop, fused operators that take the layout they get.":
        "在一个模块内保持同一格式和类型：使用连续张量，循环内不用 .contiguous() 或 .to()，"
        "使用能直接接受现有格式的融合算子。",
    "{stake} ms per step ({share} of it) go to kernels that only fill memory with a value, most to"
    " {type}.": "每个 step 有 {stake} ms（{share}）用于只给内存填充定值的算子，{type} 最多。",
    "Sum of the kernels' durations. Buffers used for accumulation must be cleared once.":
        "这些算子耗时之和。用于累加的缓冲区必须清零一次。",
    "Use zero_grad(set_to_none=True), use empty instead of zeros where everything is"
    " overwritten, reuse buffers between steps.":
        "使用 zero_grad(set_to_none=True)；会被完全覆盖处用 empty 代替 zeros；"
        "在 step 之间复用缓冲区。",
    "{stake} ms per step ({share} of it) go to kernels on the AI CPU, most to {type}.":
        "每个 step 有 {stake} ms（{share}）用于 AI CPU 上的算子，{type} 最多。",
    "Sum of the kernels' durations: on the AI cores the same work would take a fraction of"
    " it.":
        "这些算子耗时之和：在 AI Core 上同样的工作只需其中一小部分时间。",
    "Other types or an equivalent operator usually bring them to the AI cores: int64 and bool"
    " inputs, dynamic shapes and unusual index operators are frequent causes.":
        "换数据类型或等价算子通常能让其在 AI Core 上执行：int64 和 bool 输入、动态 shape、"
        "少见的索引算子是常见原因。",
    "{rank}: {size} MiB ({share} of what {component} reserved) were not allocated when most memory"
    " was in use.":
        "{rank}：占用最高时 {component} 有 {size} MiB（占其预留的 {share}）未分配出去。",
    "Memory reserved but not allocated by the allocator at the peak. It costs no time until"
    " memory runs out; then the allocator empties its cache, which takes milliseconds each time.":
        "峰值时分配器持有却未能分配出去的部分。显存耗尽之前不花时间；"
        "耗尽时分配器清空缓存，每次耗费若干毫秒。",
    'PYTORCH_NPU_ALLOC_CONF="expandable_segments:True", fewer different tensor sizes.':
        '设置 PYTORCH_NPU_ALLOC_CONF="expandable_segments:True"，减少张量尺寸的种类。',
    'PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True", fewer different tensor sizes.':
        '设置 PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"，减少张量尺寸的种类。',
    "{rank}: {component} grows by {size} MiB in every step recorded ({count} of them).":
        "{rank}：{component} 在采集到的 {count} 个 step 中每个 step 增长 {size} MiB。",
    "Memory in use at the end of each step rose in every step, by about the same amount. With"
    " few steps this can also be warm-up.":
        "每个 step 结束时的占用都在上升，幅度相近。step 较少时也可能是预热。",
    "Look for tensors that are never released: losses accumulated with their graph, growing"
    " lists, caches keyed by shape.":
        "检查未释放的张量：带计算图累加的 loss、不断增长的列表、按 shape 的缓存。",
}  # fmt: skip

_NOTES = {
    "{ranks}: {missing}. To know it: {remedy}": "{ranks}：{missing}。若要获知：{remedy}",
    "no kernels: single operators cannot be analysed": "没有算子数据，无法分析单个算子",
    "export kernel_details.csv or the profiler's DB: run analyse() on the whole folder":
        "对整个目录运行 analyse()，导出 kernel_details.csv 或 DB",
    "no operator types, shapes or cores: no FLOPs, no grouping by type":
        "没有算子类型、shape 和核信息，无法计算 FLOPs，也无法按类型统计",
    "transfer and waiting inside communication cannot be separated": "通信内部的传输与等待未区分",
    "no host activity recorded: what the host did while the device was idle is unknown":
        "没有 host 侧数据，设备空闲时 host 在做什么未知",
    "activities=[ProfilerActivity.CPU, ProfilerActivity.NPU]; keep trace_view.json or the DB":
        "activities=[ProfilerActivity.CPU, ProfilerActivity.NPU]，并保留 trace_view.json 或 DB",
    "no recorded step range: preparing time is the profiler's own figure, if any":
        "没有记录 step 区间，准备时间取自采集工具自己的表（如有）",
    "call prof.step() once per training step, with a schedule":
        "每个训练 step 调用一次 prof.step()，并设置 schedule",
    "the purpose of communication groups is not recorded: inferred from what they do":
        "没有记录通信域的用途：按其行为推测",
    "a torch_npu of 2025-02 or later writes parallel_group_info by itself":
        "2025-02 及以后的 torch_npu 会自动写入 parallel_group_info",
    "torch.distributed.new_group(..., group_desc=NAME), as Megatron and DeviceMesh do":
        "像 Megatron 和 DeviceMesh 那样用 torch.distributed.new_group(..., group_desc=NAME) 建组",
    "no memory curve": "没有显存曲线",
    "{ranks} of {all} missing: figures across ranks cover the others only.":
        "{all} 个 rank 中缺少 {ranks}：跨 rank 的数字只覆盖其余 rank。",
    "{ranks}: no step has events or a row in the profiler's table: no figures.":
        "{ranks}：没有任何 step 有事件或在采集工具的表中有记录，因此没有数字。",
    "{ranks}: operations but no compute kernel was recorded, so computing, overlap and free time"
    " are unknown.": "{ranks}：只记录了通信算子而没有计算算子，计算、重叠和空闲时间未知。",
    "{ranks}: no compute kernels; figures come from the profiler's own table (basis"
    " profiler_table).": "{ranks}：没有计算算子，数字取自采集工具自己的表（依据 profiler_table）。",
    "{ranks}: figures come from the profiler's own table (basis profiler_table).":
        "{ranks}：数字取自采集工具自己的表（依据 profiler_table）。",
    "step {step}, {ranks}: recorded, but without any kernel or operation.":
        "step {step}，{ranks}：有记录，但没有任何算子属于它。",
    "step {step} is warm-up ({told} ms, later steps {usual} ms): excluded from means.":
        "step {step} 是预热（{told} ms，之后的 step 为 {usual} ms）：不计入均值。",
    "steps {steps} are warm-up ({told} ms, later steps {usual} ms): excluded from means.":
        "step {steps} 是预热（{told} ms，之后的 step 为 {usual} ms）：不计入均值。",
    "warm-up": "预热",
    "{ranks}: outside all steps are {what}; they count in no step.":
        "{ranks}：所有 step 之外还有{what}，不计入任何 step。",
    "{kernels} compute kernels ({length} ns) and {operations} communication operations ({span} ns)":
        " {kernels} 个计算算子（{length} ns）和 {operations} 个通信算子（{span} ns）",
    "{count} compute kernels ({length} ns)": " {count} 个计算算子（{length} ns）",
    "{count} communication operations ({length} ns)": " {count} 个通信算子（{length} ns）",
    "{ranks}: only steps {steps} were selected; everything outside them is unknown. To read it:"
    " {command}.": "{ranks}：只选取了 step {steps}，之外的内容未知。读取方法：{command}。",
    "{ranks}: {what}. Figures that need more are unknown, or the profiler's own; to read it:"
    " {command}, or without --ranks for all ranks.":
        "{ranks}：{what}。需要更多数据的数字未知，或取自采集工具；读取方法：{command}，"
        "去掉 --ranks 则读取全部。",
    "read lightly, from small files ({full} of {all} ranks in full)":
        "只轻量读取了小文件（{all} 个 rank 中 {full} 个完整读取）",
    "{tables} were not selected": "未选取 {tables}",
    "rank {rank}: the profiler's table has devices {devices}; shown is {shown}.":
        "rank {rank}：采集工具的表中有设备 {devices}；显示的是{shown}。",
    "the rank's own": "该 rank 自己的设备",
    "device {device}, as the rank's own is unknown": "设备 {device}，因为该 rank 自己的设备未知",
    "{ranks}: communication was recorded as tasks only: an operation spans its first to its last"
    " task":
        "{ranks}：通信只记录了任务：一个算子从其首个任务开始到最后一个任务结束",
    "{ranks}: communication tasks, but no operations with times: communication of the steps is"
    " unknown": "{ranks}：有通信任务，但没有带时间的通信算子：step 的通信时间未知",
    "{ranks}: the trace does not record its rank: rank {rank} is taken from its name":
        "{ranks}：trace 未说明自己的 rank：按文件名记为 rank {rank}",
    "{ranks}: trace: slices without name, time or duration left out":
        "{ranks}：时间线中缺少名称、时间或时长的事件未计入",
    "{ranks}: trace: {count} device tasks whose launching call was not recorded":
        "{ranks}：时间线中有 {count} 个设备任务没有记录其下发调用",
    "{ranks}: HCCL's measurements of operations are left out: its files do not record the device,"
    " and there are several":
        "{ranks}：未采用 HCCL 对通信算子的测量：其文件不区分同一目录中的多个设备",
    "{ranks}: {file}: left out: its rows do not record their device, and there are several":
        "{ranks}：未采用 {file}：其数据行未注明属于多个设备中的哪一个",
    "{ranks}: figures of ranks without a row in the table of steps are left out: {others}":
        "{ranks}：未采用 step 表中没有记录的 rank 的数据：{others}",
    "{ranks}: rows of device {devices} left out: no other file of the profile has this device":
        "{ranks}：舍弃了设备 {devices} 的数据行：采集数据中别处没有该设备",
    "{ranks}: trace: its processes do not record their device, and there are several: data found"
    " only in the timeline is left out":
        "{ranks}：时间线的进程未注明属于哪个设备，只有时间线才有的信息未采用",
    "{ranks}: iterations of {count} models: those of model {model}, which ran longest, are used"
    " as steps; not those of {others}":
        "{ranks}：有 {count} 个模型的迭代：以运行最久的模型 {model} 的迭代作为 step，"
        "模型 {others} 的迭代不计",
    "{ranks}: info.json of several devices records rank {rank}: ignored":
        "{ranks}：多个设备的 info.json 都写着 rank {rank}，不予采用",
    "{ranks}: no file records the rank: numbered {rank}":
        "{ranks}：没有文件说明 rank 编号，编为 rank {rank}",
    "{run}, {capture}: {note}": "{run}，{capture}：{note}",
}  # fmt: skip

TEMPLATES: dict[str, str] = (
    COLUMNS
    | NOTES
    | MODELS
    | FRAME
    | TIMELINE
    | PAGES
    | EXPERTS
    | _WORDS
    | _TITLES
    | _FINDINGS
    | _NOTES
)
