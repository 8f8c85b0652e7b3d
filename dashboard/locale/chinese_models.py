"""The Chinese of what is said of models, tokens per step and their MFU."""

from __future__ import annotations

# Why tokens of a step are unknown, and what they are counted of where they are known.
_WHY = {
    "no backward of fused attention was recorded": "没有采集到融合 attention 的反向",
    "context parallelism over {count} ranks splits a sequence":
        "{count} 个 rank 的上下文并行（CP）切分了序列",
    "parallel sizes are unknown": "并行规模未知",
    "parallel sizes contradict each other ({words} are not {world} ranks)":
        "并行规模互相矛盾（{words} 不等于 {world} 个 rank）",
    "query shapes are unknown for some attention kernels": "部分 attention 算子的 query shape 未知",
    "attention works on micro-batches of several sizes": "attention 的微批大小不一",
    "attention has more backward than forward kernels: the step is incomplete":
        "attention 的反向算子多于前向算子：step 不完整",
    "ranks ran {counts} gradients of attention": "各 rank 的 attention 反向次数不同：{counts}",
    "ranks of pipeline stage {stage} ran {counts} gradients of attention":
        "流水级 {stage} 的各 rank 的 attention 反向次数不同：{counts}",
    "{total} gradients of attention of a rank are not those of equal micro-batches in {layers}":
        "一个 rank 的 {total} 次 attention 反向不能由相同的微批在 {layers}中产生",
    "{total} gradients of attention of all pipeline stages are not those of equal micro-batches in"
    " {layers}": "所有流水级的 {total} 次 attention 反向不能由相同的微批在 {layers}中产生",
    "only {count} of {stages} pipeline stages were recorded, and {layers} layers are not split"
    " evenly": "{stages} 个流水级中只采集了 {count} 个，且 {layers} 层不能平均切分",
    "the pipeline stage of the MTP blocks is unknown": "MTP 块所在的流水级未知",
    "{count} gradients of attention on a rank of a stage of {own} are not those of equal"
    " micro-batches": "{own}的流水级上一个 rank 的 {count} 次 attention 反向不能由相同的微批产生",
    "pipeline stages ran {counts} micro-batches, if layers are split evenly":
        "若各层平均切分，各流水级执行的微批数不同：{counts}",
}  # fmt: skip
_BASIS = {
    "{total} gradients of attention of a rank in {layers}":
        "一个 rank 的 {layers}共有 {total} 次 attention 反向",
    "{total} gradients of attention of all pipeline stages in {layers}":
        "所有流水级的 {layers}共有 {total} 次 attention 反向",
    "{total} gradients of attention on a rank of a stage of {own} (the model's {layers} in {stages}"
    " equal stages)":
        "{own}的流水级上一个 rank 有 {total} 次 attention 反向"
        "（模型的 {layers} 层平均切分为 {stages} 级）",
}  # fmt: skip
_OFTEN = {"": "", ", run forward {often} x as often": "，前向次数为其 {often} 倍"}

_TOKENS = {
    **{
        f"tokens per step: {why}; give --tokens-per-step N":
            f"每 step 的 token 数：{reason}；请给出 --tokens-per-step N"
        for why, reason in _WHY.items()
    },
    **{
        "tokens per step: {tokens}, {batches} x {size} tokens x {replicas}: " + why + often:
            "每 step 的 token 数：{tokens}，{batches} × {size} token × {replicas}：" + basis + times
        for why, basis in _BASIS.items()
        for often, times in _OFTEN.items()
    },
    "{count} micro-batch": "{count} 个微批", "{count} micro-batches": "{count} 个微批",
    "{count} data-parallel rank": "{count} 个数据并行 rank",
    "{count} data-parallel ranks": "{count} 个数据并行 rank",
    "{layers} layers and {count} MTP block": "{layers} 层和 {count} 个 MTP 块",
    "{layers} layers and {count} MTP blocks": "{layers} 层和 {count} 个 MTP 块",
    "{layers} and {count} MTP block": "{layers} 层和 {count} 个 MTP 块",
    "{layers} and {count} MTP blocks": "{layers} 层和 {count} 个 MTP 块",
    "{count} layer": "{count} 层", "{count} layers": "{count} 层",
}  # fmt: skip

_MFU = {
    "model FLOPs: kernel shapes do not show the sequence length; give --sequence-length":
        "模型 FLOPs：无法由算子 shape 得知序列长度；请给出 --sequence-length",
    "model MFU: tokens per step are unknown; give --tokens-per-step N or auto":
        "模型 MFU：每 step 的 token 数未知；请给出 --tokens-per-step N 或 auto",
    "model MFU: the job's number of ranks was not recorded": "模型 MFU：没有记录任务的 rank 数",
    "HFU: recomputation is unknown; give --recompute none|selective|full":
        "HFU：重计算方式未知；请给出 --recompute none|selective|full",
    "model MFU would exceed 1: check model, tokens per step, number of ranks and peak":
        "模型 MFU 将超过 1：请检查模型、每 step 的 token 数、rank 数和峰值",
    "waterfall: kernels with known FLOPs execute less than the model needs: check the model"
    " description and the tokens per step":
        "损失瀑布：FLOPs 已知的算子所执行的少于模型所需：请检查模型描述和每 step 的 token 数",
    "{note} (the same in {count} more steps)": "{note}（另有 {count} 个 step 相同）",
    **{
        f"{what}{refused}: {{name}} needs {{flops}} for {{tokens}} tokens on the {{ranks}} ranks"
        f" with kernels{step}, which executed {{executed}}{tail}":
            f"{chinese_what}{chinese_refused}：{{name}} 在有算子的 {{ranks}} 个 rank 上"
            f"{chinese_step}需要 {{flops}}（{{tokens}} 个 token），"
            f"而算子执行了 {{executed}}{chinese_tail}"
        for what, chinese_what in (("model FLOPs", "模型 FLOPs"), ("HFU", "HFU"))
        for step, chinese_step in (("", ""), (" in step {step}", "的 step {step} 中"))
        for refused, chinese_refused, tail, chinese_tail in (
            (" refused", "不予给出", " (at most {most} x that is taken): check that model, tokens"
             " per step and --recompute match this job",
             "（至多接受其 {most} 倍）："
             "请检查模型、每 step 的 token 数和 --recompute 是否与该任务一致"),
            ("", "", " and kernels of unknown FLOPs", "，另有 FLOPs 未知的算子"),
        )
    },
}  # fmt: skip

MODELS: dict[str, str] = _TOKENS | _MFU
