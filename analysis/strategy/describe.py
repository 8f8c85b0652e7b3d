"""Jobs as a user gives them: a model, a chip, a cluster and a strategy, or a launch script.

tp=8,pp=4,vpp=2,ep=8,cp=1,mbs=1,gbs=512,seq=8192,recompute=full
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from math import gcd
from pathlib import Path
from typing import Any

from npuscope.errors import UsageError
from npuscope.messages import Message

from ..flops.model.architecture import GroupedQueries, Model
from ..flops.model.describe import model_of
from ..flops.model.megatron_arguments import arguments_in
from ..flops.peaks import CHIPS, PER_CYCLE
from ..pipeline.schedules import refuse_sizes
from .job import Job, Machine, Software, balanced_stages, chunks_divide
from .run_records import job_of_record
from .search import RECOMPUTES, Space

_MEMORY_BYTES = {"910A": 32 * 2.0**30, "910B4": 32 * 2.0**30}  # the others have 64 GiB
_MOST_BYTES = 32 << 20

# Key of a strategy -> part of a record and its key.
_KEYS = {
    "tp": ("parallel", "tp"), "pp": ("parallel", "pp"), "vpp": ("parallel", "vpp"),
    "cp": ("parallel", "cp"), "ep": ("parallel", "ep"), "etp": ("parallel", "etp"),
    "mbs": ("train", "mbs"), "gbs": ("train", "gbs"), "seq": ("train", "seq"),
}  # fmt: skip
_FLAGS = {
    "sp": ("parallel", "sp"), "dist_opt": ("parallel", "dist_opt"), "mc2": ("overlap", "mc2"),
    "grad_overlap": ("overlap", "grad_reduce"), "param_overlap": ("overlap", "param_gather"),
    "reuse_fp32": ("memory_opts", "reuse_fp32_param"),
    "swap_optimizer": ("memory_opts", "swap_optimizer"),
    "swap_attention": ("memory_opts", "swap_attention"),
    "ep_overlap": ("moe", "alltoall_overlap"), "fb_overlap": ("moe", "fb_overlap"),
    "node_exchange": ("moe", "node_exchange"), "fused_permute": ("moe", "fused_permute"),
    "mla_fa_without_pad": ("kernels", "mla_fa_without_pad"),
}  # fmt: skip
_WORDS = {
    "cp_kind": ("parallel", "cp_algo"), "schedule": ("parallel", "schedule"),
    "layers": ("parallel", "num_layer_list"),
}  # fmt: skip
_BALANCE = "balanced"  # in place of numbers of layers
# As given -> as `pipeline --formula` has it. What runs otherwise is not predicted.
_SCHEDULES = {
    "1f1b": "1f1b", "interleaved": "interleaved", "vpp": "interleaved", "dualpipev": "dualpipev",
}  # fmt: skip
_CONTEXTS = (
    "ring", "ulysses", "hybrid", "megatron_cp_algo", "ulysses_cp_algo", "hybrid_cp_algo",
    "mamba_cp_algo",
)  # fmt: skip
_RECOMPUTE = ("none", "full", "activation", "selective")
# Whoever cuts a model anew has these on; a search always has the first two.
_SEARCH_DEFAULTS = {"grad_overlap": True, "fused_permute": True}
_DEFAULTS = {"sp": True, "dist_opt": True, **_SEARCH_DEFAULTS}

# Argument of Megatron or MindSpeed -> part of a record and its key.
_ARGUMENTS = {
    "tensor_model_parallel_size": ("parallel", "tp"),
    "pipeline_model_parallel_size": ("parallel", "pp"),
    "context_parallel_size": ("parallel", "cp"),
    "context_parallel_algo": ("parallel", "cp_algo"),
    "ulysses_degree_in_cp": ("parallel", "ulysses_in_cp"),
    "expert_model_parallel_size": ("parallel", "ep"),
    "expert_tensor_parallel_size": ("parallel", "etp"),
    "num_layer_list": ("parallel", "num_layer_list"),
    "micro_batch_size": ("train", "mbs"),
    "global_batch_size": ("train", "gbs"),
    "seq_length": ("train", "seq"),
    "recompute_granularity": ("recompute", "granularity"),
    "recompute_method": ("recompute", "method"),
    "recompute_num_layers": ("recompute", "num_layers"),
    "recompute_activation_function_num_layers": ("recompute", "activation_function_layers"),
    "moe_zero_memory": ("moe", "zero_memory"),
    "moe_expert_capacity_factor": ("moe", "capacity_factor"),
}
_TEXTS = ("cp_algo", "num_layer_list", "granularity", "method", "zero_memory", "capacity_factor")
_ARGUMENT_FLAGS = {
    "sequence_parallel": ("parallel", "sp"),
    "use_distributed_optimizer": ("parallel", "dist_opt"),
    "overlap_grad_reduce": ("overlap", "grad_reduce"),
    "overlap_param_gather": ("overlap", "param_gather"),
    "use_ascend_mc2": ("overlap", "mc2"),
    "reuse_fp32_param": ("memory_opts", "reuse_fp32_param"),
    "swap_optimizer": ("memory_opts", "swap_optimizer"),
    "swap_attention": ("memory_opts", "swap_attention"),
    "recompute_activation_function": ("recompute", "activation_function"),
    "enable_recompute_layers_per_pp_rank": ("recompute", "per_pp_rank"),
    "moe_alltoall_overlap_comm": ("moe", "alltoall_overlap"),
    "moe_allgather_overlap_comm": ("moe", "allgather_overlap"),
    "moe_fb_overlap": ("moe", "fb_overlap"),
    "moe_pad_expert_input_to_capacity": ("moe", "pad_to_capacity"),
    "use_fused_moe_token_permute_and_unpermute": ("moe", "fused_permute"),
    "moe_permute_fusion": ("moe", "fused_permute"),
    "mla_fa_without_pad": ("kernels", "mla_fa_without_pad"),
}

# Chunks of a stage, by Megatron's later and MindSpeed's spelling.
_CHUNKS = ("num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size")
# What changes time or memory and is not predicted.
_NOT_PRICED = (
    "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
    "optimizer_cpu_offload",
)  # fmt: skip


def machine_of(chip: str) -> Machine:
    """The machine of a chip's name. Raises UsageError with the names that are known."""
    name = chip.upper().removeprefix("ASCEND").removeprefix("_").strip()
    if name not in CHIPS:
        raise UsageError(f"{chip}: not a known chip: known are {', '.join(CHIPS)}")
    model = CHIPS[name]
    return Machine(model.cores * model.mhz * 1e6 * PER_CYCLE["bf16"],
                   _MEMORY_BYTES.get(name, 64 * 2.0**30))  # fmt: skip


def cluster_of(text: str) -> tuple[int, int]:
    """Nodes and NPUs of a node of 8x8, or of the NPUs of one node. Raises UsageError."""
    match = re.fullmatch(r"\s*(?:(\d{1,5})\s*[xX*]\s*)?(\d{1,5})\s*", text)
    if not match or not int(match[2]) or match[1] == "0":
        raise UsageError(f"--cluster {text}: give NODES x NPUS as 8x8, or the NPUs of one node")
    return int(match[1] or 1), int(match[2])


def job_of_strategy(model: Model, machine: Machine, cluster: tuple[int, int], text: str) -> Job:
    """The job of a strategy as text. Raises UsageError for what is unknown or does not divide."""
    record: dict[str, Any] = {part: {} for part, _ in (*_KEYS.values(), *_FLAGS.values())}
    record["recompute"] = {}
    for key, value in _DEFAULTS.items():
        part, name = _FLAGS[key]
        record[part][name] = value
    skew = None
    for item in filter(None, re.split(r"[,\s]+", text)):
        key, _, value = item.partition("=")
        if key in _KEYS:
            part, name = _KEYS[key]
            record[part][name] = _whole(key, value)
        elif key in _FLAGS:
            part, name = _FLAGS[key]
            record[part][name] = _flag(key, value)
        elif key in _WORDS and value:
            part, name = _WORDS[key]
            record[part][name] = value.replace("+", ",")
        elif key == "recompute":
            record["recompute"] = _recompute(value)
        elif key == "skew":
            skew = _skew(value)
        else:
            words = [*_KEYS, *_FLAGS, *_WORDS, "recompute", "skew"]
            near = difflib.get_close_matches(key, words, 1)
            raise UsageError(
                f"--strategy: {item} is unknown{f': did you mean {near[0]}?' if near else ''}:"
                f" known are {', '.join(words)}"
            )
    return replace(_finish(model, machine, cluster, record), expert_skew=skew)


def space_of(text: str, software: Software | None = None) -> Space:
    """What to search, as tp=4+8,gbs=512,seq=8192,mc2=1: sizes to try, those not given are all
    tried; and switches, which all strategies then have, beside the usual ones or those of
    `software`.

    Raises UsageError for what is unknown, or without gbs and seq.
    """
    sizes: dict[str, list[int]] = {}
    recompute = list(RECOMPUTES)
    switches: dict[str, bool] = {}
    flags = [key for key in _FLAGS if key not in ("sp", "dist_opt")]
    for item in filter(None, re.split(r"[,\s]+", text)):
        key, _, value = item.partition("=")
        if key == "recompute":
            recompute = value.split("+")
            if not set(recompute) <= set(RECOMPUTES):
                raise UsageError(f"--only: {item}: give {' + '.join(RECOMPUTES)}, or some of them")
        elif key in ("tp", "pp", "vpp", "cp", "ep", "mbs", "gbs", "seq"):
            sizes[key] = [_whole(key, each) for each in value.split("+")]
        elif key in flags:
            switches[key] = _flag(key, value)
        else:
            raise UsageError(
                f"--only: {item} is unknown: known are tp, pp, vpp, cp, ep, mbs, gbs, seq,"
                f" recompute, {', '.join(flags)}"
            )
    missing = [key for key in ("gbs", "seq") if len(sizes.get(key, [])) != 1]
    if missing:
        raise UsageError(f"--only: give one {' and one '.join(missing)}, as gbs=512,seq=8192")
    return Space(
        sequence_length=sizes["seq"][0], global_batch=sizes["gbs"][0],
        tp=sizes.get("tp"), pp=sizes.get("pp"), vpp=sizes.get("vpp"), cp=sizes.get("cp"),
        ep=sizes.get("ep"), micro_batch=sizes.get("mbs"),
        recompute=recompute,
        software=_software_of(_SEARCH_DEFAULTS | switches) if software is None
        else _switch(software, switches),
    )  # fmt: skip


def _software_of(switches: Mapping[str, bool]) -> Software:
    record: dict[str, Any] = {part: {} for part, _ in _FLAGS.values()}
    for key, is_on in switches.items():
        part, name = _FLAGS[key]
        record[part][name] = is_on
    return job_of_record(record | {"model": {"moe": record.pop("moe")}}).software


def _switch(software: Software, switches: Mapping[str, bool]) -> Software:
    for key, is_on in switches.items():
        on, off = (_software_of({key: switch}) for switch in (True, False))
        names = [one.name for one in fields(Software)
                 if getattr(on, one.name) != getattr(off, one.name)]  # fmt: skip
        switch = on if is_on else off
        software = replace(software, **{name: getattr(switch, name) for name in names})
    return software


def job_of_script(path: Path, machine: Machine, cluster: tuple[int, int] | None) -> Job:
    """The job of a launch script or log of Megatron or MindSpeed. Raises UsageError.

    The cluster is the script's own (NNODES x NPUS_PER_NODE) unless one is given. Arguments that say
    nothing of time or memory are passed over.
    """
    model = model_of(path)
    with path.open("rb") as file:
        text = file.read(_MOST_BYTES).decode("utf-8", "replace")
    arguments = arguments_in(text)
    if arguments is None:
        raise UsageError(
            f"{path}: no arguments of Megatron or MindSpeed: give --strategy with this model"
        )
    record = record_of_arguments(arguments)
    if "gbs" not in record["train"]:
        raise UsageError(f"{path}: missing global_batch_size: add it to the file")
    layers = _number(arguments.get("num_layers_per_virtual_pipeline_stage"))
    chunks = [_number(arguments.get(name)) for name in _CHUNKS]
    if layers:
        pp = int(record["parallel"].get("pp", 1))
        record["parallel"]["vpp"] = max(1, model.layers // (pp * layers))
    elif any(chunks):
        record["parallel"]["vpp"] = max(chunks)
    return _finish(model, machine, cluster or _cluster_in(text, arguments), record)


def script_notes(path: Path, cluster: tuple[int, int] | None) -> list[str]:
    """What the job of a launch script leaves out of it, or takes for granted; `cluster`: given."""
    with path.open("rb") as file:
        text = file.read(_MOST_BYTES).decode("utf-8", "replace")
    arguments = arguments_in(text) or {}
    notes: list[str] = []
    names = [f"--{name.replace('_', '-')}" for name in _NOT_PRICED if _is_on(arguments, name)]
    if names:
        notes.append(Message("not priced, though the script has it: {names}",
                             names=", ".join(names)))  # fmt: skip
    if cluster is None and not _tells_nodes(text, arguments):
        nodes, devices = _cluster_in(text, arguments)
        notes.append(
            Message(
                "the script gives no number of nodes: {nodes} of {devices} NPUs are assumed; give"
                " --cluster NODESxNPUS",
                nodes=nodes, devices=devices,
            )
        )  # fmt: skip
    return notes


def record_of_arguments(arguments: Mapping[str, object]) -> dict[str, Any]:
    """A record, as of a run, of Megatron's and MindSpeed's arguments by name; unknown ones are
    passed over. Raises UsageError for what should be a whole number and is none."""
    record: dict[str, Any] = {
        "parallel": {}, "train": {}, "recompute": {}, "overlap": {}, "memory_opts": {},
        "kernels": {}, "moe": {},
    }  # fmt: skip
    for name, (part, key) in _ARGUMENTS.items():
        if arguments.get(name) not in (None, "None"):
            value = str(arguments[name]).strip("\"'")
            if key not in _TEXTS and not value.isdecimal():
                raise UsageError(
                    f"{name} is {value!r}, not a whole number: put the number into the file"
                )
            record[part][key] = int(value) if value.isdecimal() else value
    for name, (part, key) in _ARGUMENT_FLAGS.items():
        if _is_on(arguments, name):
            record[part][key] = True
    if arguments.get("use_flash_attn") is None:
        record["kernels"]["flash_attn"] = False
    for key, name in (("fused_rope", "use_fused_rotary_pos_emb"),
                      ("fused_swiglu", "use_fused_swiglu"),
                      ("fused_rmsnorm", "use_fused_rmsnorm")):  # fmt: skip
        record["kernels"][key] = name in arguments
    dispatcher = str(arguments.get("moe_token_dispatcher_type", "allgather"))
    record["moe"]["dispatcher"] = dispatcher.replace("_seq", "")
    record["moe"]["grouped_gemm"] = "moe_grouped_gemm" in arguments
    record["train"]["precision"] = (
        "bf16" if "bf16" in arguments else "fp16" if "fp16" in arguments else "fp32"
    )
    schedule = arguments.get("schedules_method")
    if schedule is not None:
        record["parallel"]["schedule"] = str(schedule)
    record["framework"] = "mcore" if "use_mcore_models" in arguments else "legacy"
    return record


def _is_on(arguments: Mapping[str, object], name: str) -> bool:
    return str(arguments.get(name, "False")).lower() not in ("false", "none")


def _cluster_in(text: str, arguments: Mapping[str, object]) -> tuple[int, int]:
    world = _number(arguments.get("world_size"))
    if world:
        devices = world if world <= 8 else gcd(world, 8)
        return world // devices, devices
    sizes = {
        name: _number(match[1])
        for name in ("NNODES", "NPUS_PER_NODE", "GPUS_PER_NODE")
        if (match := re.search(rf"^\s*(?:export\s+)?{name}=[\"']?(\d+)", text, re.MULTILINE))
    }
    nodes = sizes.get("NNODES") or _number(arguments.get("nnodes")) or 1
    of_node = sizes.get("NPUS_PER_NODE") or sizes.get("GPUS_PER_NODE")
    return nodes, of_node or _number(arguments.get("nproc_per_node")) or 8


def _tells_nodes(text: str, arguments: Mapping[str, object]) -> bool:
    """Whether a number of nodes is read from the script."""
    is_set = re.search(r"^\s*(?:export\s+)?NNODES=[\"']?\d", text, re.MULTILINE)
    return bool(is_set or _number(arguments.get("nnodes")) or _number(arguments.get("world_size")))


def _finish(
    model: Model, machine: Machine, cluster: tuple[int, int], record: dict[str, Any]
) -> Job:
    """The job of a record of a strategy, with the model given. Raises UsageError."""
    nodes, devices = cluster
    record["parallel"]["world"] = nodes * devices
    is_balanced = record["parallel"].get("num_layer_list") == _BALANCE
    if is_balanced:
        del record["parallel"]["num_layer_list"]
    record["model"] = {"moe": record.pop("moe", {})} | {"layers": model.layers}
    wrong = _contradictions(model, nodes * devices, record)
    if wrong:
        raise UsageError(f"{model.name}: {'; '.join(wrong)}")
    job = job_of_record(record)
    if is_balanced:
        length = job.sequence_length
        job = replace(job, stages=balanced_stages(model, job.pp, job.vpp, length))
    return replace(job, model=model, machine=replace(machine, node_devices=devices))


def _contradictions(model: Model, world: int, record: Mapping[str, Any]) -> list[str]:
    """Sizes that do not divide, each in a few words."""
    cut, train = record["parallel"], record["train"]
    tp, pp, cp, ep = (int(cut.get(key, 1)) for key in ("tp", "pp", "cp", "ep"))
    vpp, etp = int(cut.get("vpp", 1)), int(cut.get("etp", tp))
    wrong = []
    if world % (tp * pp * cp):
        wrong.append(f"tp {tp} x pp {pp} x cp {cp} does not divide {world} NPUs")
        return wrong
    dp = world // (tp * pp * cp)
    heads = model.attention.heads
    if heads % tp:
        wrong.append(f"tp {tp} does not divide {heads} heads")
    if isinstance(model.attention, GroupedQueries) and max(tp, model.attention.kv_heads) % min(
        tp, model.attention.kv_heads
    ):
        wrong.append(f"tp {tp} and {model.attention.kv_heads} key-value heads do not divide")
    layer_list = cut.get("num_layer_list")
    if layer_list:
        counts = [int(count) for count in re.findall(r"\d+", str(layer_list))]
        if len(counts) not in (pp, pp * vpp) or sum(counts) != model.layers:
            numbers = str(pp) if vpp == 1 else f"{pp} or {pp * vpp}"
            wrong.append(
                f"layers {layer_list}: give {numbers} numbers that add up to {model.layers}"
            )
    elif pp * vpp > model.layers:
        wrong.append(f"pp {pp} x vpp {vpp} is more than {model.layers} layers")
    elif not chunks_divide(model.layers, pp, vpp):
        wrong.append(
            f"vpp {vpp} does not divide the layers of a stage: {model.layers} over pp {pp}"
        )
    if model.experts is None and ep > 1:
        wrong.append(f"ep {ep}, and the model has no experts")
    elif model.experts is not None and model.experts.routed % ep:
        wrong.append(f"ep {ep} does not divide {model.experts.routed} experts")
    if (world // pp) % (ep * etp):
        wrong.append(f"ep {ep} x etp {etp} does not divide the {world // pp} NPUs of a stage")
    micro, batch = int(train.get("mbs", 1)), train.get("gbs")
    if batch is None:
        wrong.append("gbs is missing: give the sequences of a step as gbs=512")
    elif int(batch) % (micro * dp):
        wrong.append(f"gbs {batch} is no multiple of mbs {micro} x dp {dp}")
    else:
        wrong += _unpriced_kinds(record, pp, int(batch) // (micro * dp), vpp)
    if "seq" not in train:
        wrong.append("seq is missing: give the tokens of a sequence as seq=4096")
    elif int(train["seq"]) % (tp * cp * 2 if cp > 1 else tp):
        wrong.append(f"seq {train['seq']} is no multiple of what tp {tp} and cp {cp} cut it into")
    return wrong


def _unpriced_kinds(record: Mapping[str, Any], pp: int, micro_batches: int, vpp: int) -> list[str]:
    """Schedules and kinds of context parallelism that are not predicted, or not with such sizes."""
    cut, wrong = record["parallel"], []
    name = str(cut.get("schedule") or "1f1b").lower()
    kind = str(cut.get("cp_algo") or "ring").lower()
    if name not in _SCHEDULES:
        wrong.append(f"schedule {name} is not predicted: known are {', '.join(_SCHEDULES)}")
    elif name == "dualpipev" and vpp > 1:
        wrong.append("dualpipev has two chunks of its own on each stage: leave vpp out")
    elif _SCHEDULES[name] == "interleaved" and vpp == 1:
        wrong.append(f"schedule {name} needs chunks of a stage: give vpp")
    elif pp > 1:
        schedule_name = "interleaved" if vpp > 1 else _SCHEDULES[name]
        try:
            refuse_sizes(schedule_name, pp, micro_batches, vpp)
        except UsageError as error:
            wrong.append(str(error))
    if kind not in _CONTEXTS and (int(cut.get("cp", 1)) > 1 or not kind.endswith("_cp_algo")):
        wrong.append(f"cp_kind {kind} is not predicted: known are {', '.join(_CONTEXTS)}")
    return wrong


def _whole(key: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1 or int(value) > 10**9:
        raise UsageError(f"--strategy: {key}={value}: give a whole number above 0")
    return int(value)


def _flag(key: str, value: str) -> bool:
    words = {"": True, "1": True, "true": True, "on": True, "0": False, "false": False}
    words |= {"off": False}
    if value.lower() not in words:
        raise UsageError(f"--strategy: {key}={value}: give 1 or 0")
    return words[value.lower()]


def _recompute(value: str) -> dict[str, Any]:
    """none, full, activation, or the number of layers of each chunk that are computed again."""
    if value.isdecimal():
        return {"granularity": "full", "method": "block", "num_layers": int(value)}
    if value not in _RECOMPUTE:
        raise UsageError(
            f"--strategy: recompute={value}: give {', '.join(_RECOMPUTE)} or layers of each chunk"
        )
    if value == "full":
        return {"granularity": "full", "method": "uniform", "num_layers": 1}
    if value == "selective":
        return {"activation_function": True, "mla_up_proj": True, "experts": "level0"}
    return {"activation_function": value == "activation"}


def _skew(value: str) -> float:
    if not re.fullmatch(r"\d{1,3}(\.\d+)?", value) or float(value) < 1:
        raise UsageError(f"--strategy: skew={value}: give the busiest device over the mean, 1.0 up")
    return float(value)


def _number(value: object) -> int:
    text = str(value).strip("\"'")
    return int(text) if text.isdecimal() else 0
