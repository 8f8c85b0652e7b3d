"""Every gauge of the exporter: its name, what it says, its labels, and how dear it is.

All have the label `run`. A sample is of a run's newest capture; seconds are of one step, ratios
0 to 1. Names ending in neither are numbers. `detail` tells what goes first when there are too many
series: the highest number.
"""

from __future__ import annotations

from dataclasses import dataclass

JOB, LAYERS, RANKS, EXPERTS = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Gauge:
    """A metric: `labels` come after `run`; `detail` is JOB, LAYERS, RANKS or EXPERTS."""

    name: str
    meaning: str
    labels: tuple[str, ...] = ()
    detail: int = JOB


_RANK = ("rank",)
_LAYER = ("phase", "layer")
_TOP = ("phase", "layer", "position")
_PLACE = ("node", "device_id", "chip", "tp", "pp", "dp", "cp", "ep")

GAUGES: tuple[Gauge, ...] = (
    Gauge(
        "npuscope_last_ingest_timestamp_seconds",
        "When a rank of the run's newest capture was last ingested, as Unix time.",
    ),
    Gauge(
        "npuscope_profile_end_timestamp_seconds",
        "When the newest profile of the run ended, as Unix time.",
    ),
    Gauge(
        "npuscope_capture_info", ("The capture that the samples of a run come from."), ("capture",)
    ),
    Gauge("npuscope_capture_ranks", "Ranks of the capture in the store."),
    Gauge("npuscope_capture_steps", "Number of steps of the capture."),
    Gauge(
        "npuscope_capture_warm_up_steps",
        "Warm-up steps of the capture, excluded from means.",
    ),
    Gauge(
        "npuscope_step_seconds",
        "Step time of the slowest rank, mean over the capture's steps.",
    ),
    Gauge(
        "npuscope_step_part_seconds",
        "Where a step's time goes: computing, exposed_communication or free (neither a kernel"
        " nor an operation of the step; another step's may run); mean of ranks and steps.",
        ("part",),
    ),
    Gauge(
        "npuscope_mfu_ratio",
        "FLOPs over what the ranks' peak allows in the time of the step. kernel_causal and"
        " kernel_full: FLOPs that kernels executed, by their shapes, attention counted as causal or"
        " full; matmul: of matrix multiplications alone. model and hfu: what the model of --model"
        " needs, and with what is recomputed. Mean of steps, by their length.",
        ("convention",),
    ),
    Gauge(
        "npuscope_loss_ratio",
        "Share of the steps' time that each term of the loss waterfall takes, achieved work"
        " included: they add up to 1.",
        ("term",),
    ),
    Gauge(
        "npuscope_job_masking_ratio",
        "Masking ratio: communication overlapped by computing over communication, all kinds.",
    ),
    Gauge(
        "npuscope_masking_ratio",
        "Masking ratio of a parallel kind: its communication overlapped by computing over all of"
        " it.",
        ("kind",),
    ),
    Gauge(
        "npuscope_exposed_seconds",
        "Exposed communication of a parallel kind, mean over ranks and steps; kinds exposed at"
        " the same time share that time, so kinds add up.",
        ("kind",),
    ),
    Gauge(
        "npuscope_exposed_part_seconds",
        "Exposed communication, mean over ranks and steps: transfer (moves bytes), peer_wait,"
        " absent_wait (for ranks that were not captured), pipeline_wait, or unknown_communication"
        " (moves bytes or waits); parts add up.",
        ("part",),
    ),
    Gauge(
        "npuscope_free_part_seconds",
        "Free time, mean of ranks and steps: host (it had not launched what came next), idle (it"
        " had), or free (launches do not tell which); parts add up.",
        ("part",),
    ),
    Gauge(
        "npuscope_free_ratio",
        "Idle time share: neither kernels nor communication run, over first start to last end.",
    ),
    Gauge(
        "npuscope_pipeline_wait_ratio",
        "Pipeline bubble share: time ranks of a stage wait to receive, over first start to last"
        " end.",
        ("stage",),
    ),
    Gauge("npuscope_train_step", "Last step in the training log."),
    Gauge("npuscope_train_loss", "Loss of that step, from the training log."),
    Gauge("npuscope_train_grad_norm", "Gradient norm of that step, from the training log."),
    Gauge("npuscope_train_step_seconds", "Time of that step, from the training log."),
    Gauge(
        "npuscope_train_tokens_per_second",
        "Tokens per second, from the training log, of the job or the device as logged.",
    ),
    Gauge("npuscope_train_mfu_ratio", "MFU reported in the training log."),
    Gauge(
        "npuscope_expert_load_max_over_mean",
        "Tokens of a layer's most loaded expert over the mean of its experts, mean of steps.",
        _LAYER,
        LAYERS,
    ),
    Gauge(
        "npuscope_expert_load_cv",
        "Standard deviation of a layer's expert loads over their mean, mean of steps.",
        _LAYER,
        LAYERS,
    ),
    Gauge(
        "npuscope_expert_load_gini", "Gini coefficient of a layer's expert loads.", _LAYER, LAYERS
    ),
    Gauge(
        "npuscope_expert_cold_experts",
        "Experts of a layer with less than a tenth of the mean load, mean of steps.",
        _LAYER,
        LAYERS,
    ),
    Gauge(
        "npuscope_expert_top_tokens",
        "Tokens per step of the expert at this position, 1 is the most loaded of its layer.",
        _TOP,
        LAYERS + 1,
    ),
    Gauge(
        "npuscope_expert_top_expert",
        "Number of the expert at this position.",
        _TOP,
        LAYERS + 1,
    ),
    Gauge(
        "npuscope_rank_info",
        ("Host, device and parallel coordinates of a rank."),
        (*_RANK, *_PLACE),
        RANKS,
    ),
    Gauge(
        "npuscope_rank_slow_score",
        "Straggler score of the rank: -log10 of its smallest corrected p-value, to 99.",
        _RANK,
        RANKS,
    ),
    Gauge(
        "npuscope_rank_caused_wait_seconds",
        "Waiting of all other ranks caused by this rank, per step.",
        _RANK,
        RANKS,
    ),
    Gauge(
        "npuscope_rank_suspect_info",
        "Why a rank is suspected: host, compute, frequency, alltoall_bytes, link or unknown.",
        (*_RANK, "verdict"),
        RANKS,
    ),
    Gauge(
        "npuscope_rank_suspect_captures",
        "Consecutive newest captures of the run in which the rank is suspected.",
        _RANK,
        RANKS,
    ),
    Gauge("npuscope_rank_step_seconds", "Length of a step, mean of steps.", _RANK, RANKS),
    Gauge("npuscope_rank_computing_seconds", "Computing in a step, mean of steps.", _RANK, RANKS),
    Gauge(
        "npuscope_rank_exposed_seconds",
        "Exposed communication per step, mean over steps.",
        _RANK,
        RANKS,
    ),
    Gauge(
        "npuscope_rank_free_seconds",
        "Time with neither a kernel nor an operation of the step (another step's may run), mean of"
        " steps.",
        _RANK,
        RANKS,
    ),
    Gauge(
        "npuscope_rank_masking_ratio",
        "Masking ratio: communication overlapped by computing over communication.",
        _RANK,
        RANKS,
    ),
    Gauge(
        "npuscope_rank_mfu_ratio",
        "FLOPs that the rank's kernels executed, over its peak in the time of its steps.",
        (*_RANK, "convention"),
        RANKS,
    ),
    Gauge(
        "npuscope_expert_tokens",
        "Tokens per step of each expert (--expert-detail).",
        (*_LAYER, "expert"),
        EXPERTS,
    ),
)
BY_NAME = {gauge.name: gauge for gauge in GAUGES}
