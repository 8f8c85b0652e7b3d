"""Chinese of plans for experts and their back-tests: notes, and headings of rows by every key."""

from __future__ import annotations

_WORDS = {
    "experts count": "专家数", "max vio": "MaxVio", "cv": "变异系数", "gini": "基尼系数",
    "entropy": "归一化熵", "cold count": "冷专家数", "dead count": "无 token 专家数",
    "balance loss": "均衡损失",
    "dropped tokens": "丢弃的 token", "dropped": "丢弃比例", "dropped ratio": "丢弃比例",
    "scope": "范围",
    "scope index": "范围编号", "micro batch": "微批", "node": "节点", "devices count": "设备数",
    "node max over mean": "节点 最大/平均", "layers count": "层数",
    "mean max over mean": "最大/平均 的均值", "worst max over mean": "最差 最大/平均",
    "previous step": "上一 step", "rank correlation": "秩相关", "hot overlap": "热专家重合比例",
    "parts count": "部分数", "migration bytes": "迁移字节",
    "migration": "迁移", "gain low": "收益下限", "gain high": "收益上限", "method": "方法",
    "is best": "最优", "error": "误差", "median": "中位数", "tested steps": "回测 step 数",
    "origins count": "回测起点数", "break even steps": "回本 step 数",
    "move now": "现在移动", "keep the current placement": "暂不移动", "nothing to gain": "没有收益",
    "pays off after {steps} steps": "{steps} 个 step 后回本",
}  # fmt: skip

_NOTES = {
    "dropped tokens are unknown: missing {what}": "丢弃的 token 未知：缺少 {what}",
    "tokens of a step (--tokens-per-step N)": "每 step 的 token 数（--tokens-per-step N）",
    "top-k (--top-k K)": "top-k（--top-k K）",
    "tokens of a step (--tokens-per-step N), top-k (--top-k K)":
        "每 step 的 token 数（--tokens-per-step N）、top-k（--top-k K）",
    "dropped tokens are unknown: {counting} of {expected} ranks counted":
        "丢弃的 token 未知：{expected} 个 rank 中只有 {counting} 个计数",
    "devices by the recorded placement: replicas share an expert's tokens evenly":
        "设备负载按记录的放置计算：同一专家的副本均分其 token",
    "devices hold equal blocks of experts in order: no placement is recorded":
        "未给出放置：按专家顺序等分到各设备",
    "the node of each device is unknown or inconsistent: give --nodes N":
        "设备所在节点未知或不一致：请给出 --nodes N",
    "the expert placement is not recorded: no load by device":
        "未说明各专家所在设备：没有设备负载",
    "forecast by {method}: mean error of an expert's share {error} % of the mean share, for up to"
    " {steps} steps ahead":
        "预测方法 {method}：向前至多 {steps} 个 step，专家份额的误差为平均份额的 {error} %",
    "{says}: {after}, horizon {steps}": "{says}：{after}，期限 {steps} 个 step",
    "link bandwidth of a device: {rate} GB/s, measured in {count} expert-parallel all-to-alls of"
    " {capture}; override with --link":
        "设备链路：{rate} GB/s，由 {capture} 的 {count} 次专家并行 all-to-all 测得；"
        "可用 --link 指定",
    "{rate} GB/s were measured {where}, in {count} expert-parallel all-to-alls of {capture}, the"
    " plan's link is {wanted}: override with --link":
        "{rate} GB/s 由 {capture} 的 {count} 次专家并行 all-to-all {where}测得，而方案的链路在"
        "{wanted}：用 --link 指定",
    "inside hosts": "主机内", "between them": "主机间",
    "inside one": "主机内",
    "bytes per token over all all-to-alls of a step: {count}, measured; override with"
    " --token-bytes":
        "一个 token 在一个 step 全部 all-to-all 中的字节数：{count}（实测）；"
        "可用 --token-bytes 指定",
    "only every {every}th step is recorded: horizons are counted in recorded steps":
        "只有每第 {every} 个 step 的数据：所说的提前 step 数按这些 step 计",
    "no placement for this number of devices is recorded: experts are assumed to be placed in"
    " order, one slot each":
        "这样的设备上的放置未知：假定专家按顺序排列，每个一个槽位",
    "the cost of moving experts is unknown: expert bytes, token cost or link bandwidth are missing":
        "移动代价未知：缺少专家字节数、代价或链路",
    "the cost per token is unknown: the plan balances tokens, and its gains are not converted to"
    " time":
        "token 的代价未知：方案只均衡 token 数，收益没有时间",
    "tested up to {steps} steps ahead: steps allow no more":
        "回测至多向前 {steps} 个 step：数据没有更多 step",
    "forecasts were back-tested up to {steps} steps ahead, not {horizon}: {count} steps allow no"
    " more":
        "预测回测至多向前 {steps} 个 step，而非 {horizon}：只有 {count} 个 step",
    "{count} steps are too few for a back-test: the forecast is their mean":
        "{count} 个 step 不足以回测：以其均值为预测",
    "{count} layers have no tokens and keep their placement":
        "{count} 层没有任何 token，保持不变",
    "in {count} layers a device holds two copies of one expert, which serving and training"
    " engines may not support":
        "{count} 层中有设备持有同一专家两次：引擎可能用不上",
    "{count} experts have counts, numbered up to {last}: counts of the others are unknown":
        "只显示 {count} 个专家，编号至 {last}：其余未知",
    "{count} layers are left out: no step has counts for all of their experts":
        "略去 {count} 层：没有一个 step 包含其全部专家",
}  # fmt: skip

EXPERT_PLANS: dict[str, str] = _WORDS | _NOTES
