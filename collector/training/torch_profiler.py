"""One window through torch_npu's profiler; torch_npu is imported here only, and only at use.

What a capture says of its job, as entries of profiler_metadata.json.

    job_name            the run
    npuscope            schema version, run, rank, first and last profiled step
    distributed_args    parallel sizes by MindSpeed's names
    parallel_group_info communicators, where the caller knows them better than the profiler
    model_config        the model's sizes, as configurations name them: what its FLOPs follow from
    npuscope_threads    NUMA nodes of threads, see `thread_nodes`

torch_npu refuses a value of more than 4096 characters, and 50 KB in all; we stay below 20 KB.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .thread_nodes import KEY as THREADS

LEVELS = {0: "Level0", 1: "Level1", 2: "Level2", "none": "Level_none"}
EXPORTS = {"db": ("Db",), "text": ("Text",), "both": ("Db", "Text")}
ANALYSES = ("offline", "inline", "async")


@dataclass(frozen=True, slots=True)
class CollectionOptions:
    """What the profiler is asked to collect; fields are torch_npu's where they have its names."""

    level: int | str = 1
    export: str = "db"
    analyse: str = "offline"
    aic_metrics: str | None = None
    mstx: bool = False
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    thread_nodes: bool = True  # ours: the profiler does not record them
    gc_detect_threshold: float | None = 1.0  # ms

    def __post_init__(self) -> None:
        for name, allowed in (("level", LEVELS), ("export", EXPORTS), ("analyse", ANALYSES)):
            if getattr(self, name) not in allowed:
                choices = ", ".join(map(str, allowed))
                raise ValueError(f"{name}={getattr(self, name)!r}: choose of {choices}")


class Window:
    """A profiler that runs from its construction to `stop`. Raises what torch_npu raises."""

    def __init__(
        self, root: Path, collected: CollectionOptions, *, warmup: int, active: int, first_step: int
    ) -> None:
        npu = importlib.import_module("torch_npu").profiler
        self.folder: Path | None = None
        self._is_recorded = False
        self._root, self._before = root, _captures(root)
        level = LEVELS[collected.level]
        metrics = collected.aic_metrics
        if metrics is None:
            has_metrics = level in ("Level1", "Level2")
            metrics = "PipeUtilization" if has_metrics else "AiCoreNone"
        options: dict[str, Any] = {
            "profiler_level": getattr(npu.ProfilerLevel, level),
            "aic_metrics": getattr(npu.AiCMetrics, metrics),
            "mstx": collected.mstx or level == "Level_none",
            "data_simplification": True,
            "export_type": [getattr(npu.ExportType, name) for name in EXPORTS[collected.export]],
            "gc_detect_threshold": collected.gc_detect_threshold,
        }
        if "gc_detect_threshold" not in inspect.signature(npu._ExperimentalConfig).parameters:
            del options["gc_detect_threshold"]  # an older torch_npu
        experimental = npu._ExperimentalConfig(**options)
        handler = npu.tensorboard_trace_handler(
            str(root),
            analyse_flag=collected.analyse != "offline",
            async_mode=collected.analyse == "async",
        )
        if handler is None:  # it would write into the working folder
            raise RuntimeError(f"torch_npu does not write into {root}: see what it printed")

        def ready(profiler: Any) -> None:
            # Where it wrote; torch_npu has no public name for it.
            path = getattr(getattr(profiler, "prof_if", None), "prof_path", "")
            self.folder, self._is_recorded = Path(path) if path else None, True
            handler(profiler)

        self._profiler = npu.profile(
            activities=[npu.ProfilerActivity.CPU, npu.ProfilerActivity.NPU],
            schedule=npu.schedule(wait=0, warmup=warmup, active=active, repeat=1),
            on_trace_ready=ready,
            record_shapes=collected.record_shapes,
            profile_memory=collected.profile_memory,
            with_stack=collected.with_stack,
            with_flops=collected.with_flops,
            with_modules=collected.with_modules,
            experimental_config=experimental,
        )
        if hasattr(self._profiler, "_step_num_offset"):
            # The trace then names the run's steps (ProfilerStep#200), not the window's.
            self._profiler._step_num_offset = first_step - warmup
        self._profiler.start()

    def describe(self, entries: Mapping[str, str]) -> None:
        """Add to the capture's metadata; later entries replace those of the same key."""
        for key, text in entries.items():
            self._profiler.add_metadata_json(key, text)

    def step(self) -> None:
        self._profiler.step()

    def stop(self) -> None:
        """End the window, and find its folder where the profiler did not tell it.

        It stays None where recording did not come to its end: torch_npu only prints what fails.
        """
        self._profiler.stop()
        if self.folder is None and self._is_recorded:
            new = sorted(_captures(self._root) - self._before)
            self.folder = new[-1] if new else None
        if self.folder is not None and not self.folder.is_dir():
            self.folder = None


def _captures(root: Path) -> set[Path]:
    """This process's captures."""
    return set(root.glob(f"*_{os.getpid()}_*_ascend_pt"))


VALUE_CHARS = 4096
TOTAL_CHARS = 20 * 1024

# MindSpeed's names of what `distributed_args` holds, and shorter ones that are understood.
_SIZES = {
    "tensor_model_parallel_size": ("tensor_parallel_size", "tp_size", "tp"),
    "pipeline_model_parallel_size": ("pipeline_parallel_size", "pp_size", "pp"),
    "data_parallel_size": ("dp_size", "dp"),
    "context_parallel_size": ("cp_size", "cp"),
    "expert_model_parallel_size": ("expert_parallel_size", "ep_size", "ep"),
    "virtual_pipeline_model_parallel_size": ("vpp_size", "vpp"),
    "sequence_parallel": (),
    "world_size": (),
}

# Sizes by the names of Hugging Face's configurations and of Megatron's arguments.
_MODEL = frozenset(
    "model_type hidden_size intermediate_size num_hidden_layers num_attention_heads"
    " num_key_value_heads head_dim vocab_size tie_word_embeddings q_lora_rank kv_lora_rank"
    " qk_nope_head_dim qk_rope_head_dim v_head_dim moe_intermediate_size n_routed_experts"
    " n_shared_experts num_experts num_local_experts num_experts_per_tok first_k_dense_replace"
    " moe_layer_freq decoder_sparse_step mlp_only_layers num_nextn_predict_layers"
    " shared_expert_intermediate_size sliding_window use_sliding_window"
    " num_layers ffn_hidden_size kv_channels group_query_attention num_query_groups"
    " multi_latent_attention multi_head_latent_attention qk_head_dim qk_pos_emb_head_dim"
    " moe_router_topk moe_ffn_hidden_size moe_shared_expert_intermediate_size mtp_num_layers"
    " padded_vocab_size swiglu untie_embeddings_and_output_weights noop_layers"
    " seq_length max_sequence_length micro_batch_size global_batch_size recompute_granularity"
    " recompute_method recompute_num_layers bf16 fp16 fp8 dtype torch_dtype".split()
)


def entries(
    *,
    run: str | None,
    rank: int,
    first_step: int,
    last_step: int,
    parallel: object = None,
    groups: Mapping[str, object] | None = None,
    model: object = None,
    threads: Mapping[str, object] | None = None,
) -> tuple[dict[str, str], list[str]]:
    """JSON text by key, and the keys that were too long to be kept.

    `parallel` and `model` are mappings, configurations with `to_dict`, or objects with such
    attributes (Megatron's arguments serve as both). `groups` is {communicator: {"group_name",
    "group_rank", "global_ranks"}}.
    """
    sizes = {**_parallel_sizes(parallel), "rank": rank} if parallel is not None else {}
    window = {
        "schema_version": 1, "run": run, "rank": rank, "first_step": first_step,
        "last_step": last_step,
    }  # fmt: skip
    values: tuple[tuple[str, object], ...] = (
        ("npuscope", window),
        ("job_name", run),
        ("distributed_args", sizes),
        ("model_config", _model_sizes(model)),
        ("parallel_group_info", dict(groups or {})),
        (THREADS, dict(threads or {})),
    )
    texts: dict[str, str] = {}
    too_long: list[str] = []
    total = 0
    for key, value in values:
        if not value:
            continue
        text = json.dumps(value)
        if len(text) > VALUE_CHARS or total + len(key) + len(text) > TOTAL_CHARS:
            too_long.append(key)
            continue
        total += len(key) + len(text)
        texts[key] = text
    return texts, too_long


def _parallel_sizes(parallel: object) -> dict[str, int | bool]:
    """Parallel sizes by MindSpeed's names."""
    fields = _fields(parallel)
    sizes: dict[str, int | bool] = {}
    for name, others in _SIZES.items():
        value = next((fields[key] for key in (name, *others) if fields.get(key) is not None), None)
        if isinstance(value, int):
            sizes[name] = value
    return sizes


def _model_sizes(model: object) -> dict[str, object]:
    """Those fields of a model's configuration that its FLOPs follow from."""
    fields = _fields(model)
    if isinstance(inner := fields.get("text_config"), Mapping):
        fields = {**fields, **inner}
    sizes: dict[str, object] = {}
    for name in sorted(_MODEL & fields.keys()):
        value = fields[name]
        if isinstance(value, (bool, int, float)) or _is_short_list(value):
            sizes[name] = value
        elif value is not None and not isinstance(value, (list, tuple, Mapping)):
            sizes[name] = str(value)[:64]
    return sizes


def _is_short_list(value: object) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) <= 128
        and all(isinstance(one, int) for one in value)
    )


def _fields(described: Any) -> Mapping[str, object]:
    if described is None:
        return {}
    if isinstance(described, Mapping):
        return described
    to_dict = getattr(described, "to_dict", None)
    fields = to_dict() if callable(to_dict) else vars(described)
    return fields if isinstance(fields, Mapping) else {}
