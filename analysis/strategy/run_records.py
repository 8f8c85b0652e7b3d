"""Jobs out of records of runs, in the form of `strategy_runs/runs.json`.

What is measured, and who the run is, is never read. A record that lacks sizes gets the likeliest
ones: each has a job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..flops.model.architecture import Experts, GroupedQueries, Latent, Model
from .job import (
    ContextKind,
    Job,
    Machine,
    Recompute,
    Software,
    even_stages,
    listed_stages,
)

Record = Mapping[str, Any]

_PEAK_FLOPS_PER_S = 353.9e12  # where a record names none: the commonest part of Atlas A2
_RECENT = "2025-10"  # of the framework; a record without a date has the newest
_MOST_LAYERS = 10_000  # gone through one by one
_VARIABLE_LENGTH = 192  # tokens of a sequence of instructions, where lengths vary
_SIZES = {"layers": 32, "hidden": 4096, "vocab": 32000}


def job_of_record(record: Record) -> Job:
    """The job of one record. Never raises for what is missing or of the wrong kind."""
    sizes, cut = _part(record, "model"), _part(record, "parallel")
    train, options = _part(record, "train"), _part(record, "memory_opts")
    is_graph = "micro_batch_num" in cut or "model_parallel" in cut
    model = _model(sizes)
    tp = _size(cut, "tp", _size(cut, "model_parallel", 1))
    pp = min(float(model.layers), _size(cut, "pp", _size(cut, "pipeline_stage", 1)))
    cp = _size(cut, "cp", 1)
    dp = _size(cut, "dp", _size(cut, "data_parallel", 1))
    world = _size(cut, "world", tp * pp * cp * dp)
    dp = max(1.0, world / (tp * pp * cp))
    ep = _size(cut, "ep", _size(cut, "expert_parallel", 1))
    micro_batch = _size(train, "mbs", _size(record, "batch_size", 1))
    counted = _size(cut, "micro_batch_num", 1) if is_graph else _size(train, "microbatches", 1)
    is_sequence_parallel = bool(cut.get("sp") or cut.get("use_seq_parallel"))
    expert_tp = _size(cut, "etp", tp)
    algorithm = str(cut.get("cp_algo") or "")
    ulysses = _size(cut, "ulysses_in_cp", 1)
    return Job(
        model=model,
        machine=_machine(_part(record, "chip")),
        world=world,
        stages=_stages(model, cut, int(pp)),
        sequence_length=int(_length(record, sizes, train)),
        global_batch=_size(train, "gbs", micro_batch * dp * counted),
        tp=tp, cp=cp, ep=ep, expert_tp=expert_tp, micro_batch=micro_batch,
        sequence_parallel=(is_sequence_parallel or bool(cut.get("tp_2d"))) and tp > 1,
        tp_square=_side(cut.get("tp_2d")),
        distributed_optimizer=bool(cut.get("dist_opt") or cut.get("optimizer_shard")),
        context=_context(algorithm, ulysses),
        ulysses=ulysses if "hybrid" in algorithm else 1,
        schedule=str(cut.get("schedule") or "1f1b"),
        recompute=_recompute(
            _part(record, "recompute"), options, _part(sizes, "moe"), model.layers / pp
        ),
        software=_software(record, sizes, is_graph),
    )  # fmt: skip


def _side(size: object) -> int:
    return int(max(size)) if isinstance(size, list) and size else 1


def _length(record: Record, sizes: Record, train: Record) -> float:
    length = _size(train, "seq", _size(sizes, "seq", 2048))
    sft = _part(record, "sft")
    if sft.get("variable_seq") and not sft.get("packed"):
        return min(length, _VARIABLE_LENGTH)
    return length


def _machine(chip: Record) -> Machine:
    peak = _number(chip, "bf16_tflops", _PEAK_FLOPS_PER_S / 1e12) * 1e12
    return Machine(peak, _number(chip, "hbm_gb", 64) * 2.0**30)


def _model(sizes: Record) -> Model:
    layers = min(_MOST_LAYERS, int(_size(sizes, "layers", _SIZES["layers"])))
    h = int(_size(sizes, "hidden", _SIZES["hidden"]))
    heads = int(_size(sizes, "heads", max(1, h // 128)))
    groups = int(_size(sizes, "kv_groups", heads))
    is_gated = bool(sizes.get("gated", True))
    ffn = int(_size(sizes, "ffn", 8 * h // 3 if is_gated else 4 * h))
    noops = tuple(sorted({
        number for number in map(int, re.findall(r"\d+", str(sizes.get("noop_layers") or "")))
        if number < layers
    }))  # fmt: skip
    return Model(
        name="job",
        layers=layers,
        hidden_size=h,
        vocabulary_size=int(_size(sizes, "vocab", _SIZES["vocab"])),
        attention=_attention(sizes, h, heads, groups if heads % groups == 0 else heads),
        ffn_size=ffn,
        gated=is_gated,
        experts=_experts(_part(sizes, "moe"), ffn, layers),
        mtp_depth=int(_number(sizes, "mtp", 0)),
        tied_embeddings=bool(sizes.get("tied")),
        noop_layers=noops if len(noops) < layers else (),
    )


def _attention(sizes: Record, h: int, heads: int, groups: int) -> GroupedQueries | Latent:
    latent = _part(sizes, "mla")
    if latent:
        return Latent(
            heads,
            int(_size(latent, "kv_lora", 512)),
            int(_size(latent, "qk_nope", 128)),
            int(_size(latent, "qk_rope", 64)),
            int(_size(latent, "v", 128)),
            int(_size(latent, "q_lora", 0)) or None,
        )
    return GroupedQueries(heads, groups, int(_size(sizes, "head_dim", max(1, h // heads))))


def _experts(moe: Record, ffn: int, layers: int) -> Experts | None:
    routed = int(_number(moe, "experts", 0))
    if routed < 1:
        return None
    size = int(_size(moe, "expert_ffn", ffn))
    shared = int(_number(moe, "shared_ffn_total", 0))
    frequency = moe.get("layer_freq")
    pattern: int | tuple[int, ...] = max(1, int(_number(moe, "layer_freq", 1)))
    if isinstance(frequency, list) and len(frequency) == layers:
        pattern = tuple(int(bool(each)) for each in frequency)
    return Experts(
        routed=routed,
        top_k=min(routed, int(_size(moe, "topk", 2))),
        ffn_size=size,
        shared=1 if shared else 0,
        shared_ffn_size=shared or None,
        leading_dense_layers=max(0, int(_number(moe, "first_k_dense", 0))),
        layer_frequency=pattern,
    )


def _stages(model: Model, cut: Record, pp: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    counts = [int(count) for count in re.findall(r"\d+", str(cut.get("num_layer_list") or ""))]
    vpp = min(int(_size(cut, "vpp", 1)), max(1, model.layers // pp))
    if len(counts) in (pp, pp * vpp) and sum(counts) >= model.layers:
        return listed_stages(counts, pp)
    return even_stages(model.layers, pp, vpp, str(cut.get("schedule") or "1f1b"))


def _context(algorithm: str, ulysses: float) -> ContextKind:
    if "hybrid" in algorithm and ulysses > 1:
        return "hybrid"
    return "ulysses" if "ulysses" in algorithm or "mamba" in algorithm else "ring"


def _activation_share(record: Record, layers: float) -> float:
    if not record.get("activation_function"):
        return 0.0
    return min(1.0, _size(record, "activation_function_layers", layers) / layers)


def _recompute(record: Record, options: Record, moe: Record, layers: float) -> Recompute:
    """`num_layers` counts only where a method says how; a list is of stages (MindSpore).

    Swapping attention with a number of layers computes these again, all but the attention.
    """
    full: float | None = 0
    if record.get("granularity") == "full" or record.get("method"):
        layers_told = _number(record, "num_layers", 0)
        full = layers_told if record.get("method") == "block" else None
        if record.get("granularity") != "full":
            # Megatron looks at the method only where the granularity is full.
            full = layers_told if options.get("swap_attention") else 0
    simple = record.get("recompute")
    if isinstance(simple, list):
        full = float(sum(simple)) / max(1, len(simple))
    elif simple:
        full = None
    return Recompute(
        full_layers=full,
        counts_rank=bool(record.get("per_pp_rank")),
        activation=_activation_share(record, layers),
        experts={"level0": 1, "level1": 2}.get(
            str(moe.get("zero_memory") or record.get("experts")), 0
        ),
        latent_up=bool(record.get("mla_up_proj")),
    )


def _software(record: Record, sizes: Record, is_graph: bool) -> Software:
    kernels, overlap = _part(record, "kernels"), _part(record, "overlap")
    moe, options, sft = _part(sizes, "moe"), _part(record, "memory_opts"), _part(record, "sft")
    precision = str(_part(record, "train").get("precision") or "bf16")
    position, kind = str(sizes.get("pos") or ""), str(record.get("kind") or "")
    framework = str(record.get("framework") or "")
    return Software(
        is_legacy=framework.startswith("legacy"),
        is_recent=str(_part(record, "source").get("date") or _RECENT) >= _RECENT,
        is_graph=is_graph or "graph" in framework,
        is_half=precision == "fp16",
        is_single=precision == "fp32",
        flash_attention=bool(kernels.get("flash_attn", True)),
        fused_rope=bool(kernels.get("fused_rope", True)) or position != "rope",
        fused_swiglu=bool(kernels.get("fused_swiglu", True)),
        fused_norm=bool(kernels.get("fused_rmsnorm", True)),
        full_mask=position == "alibi" or record.get("attention_mask") == "general",
        alibi=position == "alibi",
        tp_overlap=bool(overlap.get("mc2") or overlap.get("coc")),
        fused_overlap=bool(overlap.get("mc2")),
        grad_overlap=bool(overlap.get("grad_reduce")),
        param_overlap=bool(overlap.get("param_gather")),
        expert_overlap=bool(moe.get("alltoall_overlap") or moe.get("allgather_overlap")),
        pair_overlap=bool(moe.get("fb_overlap")),
        node_exchange=bool(moe.get("node_exchange")),
        bare_values=bool(record.get("mla_fa_without_pad") or kernels.get("mla_fa_without_pad")),
        fused_permutation=bool(moe.get("fused_permute")),
        grouped_experts=bool(moe.get("grouped_gemm", True)),
        dispatcher="allgather" if moe.get("dispatcher") == "allgather" else "alltoall",
        capacity_factor=_capacity(moe),
        reuse_fp32=bool(options.get("reuse_fp32_param")),
        swap_optimizer=bool(options.get("swap_optimizer")),
        swap_attention=bool(options.get("swap_attention")),
        sparse_index_keys=int(_number(_part(sizes, "dsa"), "topk", 0)),
        output_slices=int(_size(options, "output_slices", 1)),
        reference_model=kind == "dpo",
        training="qlora" if "qlora" in kind else "lora" if "lora" in kind else "full",
        lora_rank=int(_number(sft, "lora_r", 8 if "lora" in kind else 0)),
    )


def _capacity(moe: Record) -> float | None:
    """Rows of an expert over their mean, where tokens beyond it are dropped or rows padded."""
    factor = _number(moe, "capacity_factor", 0)
    if factor <= 0:
        return None
    return factor if moe.get("pad_to_capacity") or factor < 1 else 1.0


def _part(record: Record, name: str) -> Record:
    part = record.get(name)
    return part if isinstance(part, Mapping) else {}


def _number(values: Record, key: str, default: float) -> float:
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return float(default)
    try:
        number = float(value)
    except ValueError:
        return float(default)
    return number if number == number and abs(number) < 1e15 else float(default)


def _size(values: Record, key: str, default: float) -> float:
    """A number of 1 or more; the default for others."""
    number = _number(values, key, default)
    return number if number >= 1 else float(default)
