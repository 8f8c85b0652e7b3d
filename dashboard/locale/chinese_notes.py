"""The Chinese of what is not known and why: of capabilities, MFU, comparisons between ranks."""

from __future__ import annotations

_CAPABILITIES = {
    "no compute kernel was recorded": "没有采集到计算算子",
    "no communication operation was recorded": "没有采集到通信算子",
    "no communication operation was recorded with its time": "没有采集到带时间的通信算子",
    "only the profiler's own table of steps is here": "只有采集工具自己的 step 表",
    "no step is marked: the whole capture counts as one step": "没有 step 标记：全部算作一个",
    "no range of steps on the host: preparing time is the profiler's own figure, if any":
        "没有主机侧的 step 范围：准备时间未知",
    "kernels have names, but no types": "算子有名称，没有类型",
    "kernels have no shapes": "算子没有 shape",
    "no PMU counters": "没有 PMU 计数",
    "core times, but no further counters": "有核时间，没有更多计数",
    "operations are recorded without their group": "通信算子没有说明所属通信域",
    "what each group is for is unknown": "各通信域的用途未知",
    "waiting and transfer cannot be separated": "无法区分等待与传输",
    "no traffic of links": "没有链路流量",
    "no link matrix": "没有通信矩阵",
    "members of groups are unknown: only places in a group": "通信域成员未知：只有域内序号",
    "no host activity was recorded": "没有采集主机侧",
    "no operators of the framework": "没有框架算子",
    "no calls of CANN": "没有 CANN 调用",
    "no launch was recorded": "没有采集到下发",
    "launches are recorded without their operator": "下发没有说明所属算子",
    "frames of Python, but no stacks of operators": "有 Python 帧，没有算子的调用栈",
    "no memory curve": "没有显存曲线",
    "only memory of CANN's modules": "只有 CANN 各模块的显存",
    "no blocks of memory": "没有内存块",
    "no shapes of kernels on cube cores": "Cube 算子没有 shape",
    "no cycles measured: the peak has to be given": "没有测得周期数：需要给定峰值",
    "no frequency of the cores": "没有核频率",
    "no counters of links": "没有链路计数",
    "a job of one rank has no communication": "单 rank 任务没有通信",
    # Why, behind it.
    "{reason} (not selected when the rank was read)": "{reason}（读取该 rank 时未选取）",
    "{reason} (recorded, but not kept)": "{reason}（采集了，但未保留）",
    "{reason} ({file} was not read in full)": "{reason}（{file} 未完整读取）",
    "{reason} (not in a GPU's trace, or not read from it)":
        "{reason}（GPU 的 trace 中没有，或未从中读取）",
    "{reason} ({file} is not here)": "{reason}（缺少 {file}）",
    "{reason} (though it was asked for)": "{reason}（虽已要求采集）",
    "{count} of {whole} only: for the others, {reason}": "{whole} 中只有 {count}：其余{reason}",
    # What would help.
    "run analyse() on the whole folder": "对整个目录运行 analyse()",
    "run analyse() on the whole folder, or copy all that it wrote":
        "对整个目录运行 analyse()，或复制它写出的全部文件",
    "see what was lost": "见丢失了什么",
    "activities with {activity}": "在 activities 中加入 {activity}",
    "a schedule, and prof.step() once per training step":
        "设置 schedule，并在每个训练 step 调用一次 prof.step()",
    "a torch_npu of 2025-02 or later names groups by itself":
        "2025-02 及以后的 torch_npu 会自动命名通信域",
    "a torch_npu of 2025-02 or later names members by itself":
        "2025-02 及以后的 torch_npu 会自动给出成员",
    "profile every rank, or one of each pipeline stage": "采集每个 rank，或每个流水线 stage 各一个",
    "profile every rank for the same steps at the same level":
        "所有 rank 采集相同的 step 和级别",
    # Of a capture.
    "the job has one rank": "任务只有一个 rank", "only {ranks} is here": "只有 {ranks}",
    "{ranks} missing": "缺少 {ranks}", "{ranks} of {count} missing": "{count} 个中缺少 {ranks}",
    "{count} of at least {least} ranks are here": "至少 {least} 个 rank，此处有 {count} 个",
    "how many ranks the job has is unknown": "任务有多少个 rank 未知",
    "how many ranks the job has is unknown, at least {count}":
        "任务有多少个 rank 未知，至少 {count} 个",
    "{ranks} lack step {steps}": "{ranks} 缺少 step {steps}",
    "{ranks} lacks step {steps}": "{ranks} 缺少 step {steps}",
    "timestamps of some ranks are device-local, not wall-clock times":
        "部分 rank 的时间戳来自设备本地时钟，不是墙上时间",
    "ranks were profiled at different levels ({levels})": "各 rank 的采集级别不同（{levels}）",
    "no profiled step has a number": "采集的 step 没有编号",
    "the training log has no times for the profiled steps": "训练日志没有所采集 step 的时间",
    "the training log has only the profiled steps": "训练日志没有采集之外的 step",
    "an exported file does not record how its ranks were read":
        "导出文件没有说明各 rank 是如何读取的",
    "remedies are given as torch_npu options; options of {frameworks} differ":
        "办法按 torch_npu 的选项给出：{frameworks} 的选项有所不同",
    "recorded at a cost, but used by no analysis here: {names}":
        "采集有开销，但此处没有分析用到：{names}",
}  # fmt: skip

_FLOPS = {
    "FLOPs of {count} kernels without a type ({ms} ms) are unknown: {reason}":
        "{count} 个无类型算子（{ms} ms）的 FLOPs 未知：{reason}",
    "FLOPs of {kernels} ({ms} ms) are unknown: {reason}":
        "{kernels}（{ms} ms）的 FLOPs 未知：{reason}",
    "and of {count} more kinds of kernels ({ms} ms)": "另有 {count} 类算子（{ms} ms）",
    "the profiler level has no operator types": "该采集级别没有算子类型",
    "operators of a GPU have no rules": "GPU 的算子没有计算规则",
    "there is no rule for this type": "该类型没有计算规则",
    "shapes were not recorded": "没有采集 shape", "shapes are missing": "缺少 shape",
    "a second product runs in the same kernel": "同一算子中还有第二个乘法",
    "the shapes are not those of attention": "shape 与 attention 不符",
    "the sequence dimension is not recorded": "没有说明哪一维是序列",
    "lengths of the sequences are not recorded": "没有采集序列长度",
    "whether the shape is of one head or of all heads is not recorded":
        "没有记录这是单个头还是全部头",
    "the filter's layout is not known": "卷积核的排布未知",
    "the shapes are not those of a convolution": "shape 与卷积不符",
    "the shapes are not those of a convolution in one group": "shape 与单组卷积不符",
    "channels are known only as at most one block": "只知道通道数不超过一个 block",
    "the shapes are not those of one matrix product": "shape 与单个矩阵乘不符",
    "the sizes are not those of one batched matrix product": "大小与单个批量矩阵乘不符",
    "the shapes are not those of grouped matrix products": "shape 与分组矩阵乘不符",
    "the rows of the groups are not known": "各组的行数未知",
    "a vector, where a matrix is expected": "应为矩阵，却是向量",
    "a dimension is unknown: {part}": "有一维未知：{part}",
    "collect with profiler level Level1 to have types and shapes":
        "以 Level1 采集可获得类型和 shape",
    "causal attention: the numbers of keys and queries differ, and shapes do not show the mask":
        "causal attention：key 与 query 数量不同，shape 无法说明掩码",
    "sizes as the layout rounds them up, so FLOPs are upper bounds: {kinds}":
        "大小按数据排布向上取整，因此 FLOPs 为上限：{kinds}",
    "unknown: no {what} of the chip; give --peak": "未知：没有芯片的{what}；请给出 --peak",
    "cores and no frequency": "核数和频率", "cores": "核数",
    "unknown: {count} blocks are no known chip's cores; give --peak":
        "未知：没有已知芯片的核数等于 {count} 个 block；请给出 --peak",
    "unknown: no known chip has {count} cores at {mhz} MHz; give --peak":
        "未知：没有已知芯片有 {count} 核且频率达 {mhz} MHz；请给出 --peak",
    "unknown: cores of {chip} are not known; give --peak":
        "未知：{chip} 的核数未知；请给出 --peak",
    "unknown: the rank has no metadata; give --peak": "未知：该 rank 没有元数据；请给出 --peak",
    "unknown for {dtype}: give --peak {dtypes}=...": "{dtype} 未知：请给出 --peak {dtypes}=...",
    "steps without kernels of their own have no kernel FLOPs":
        "没有自己算子的 step 没有算子 FLOPs",
    "kernels of several data types are compared with the peak of the type with the most FLOPs":
        "多种数据类型的 FLOPs 一律与占比最大类型的峰值相比",
    "step from first to last device activity": "step 从首个到最后一个设备活动",
    "waterfall: left out {count} of {every} steps, whose length, peak or device time is unknown":
        "损失瀑布：{every} 个 step 中未计 {count} 个，其时长、峰值或设备时间未知",
    "waterfall: device work of some steps extends into the next step, so the time before and"
    " after it is negative there":
        "损失瀑布：有的 step 的设备任务延伸到下一个 step，其前后时间在该处为负",
    "waterfall: for some communication, transfer and waiting cannot be separated: its groups or"
    " the times of all their ranks are unknown":
        "损失瀑布：部分通信无法区分是在传输数据还是在等待：其通信域或全部 rank 的时间未知",
}  # fmt: skip

_RANKS = {
    "{host}: drift cannot be determined: fewer than {count} common operations":
        "{host}：漂移无法确定：共同的通信算子少于 {count} 个",
    "{host}: drift cannot be determined: {seconds} s allow an error of {error} ppm only":
        "{host}：漂移无法确定：{seconds} s 的数据只能达到 {error} ppm 的误差",
    "{host}: clocks of its ranks differ by up to {apart} us":
        "{host}：其各 rank 的时钟最多相差 {apart} us",
    "{host}: operations give contradicting orders of events":
        "{host}：各通信算子给出的先后次序互相矛盾",
    "{host}: no operation shared with the reference clock": "{host}：与参考时钟没有共同的通信算子",
    "{host}: shares no operation with another clock": "{host}：与其他时钟没有共同的通信算子",
    "{host}: no other clock to compare it with": "{host}：没有可比较的其他时钟",
    "{host}: its device clock has its own zero": "{host}：其设备时钟有自己的零点",
    "other files are listed only where PATH is a profile folder":
        "只有 PATH 为采集目录时才列出其他文件",
    "no memory was recorded": "没有采集显存", "memory was not selected": "未选取显存",
    "{ranks}: memory blocks were not recorded, so the holders of memory are unknown.":
        "{ranks}：没有采集单个内存块，无法得知谁占用显存。",
    "{ranks}: memory blocks were not selected, so the holders of memory are unknown.":
        "{ranks}：未选取单个内存块，无法得知谁占用显存。",
    "no operation was recorded by all of its members on comparable clocks: the last-arriving rank"
    " is unknown; verdicts use each rank's own work only":
        "没有一个通信算子在全部成员上以可比的时钟采集到："
        "无法得知哪个 rank 最后到达；判断只依据各 rank 自己的工作",
    "{count} of {every} recorded operations lack members or a sure match: their waiting is"
    " attributed to no rank":
        "采集到的 {every} 个通信算子中有 {count} 个缺少成员或无法确定对应关系："
        "其中的等待不归因于任何 rank",
}  # fmt: skip

NOTES: dict[str, str] = _CAPABILITIES | _FLOPS | _RANKS
