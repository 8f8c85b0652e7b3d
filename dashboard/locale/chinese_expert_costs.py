"""Chinese of what imbalance of experts costs: notes of `npuscope experts --by cost`, headings."""

from __future__ import annotations

from itertools import product

_NO_PREFIX = ("", "")
_CAPTURE = ("{capture}: ", "{capture}：")

_WORDS = {
    "What imbalance costs": "负载不均的代价", "matmuls ms": "matmul ms",
    "all-to-alls ms": "all-to-all ms",
    "both ms": "合计 ms", "activations ms": "激活 ms", "sum ms": "合计 ms",
    "activation excess": "激活 超出", "activations": "激活",
    "tokens too many": "多出的 token", "ns per token": "每 token ns",
    "of the step": "占 step", "excess tokens": "多出的 token", "excess error": "标准误差",
    "exchange exposed": "all-to-all 多耗（未掩盖）", "exchange per token": "all-to-all 每 token",
    "per token": "每 token", "groups": "组数", "stage": "stage",
    "tokens too many: on the fullest device of a group, beside the mean; all-to-alls: what compute"
    " does not hide; ±: standard error":
        "多出的 token：组内最满设备超出均值的部分；all-to-all：计算未掩盖的部分；±：标准误差",
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
    f"uneven devices cost {{cost}} ms of a step{share} ({{parts}}; of the costliest stage, mean"
    " over steps; standard error {error} ms)":
        f"设备负载不均使每 step 多耗 {{cost}} ms{share_chinese}（{{parts}}；取代价最大的"
        " stage，各 step 平均；标准误差 {error} ms）"
    for share, share_chinese in (("", ""), (", {share} of it", "，占 {share}"))
}  # fmt: skip

_TAILS = (
    _NO_PREFIX,
    (
        ": the rest is permutations of those tokens, devices that are fullest"
        " in turns from micro-batch to micro-batch, and ranks that are late for another reason"
        " (`npuscope ranks`)",
        "：其余来自这些 token 的重排、各 micro-batch 轮流成为最满的设备，"
        "以及因其他原因迟到的 rank（`npuscope ranks`）",
    ),
    (
        ": less is waited where the fullest device is one that comes early, or work beside the"
        " all-to-all hides it",
        "：最满设备恰好到得早，或 all-to-all 旁的计算将其掩盖时，等待会更少",
    ),
)
_WAITED = {
    "ranks of that stage waited {least} ms of a step for others in their expert-parallel"
    f" all-to-alls, by shortest duration{last}, mean over ranks; uneven grouped matmuls{between}"
    f" explain {{grouped}} ms{ratio}{tail}":
        "该 stage 的 rank 每 step 在专家并行 all-to-all 中等待他人 {least} ms（按最短耗时"
        f"{last_chinese}，各 rank 平均）；"
        f"不均的 grouped matmul{between_chinese} 可解释 {{grouped}} ms"
        f"{ratio_chinese}{tail_chinese}"
    for (last, last_chinese), (between, between_chinese), (ratio, ratio_chinese), (
        tail, tail_chinese,
    ) in product(
        (_NO_PREFIX, (", {last} ms by last arrival", "，按最后到达为 {last} ms")),
        (_NO_PREFIX, (" and activations", "与激活")),
        (_NO_PREFIX, (", {ratio} of it", "，即其 {ratio}")),
        _TAILS,
    )
    if ratio or not tail
}  # fmt: skip

_NOTES = {
    "time per token is unknown: no grouped matmul with shapes in the steps of the load, or"
    " their tokens hardly differ beside the noise":
        "每 token 的耗时未知：这些 step 中没有带形状的 grouped matmul，"
        "或其 token 数相差太小，被噪声淹没",
    "the all-to-alls' part of the cost is not known: too few are recorded by all members of a"
    " group, or their bytes hardly differ beside the noise":
        "all-to-all 部分的代价未知：组内全体成员都有记录的太少，或其字节数相差太小，被噪声淹没",
    "compute beside the all-to-alls hides {hidden} ms of the {whole} ms by which uneven devices"
    " make them longer; the step then loses at most that cost, less where other devices are"
    " fullest in other layers":
        "负载不均使 all-to-all 变长 {whole} ms，其中 {hidden} ms 被旁边的计算掩盖；此时 step 的损失"
        "至多为该代价，若各层最满的设备不同则更少",
    "the capture tells that cost no better than {low} to {high} ms (95 %): kernels vary as much as"
    " tokens make them differ; more steps would tell":
        "本次采集只能确定该代价在 {low} 至 {high} ms 之间（95 %）：算子耗时的波动与"
        " token 数造成的差异相当；采集更多 step 可以改善",
    "the pipeline stage of each layer is unknown: layers are taken as running one after the"
    " other":
        "未说明各层所属的 stage：所有层按先后相继计算",
    "products without a slope have {share} of the grouped matmuls' tokens: the cost is larger":
        "grouped matmul 的 token 中有 {share} 属于得不到斜率的矩阵乘：实际代价更大",
    "a routed token passes {passes} grouped matmuls, not each a whole number of times: layers or"
    " ranks are missing, or tokens count twice":
        "每个路由 token 经过 {passes} 次 grouped matmul，不是整数次：缺少层或 rank，"
        "或 token 被重复计数",
    "the bytes of the all-to-alls hardly differ, or noise hides what they take: their part of the"
    " cost is by their whole time over their bytes, less 5 %, and that sure":
        "all-to-all 的字节数相差太小，或其耗时被噪声淹没："
        "该部分代价按总耗时除以字节数再减 5 % 估算，误差约 5 %",
}  # fmt: skip

_SENTENCES = {
    prefix + english: prefix_chinese + told
    for prefix, prefix_chinese in (_NO_PREFIX, _CAPTURE)
    for english, told in (_COST | _WAITED | _NOTES).items()
}

EXPERT_COSTS: dict[str, str] = _WORDS | _PARTS | _SENTENCES
