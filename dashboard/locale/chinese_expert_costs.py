"""Chinese of what imbalance of experts costs: notes of `npuscope experts --by cost`, headings."""

from __future__ import annotations

from itertools import product

_NO_PREFIX = ("", "")
_CAPTURE = ("{capture}: ", "{capture}：")

_WORDS = {
    "Cost of the imbalance": "负载不均的代价", "matmuls ms": "matmul ms",
    "all-to-alls ms": "all-to-all ms",
    "both ms": "合计 ms", "activations ms": "激活 ms", "sum ms": "合计 ms",
    "activation excess": "激活 超出", "activations": "激活",
    "excess tokens": "多出的 token", "ns per token": "每 token ns",
    "of the step": "占 step", "excess error": "标准误差",
    "exchange exposed": "all-to-all 多耗（未掩盖）", "exchange per token": "all-to-all 每 token",
    "per token": "每 token", "groups": "组数", "stage": "stage",
    "excess tokens: on the most loaded device of a group, above the mean; all-to-alls: their"
    " exposed part; ±: standard error":
        "多出的 token：组内负载最高的设备超出均值的部分；all-to-all：计算未掩盖的部分；±：标准误差",
}  # fmt: skip

_PARTS = {
    "grouped matmuls {grouped} ms, all-to-alls {moved} ms":
        "grouped matmul {grouped} ms，all-to-all {moved} ms",
    "grouped matmuls {grouped} ms, activations {between} ms, all-to-alls {moved} ms":
        "grouped matmul {grouped} ms，激活 {between} ms，all-to-all {moved} ms",
    "grouped matmuls {grouped} ms, activations {between} ms":
        "grouped matmul {grouped} ms，激活 {between} ms",
    "all-to-alls {ms} ms": "all-to-all {ms} ms",
}  # fmt: skip

_COST = {
    f"load imbalance between devices costs {{cost}} ms of a step{share} ({{parts}}; costliest"
    " pipeline stage, mean over steps; standard error {error} ms)":
        f"设备负载不均使每 step 多耗 {{cost}} ms{share_chinese}（{{parts}}；取代价最大的"
        " stage，各 step 平均；标准误差 {error} ms）"
    for share, share_chinese in (("", ""), (", {share} of it", "，占 {share}"))
}  # fmt: skip

_TAILS = (
    _NO_PREFIX,
    (
        ": the rest comes from token permutation, from a most loaded device that changes between"
        " micro-batches, and from ranks that are late for other reasons (`npuscope ranks`)",
        "：其余来自这些 token 的重排、负载最高的设备随 micro-batch 变化，"
        "以及因其他原因变慢的 rank（`npuscope ranks`）",
    ),
    (
        ": the wait is shorter if the most loaded device starts early or if other work overlaps"
        " the all-to-all",
        "：负载最高的设备先开始，或其他计算掩盖了 all-to-all 时，等待更短",
    ),
)
_WAITED = {
    "ranks of that stage waited {least} ms of a step for others in their expert-parallel"
    f" all-to-alls, by the shortest-duration estimate{last}, mean over ranks; imbalanced grouped"
    f" matmuls{between} explain {{grouped}} ms{ratio}{tail}":
        "该 stage 的 rank 每 step 在专家并行 all-to-all 中等待他人 {least} ms（按最短耗时"
        f"{last_chinese}，各 rank 平均）；"
        f"不均的 grouped matmul{between_chinese} 可解释 {{grouped}} ms"
        f"{ratio_chinese}{tail_chinese}"
    for (last, last_chinese), (between, between_chinese), (ratio, ratio_chinese), (
        tail, tail_chinese,
    ) in product(
        (_NO_PREFIX, (", {last} ms by the last-arrival estimate", "，按最后到达为 {last} ms")),
        (_NO_PREFIX, (" and activations", "与激活")),
        (_NO_PREFIX, (", {ratio} of it", "，即其 {ratio}")),
        _TAILS,
    )
    if ratio or not tail
}  # fmt: skip

_NOTES = {
    "time per token is unknown: no grouped matmul with shapes in the steps of the load, or the"
    " token counts differ too little compared with the noise":
        "每 token 的耗时未知：这些 step 中没有带形状的 grouped matmul，"
        "或其 token 数相差太小，被噪声淹没",
    "the cost of the all-to-alls is unknown: too few are recorded by all members of a group, or"
    " the byte counts differ too little compared with the noise":
        "all-to-all 部分的代价未知：组内全体成员都有记录的太少，或其字节数相差太小，被噪声淹没",
    "computation overlaps {hidden} ms of the {whole} ms by which the imbalance lengthens"
    " all-to-alls; the step loses at most that cost, less if the most loaded device changes from"
    " layer to layer":
        "负载不均使 all-to-all 变长 {whole} ms，其中 {hidden} ms 被计算掩盖；"
        "此时 step 的损失至多为该代价，若各层负载最高的设备不同则更少",
    "this capture bounds that cost only to {low} to {high} ms (95 %): kernel durations vary as"
    " much by themselves as with their token counts; capture more steps to narrow it":
        "本次采集只能确定该代价在 {low} 至 {high} ms 之间（95 %）：算子耗时的波动与"
        " token 数造成的差异相当；采集更多 step 可以改善",
    "the pipeline stage of each layer is unknown: layers are assumed to run one after another":
        "未说明各层所属的 stage：所有层按先后相继计算",
    "grouped matmuls without a fitted time per token have {share} of the tokens: the true cost is"
    " higher":
        "grouped matmul 的 token 中有 {share} 属于得不到斜率的矩阵乘：实际代价更大",
    "a routed token passes {passes} grouped matmuls, which is not a whole number: layers or ranks"
    " are missing, or tokens were counted twice":
        "每个路由 token 经过 {passes} 次 grouped matmul，不是整数次：缺少层或 rank，"
        "或 token 被重复计数",
    "the byte counts of the all-to-alls differ too little to fit a cost per byte: their cost is"
    " estimated from total time over total bytes, minus 5 %, and is a lower bound":
        "all-to-all 的字节数相差太小，或其耗时被噪声淹没："
        "该部分代价按总耗时除以字节数再减 5 % 估算，误差约 5 %",
}  # fmt: skip

_SENTENCES = {
    prefix + english: prefix_chinese + told
    for prefix, prefix_chinese in (_NO_PREFIX, _CAPTURE)
    for english, told in (_COST | _WAITED | _NOTES).items()
}

EXPERT_COSTS: dict[str, str] = _WORDS | _PARTS | _SENTENCES
