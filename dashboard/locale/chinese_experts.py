"""Chinese of what reports and findings say about expert load."""

from __future__ import annotations

from .chinese_expert_costs import EXPERT_COSTS
from .chinese_expert_plans import EXPERT_PLANS

_WORDS = {
    "layer": "层", "expert": "专家", "device": "设备", "phase": "阶段", "max/mean": "最大/平均",
    "worst": "最差", "hottest expert": "最热专家", "cold experts": "冷专家数",
    "device max/mean": "设备 最大/平均", "fullest device": "负载最高的设备", "costs ms": "代价 ms",
    "device max over mean": "设备 最大/平均", "max over mean": "最大/平均",
    "hottest device": "负载最高的设备", "excess ms": "多耗 ms", "times the mean": "相对均值倍数",
    "grouped matmuls": "grouped matmul", "all-to-alls": "all-to-all",
    "Load of each expert, times the mean of its layer": "各专家负载（相对本层均值的倍数）",
    "Load of each device, times the mean of its layer": "各设备负载（相对本层均值的倍数）",
    "{title}: a cell is the maximum of {count}": "{title}：每格取 {count} 个中的最大值",
    "Expert load by layer (mean of steps)": "各层专家负载（各 step 平均）",
    "and {more} more: `npuscope experts`": "另有 {more} 行：`npuscope experts`",
    "tokens of {count} of {expected} ranks are here: no plan is made of them;"
    " `npuscope experts plan --from-ranks-present` makes one":
        "{expected} 个 rank 中只有 {count} 个的 token 数：不据此给出方案；"
        "`npuscope experts plan --from-ranks-present` 可给出",
}  # fmt: skip

_EXPERT = (
    "the most loaded expert of a layer has {expert} times the mean",
    "各层最热专家平均为均值的 {expert} 倍",
)
_DEVICE = (
    "the most loaded device has {device} times the mean of its group",
    "负载最高的设备平均为组内均值的 {device} 倍",
)
_COSTS = (
    ("", ""),
    ("; the imbalance costs {cost} ms per step", "；每 step 多耗 {cost} ms"),
)
_VERDICTS = {
    f"experts: {', '.join(english for english, _ in parts)}{cost}":
        f"专家负载：{'，'.join(chinese for _, chinese in parts)}{cost_chinese}"
    for parts in ((_EXPERT,), (_DEVICE,), (_EXPERT, _DEVICE))
    for cost, cost_chinese in _COSTS
}  # fmt: skip

_NOTES = {
    "layers {layers}: every expert has the same number of tokens in every step, as with forced or"
    " mocked routing":
        "第 {layers} 层：每个 step 各专家 token 数都相同，像是强制路由或测试用路由",
    "prefill: expert 0 has more than {times} times the tokens of any other in {count} of {all}"
    " layers and steps: padding is routed to it; figures are not corrected":
        "prefill：{all} 个层与 step 中有 {count} 个，专家 0 的 token 数超过其他任一专家的"
        " {times} 倍：填充 token 路由到了它；数值未作修正",
    "{count} experts of layers {layers} received no tokens in any step: dead experts":
        "第 {layers} 层有 {count} 个专家在所有 step 中都没有 token：已死亡或未被路由",
    "experts {experts} are not in the source: figures cover the others":
        "数据源中没有专家 {experts}：数值只含其余专家",
    "layers {layers} have no expert load: dense, or their ranks are missing":
        "第 {layers} 层没有专家负载：为稠密层，或缺少其 rank",
    "layers show {least} to {most} experts: some rows are missing":
        "各层显示 {least} 至 {most} 个专家：缺少部分数据行",
    "ranks differ in {count} of {all} counts that should be equal on all ranks: the largest is"
    " used":
        "{all} 个应为全局的计数中有 {count} 个各 rank 不一致：取最大值",
    "layers {layers} count twice as many tokens as {what}: recomputation counted them again, or"
    " two ranks counted the same tokens":
        "第 {layers} 层的 token 数是{what}的两倍：重计算又计了一次"
        "（或看到相同 token 的两个 rank 各计了一次）",
    "{count} of {all} expert-parallel groups are incomplete ({least} of {size} devices): figures"
    " cover the recorded devices":
        "{all} 个专家并行组中有 {count} 个不完整（{size} 个设备只有 {least} 个）："
        "数值只含已有的设备",
    "{count} layers and steps: different groups recorded different devices, so their sums are not"
    " compared":
        "{count} 个层与 step：各组说明的设备不同，其合计不作比较",
}  # fmt: skip

_SENTENCES = {
    "hottest, times the mean of the layer: {experts}": "最热专家（相对本层均值的倍数）：{experts}",
    "expert {expert} of layer {layer} ({over}), {others}":
        "第 {layer} 层专家 {expert}（{over}）、{others}",
    "expert {expert} of layer {layer} ({over})": "第 {layer} 层专家 {expert}（{over}）",
    "a better placement and its gain: `{command}`":
        "专家应如何放置、收益多少：`{command}`",
    "Expert load is imbalanced, which costs {cost} ms per step ({share} of it); most in layer"
    " {layer}, whose most loaded device has {over} times the mean.":
        "专家负载不均，每 step 多耗 {cost} ms（占 {share}）；"
        "第 {layer} 层最多，其负载最高的设备为均值的 {over} 倍。",
    "Expert load is imbalanced, which costs {cost} ms per step ({share} of it); most in all"
    " layers together, whose most loaded device has {over} times the mean.":
        "专家负载不均，每 step 多耗 {cost} ms（占 {share}）；"
        "各层合计时负载最高的设备为均值的 {over} 倍。",
    "Record tokens per expert with the training hook: a plan then gives the moves and their gain;"
    " in training, see whether the balance loss or bias is strong enough.":
        "用训练钩子记录各专家的 token 数：放置方案便可给出应移动哪些专家及其收益；"
        "训练中请检查均衡损失或偏置是否足够强。",
    "the trace gives tokens per device only: a plan needs tokens per expert, from the training"
    " hook (tokens_per_expert) or the server's dumps":
        "时间线只能说明各设备的负载：放置方案需要各专家的 token 数，由训练钩子（tokens_per_expert）"
        "或推理服务的转储给出",
    "Time of the most loaded devices above the mean ({parts}), from kernel times fitted to"
    " tokens; for the pipeline stage with the largest cost.":
        "负载最高的设备超出均值的耗时（{parts}），"
        "按耗时对 token 数的拟合估算；取代价最大的流水线 stage。",
    "{first} ms, all-to-alls {second} ms": "{first} ms，all-to-all {second} ms",
    "grouped matmuls {ms} ms": "grouped matmul {ms} ms",
    "Rebalance experts or replicate the hottest ones: the plan gives the placement and its gain;"
    " in training, see whether the balance loss or bias is strong enough.":
        "重新放置专家或为最热专家增加副本：放置方案会给出位置与收益；"
        "训练中请检查均衡损失或偏置是否足够强。",
    "the others": "其他层",
}  # fmt: skip

_TOLD = {
    prefix + english: prefix_chinese + told
    for prefix, prefix_chinese in (("", ""), ("{capture}: ", "{capture}："))
    for english, told in _NOTES.items()
}

EXPERTS: dict[str, str] = EXPERT_PLANS | EXPERT_COSTS | _WORDS | _VERDICTS | _TOLD | _SENTENCES
