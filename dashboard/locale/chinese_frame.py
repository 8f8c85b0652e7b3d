"""The Chinese of the dashboard's frame, and of its overview, trends and data quality."""

from __future__ import annotations

FRAME: dict[str, str] = {
    # The menu and the header.
    "Overview": "总览", "Timeline": "时间线", "Communication": "通信", "Experts": "专家",
    "Operators": "算子", "Ranks": "各 rank", "Memory": "显存", "Trends": "趋势",
    "Data quality": "数据质量", "all ranks": "全部 rank", "all steps": "全部 step",
    "language": "语言",
    "last published {moment} UTC, {age} ago": "最近发布于 {moment} UTC，{age}前",
    "{count} min": "{count} 分钟", "{count} h": "{count} 小时", "{count} d": "{count} 天",
    "less than a minute": "不到一分钟",
    "No data is ingested yet.": "这里还没有导入任何数据。",
    "Read a profile into this store: npuscope ingest PATH --store STORE":
        "把采集数据读入此存储：npuscope ingest PATH --store STORE",
    "The query failed: see the server's log. Reload the page.":
        "查询引擎出错，原因见服务端输出。请重新加载页面。",
    "open": "打开",
    # Overview.
    "Where does the step go, and what should change first?": "step 的时间去了哪里，首先该改什么？",
    "Being computed: it will appear here in a moment.": "正在计算：稍后显示在此处。",
    "No finding costs 1 % of a step or more.": "未发现占 step 1 % 以上的问题。",
    "The page Data quality lists what this profile cannot show.":
        "“数据质量”页列出这份采集数据无法给出的内容。",
    "why, and what to try": "原因与建议",
    "the profile shows this time": "采集数据直接给出的时间",
    "an upper bound, or valid under an assumption: the reason states which":
        "上限，或在某个假设成立时成立：见原因",
    "worth a look; its cost is not in the profile": "值得一看；采集数据没有说明其代价",
    "Kernel MFU": "Kernel MFU", "Communication masked": "通信掩盖率",
    "Kernel MFU: FLOPs of executed kernels by their shapes / (step x ranks x peak)":
        "Kernel MFU：按 shape 统计的已执行算子 FLOPs /（step 时长 × rank 数 × 峰值）",
    "Masked: communication covered by compute kernels of its rank / communication":
        "掩盖率：被本 rank 计算算子覆盖的通信时间 / 通信时间",
    "step from its recorded start to the next one's": "step 从记录的起点到下一个 step 的起点",
    "step as recorded, start to end": "step 按记录的起止",
    "peak of {dtype}": "{dtype} 的峰值",
    "causal attention is half of full, backward 2.5 x forward":
        "causal attention 按 full 的一半计，反向为前向的 2.5 倍",
    "kernel FLOPs without unresolved kernels": "算子 FLOPs 不含未能解析的算子",
    "sizes as layouts round them up": "大小按数据排布向上取整",
    "step of unknown length": "step 时长未知",
    "MFU is unknown here.": "此处无法得知 MFU。",
    "No communication was recorded here.": "此处没有采集到通信。",
    "The losses from the peak are unknown here.": "此处无法得知峰值的损失去向。",
    "No steps were recorded here.": "此处没有 step 信息。",
    "Record them with ProfilerStep marks.": "请在训练循环中调用 prof.step() 以记录 step。",
    "A mean step of each rank": "各 rank 的平均 step",
    "A mean step of the {count} slowest ranks": "最慢的 {count} 个 rank 的平均 step",
    "The {count} longest of {every} steps": "{every} 个 step 中最长的 {count} 个",
    "Each step": "各 step", "The losses as a table": "损失明细表", "term": "损失项",
    "part": "组成", "mfu points": "MFU 百分点",
    # Trends.
    "Is the run getting better or worse?": "任务在变好还是变差？",
    "This run has one capture: a trend needs two.": "该任务只有一次采集：看趋势至少需要两次。",
    "Collect again later in the same run: new captures appear here automatically.":
        "稍后在同一任务中再次采集，新的采集会自动出现在这里。",
    "slowest rank": "最慢的 rank", "computing of ranks": "各 rank 的计算时间",
    "tokens of experts": "各专家的 token 数", "A mean step of a rank": "一个 rank 的平均 step",
    "MFU and masking": "MFU 与掩盖率", "Exposed communication by kind": "各并行类型的未掩盖通信",
    "Imbalance: most over mean": "不均衡度：最大 / 平均", "start, UTC": "开始时间（UTC）",
    "All captures of the run, all ranks and steps of each; exposed time of a kind is its"
    " attributed share, so that no time counts twice.":
        "该任务的全部采集，各含全部 rank 与 step；某类型的未掩盖时间为其分摊值，"
        "多个类型同时通信时只计一次。",
    "A click on a point opens its capture.": "点击数据点可打开对应的采集批次。",
    "Captures": "各次采集", "imbalance": "不均衡度",
    "rank imbalance": "rank 不均衡度", "expert imbalance": "专家不均衡度",
    "kernel mfu causal": "Kernel MFU（causal）", "look": "查看",
    "exposed attributed": "分摊的未掩盖", "masking": "掩盖率", "profiler bubble": "采集工具的气泡",
    # Data quality.
    "What can this profile show, and what should be collected next time?":
        "这份采集数据能回答什么，下次该采集什么？",
    "How this capture was read is not recorded.": "这次采集是如何读取的，没有任何记录。",
    "analyses possible": "可做的分析", "rows lost when reading": "读取时丢失的行",
    "profiler's overhead": "采集开销", "yes": "可以", "partly": "部分", "no": "不可以",
    "What each rank can answer": "各 rank 能回答什么", "What it can answer": "能回答什么",
    "support": "支持", "capability": "分析", "question": "问题", "reason": "原因",
    "remedy": "办法", "exceptions": "例外", "What to collect": "该采集什么",
    "This profiler call records what is missing, on top of what is recorded now.":
        "下面的 profiler 调用在现有采集之上补齐所缺的内容。",
    "What was recorded": "采集了什么", "Lost when reading": "读取时丢失",
    "Rows of each table": "各表的行数", "Warnings when reading": "读取时的警告", "Notes": "说明",
    "framework": "框架", "source format": "数据格式", "profiler level": "采集级别",
    "framework version": "框架版本", "cann version": "CANN 版本", "chip name": "芯片",
    "host name": "主机", "clock": "时钟", "rows lost": "丢失行数", "bytes lost": "丢失字节",
    "missing step count": "缺失 step 数", "window covered": "时段覆盖率",
    "npuscope version": "npuscope 版本", "table": "表", "row count": "行数", "source": "来源",
    "file": "文件", "kernels": "算子", "pmu": "PMU 计数", "waiting": "等待与传输",
    "links": "链路", "matrix": "通信矩阵", "dispatch": "下发", "stacks": "调用栈",
    "memory": "显存", "operator_memory": "算子显存", "mfu": "MFU", "experts": "专家",
    "frequency": "频率与功耗", "bandwidth": "带宽", "capability groups": "通信域",
    "capability host": "主机侧",
    "where the time of each step goes": "各 step 的时间去向",
    "kernels by name, type and shape": "按名称、类型、shape 统计的算子",
    "what kernels did inside the cores (PMU counters)": "算子在核内做了什么（PMU 计数）",
    "how well computing hides communication": "计算对通信的掩盖程度",
    "which parallel group (TP, PP, DP, EP, CP) communicates":
        "哪个并行域（TP、PP、DP、EP、CP）在通信",
    "waiting and moving data inside communication": "通信中的等待与数据搬运",
    "bandwidth of each kind of link": "各类链路的带宽",
    "which pairs of ranks exchange how much, how fast": "哪些 rank 对之间传输多少、多快",
    "what the host did: operators and CANN calls": "主机做了什么：算子与 CANN 调用",
    "who launched each task, and how long it took to start": "各任务由谁下发、多久后开始",
    "which line of Python launched what": "哪一行 Python 下发了什么",
    "device memory over time": "显存随时间的变化",
    "which operator held which memory": "哪个算子占用哪些显存",
    "FLOPs and MFU from the shapes of kernels": "由算子 shape 得出的 FLOPs 与 MFU",
    "load of each expert": "各专家的负载", "frequency of the cores, and power": "核的频率与功耗",
    "bandwidth of HBM and links over time": "HBM 与链路带宽随时间的变化",
    "ranks compared with each other": "rank 之间的比较",
    "no call stacks": "没有调用栈",
    "a profile does not count tokens per expert": "采集数据不统计各专家的 token 数",
    "no power": "没有功耗", "no counters of memory or links": "没有内存或链路的计数",
    "record it with the training hook or the inference server, then `ingest --expert-load DIR`":
        "由钩子或服务统计，再用 `ingest --expert-load DIR` 导入",
    "torch_npu has no option for power: monitor it during the job (npu-smi)":
        "torch_npu 没有采集功耗的选项：在任务旁用 npu-smi 观察",
    "the profiler's overhead is unknown: {reason}": "采集开销未知：{reason}",
    "no step times from the training log: `npuscope ingest PATH --train-log FILE`":
        "这里没有训练日志的 step 时间：`npuscope ingest PATH --train-log FILE`",
}  # fmt: skip
