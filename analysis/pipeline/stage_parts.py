"""What makes stages unequal: layers, embedding, head, modules for further tokens, recompute."""

from __future__ import annotations

import polars as pl

from .passes import Pipeline

_EMBEDDING = r"(?i)^embedding|::embedding|^gather"  # not of positions
_ATTENTION = r"(?i)attention|flash"
_PARTS = ("layers_ns", "embedding_ns", "head_ns", "further_tokens_ns", "recompute_ns")


# metric: pipeline_stages
# What makes the stages of a pipeline unequal?
#
# Compute kernels of passes per micro-batch, mean over ranks and steps of a stage. Recompute: what
# backwards run of types whose gradients are types of their own; where all of these ran again, what
# forwards took. Embedding: by the type of the kernel. Head: kernels of types and shapes that only
# the stage of the last chunk has, for most micro-batches; sizes that vary with these (tokens of
# experts) make no other shape. Without shapes, or of that stage alone, it is not told from layers:
# unknown, as are further tokens. Further tokens: where that stage embeds again, as many layers, and
# heads of its. Layers: the rest; as many as forwards call attention.
#
# title: Work of pipeline stages
# meaning: What each pipeline stage computes for a micro-batch: layers, embedding, head, recompute.
# table: pipeline_stages
#
#   run                varchar  run of the training job
#   capture            varchar  ranks profiled at the same time
#   stage              integer  pipeline stage
#   layer_count        double   layers of the stage, further tokens' left out; NULL: no attention
#   compute_ns         bigint   compute kernels of a micro-batch's passes
#   layers_ns          bigint   of it, layers
#   embedding_ns       bigint   of it, embedding
#   head_ns            bigint   of it, the head; NULL: not told, it is in layers_ns
#   further_tokens_ns  bigint   of it, modules for further tokens (MTP); NULL: likewise
#   recompute_ns       bigint   of it, forwards that ran again
#   excess_ns          bigint   compute_ns above the mean of the stages
def pipeline_stages(pipeline: Pipeline) -> pl.DataFrame:
    """Rows of the metric; none where passes have no numbers."""
    micro_batches = pipeline.schedule.micro_batches
    if not micro_batches or pipeline.passes.is_empty():
        return pl.DataFrame(schema=_SCHEMA)
    order = pipeline.schedule.order
    first = order.routes[0][0][0] if order else 0
    last = order.routes[0][-1][0] if order else max(pipeline.present)
    kernels = _stage_kernels(pipeline, micro_batches, last)
    has_shapes = bool(kernels.filter(pl.col("stage") == last)["has_shapes"].any())
    rows = _stage_means(kernels, micro_batches)
    is_all = pl.col("ratio").fill_null(0).is_between(0.9, 1.5)
    extra = pl.col("embeddings").round() - (pl.lit(first == last)).cast(pl.Float64)
    rows = rows.with_columns(
        recompute=pl.when(is_all).then(pl.max_horizontal("forward", "again")).otherwise("again"),
        further=pl.when(pl.col("stage") == last).then(extra.clip(0)).otherwise(0.0),
    ).with_columns(
        rest=pl.col("compute") - pl.col("embedding") - pl.col("own") - pl.col("recompute")
    )
    layer = pl.col("rest") / pl.when(pl.col("attention") > 0).then("attention")
    share = pl.col("further") / (pl.col("further") + 1)
    rows = rows.with_columns(
        further_tokens=(layer * pl.col("further")).fill_null(0) + pl.col("own") * share,
        head=pl.col("own") * (1 - share),
    )
    whole_ns = {
        name: pl.col(name.removesuffix("_ns")).floor().cast(pl.Int64) for name in _PARTS[1:]
    }
    rows = rows.with_columns(compute_ns=pl.col("compute").floor().cast(pl.Int64), **whole_ns)
    mean = int(rows["compute_ns"].sum()) // max(rows.height, 1)
    is_unknown = (pl.col("stage") == last) & pl.lit(not has_shapes or len(pipeline.present) < 2)
    rows = rows.with_columns(
        head_ns=pl.when(~is_unknown).then("head_ns"),
        further_tokens_ns=pl.when(~is_unknown | (pl.col("further") == 0)).then("further_tokens_ns"),
    )
    return rows.select(
        pl.lit(pipeline.run).alias("run"), pl.lit(pipeline.capture).alias("capture"), "stage",
        layer_count=pl.when(pl.col("attention") > 0).then(pl.col("attention") - pl.col("further")),
        compute_ns="compute_ns",
        layers_ns=pl.col("compute_ns") - pl.sum_horizontal(_PARTS[1:]),
        **{name: pl.col(name) for name in _PARTS[1:]},
        excess_ns=(pl.col("compute_ns") - mean),
    ).cast(_SCHEMA)  # fmt: skip


def _stage_kernels(pipeline: Pipeline, micro_batches: int, last: int) -> pl.DataFrame:
    """Kernels of passes with their stage and how many lanes that has, and what each is
    (`is_forward`, `is_embedding`, ...). `is_own`: shapes that only the last stage has."""
    ops = pipeline.ops
    its = pipeline.work.filter(pl.col("piece").is_not_null())
    at = its["at"].to_numpy()
    stage = pipeline.lanes.select("lane", "stage")
    kernels = (
        its.with_columns(
            dur=pl.Series(ops.dur[at]), is_comm=pl.Series(ops.is_communication[at]),
            type=pl.Series(ops.types, dtype=pl.String)[ops.type[at]],
            shapes=ops.names["shapes"][at],
        )
        .filter(~pl.col("is_comm"))
        .join(stage, on="lane")
        .drop_nulls("stage")
    )  # fmt: skip
    lanes = kernels.group_by("stage").agg(lanes=pl.col("lane").n_unique())
    kernels = kernels.join(lanes, on="stage").with_columns(
        is_forward=pl.col("direction") == "F",
        is_seed=(pl.col("type") + "Grad").is_in(kernels["type"].unique().implode()),
        is_embedding=pl.col("type").str.contains(_EMBEDDING),
        is_attention=pl.col("type").str.contains(_ATTENTION),
        has_shapes=pl.col("shapes").is_not_null(),
    )
    kernels = _with_steady_shapes(kernels, micro_batches)
    others = kernels.filter(pl.col("stage") != last).select("direction", "type", "shapes").unique()
    return kernels.join(
        others.with_columns(is_common=pl.lit(value=True)), on=["direction", "type", "shapes"],
        how="left", nulls_equal=True,
    ).with_columns(
        is_own=(pl.col("stage") == last) & pl.col("is_common").is_null() & ~pl.col("is_embedding")
        & pl.lit(len(pipeline.present) > 1)
        & (_passes().over("stage", "direction", "type", "shapes") > _half(micro_batches))
    )  # fmt: skip


def _stage_means(kernels: pl.DataFrame, micro_batches: int) -> pl.DataFrame:
    """By stage: ns of a mean rank and micro-batch, how many embeddings and attentions it runs, and
    which part of each seed's forwards ran again (`ratio`, the least of them)."""
    time, is_forward = pl.col("dur"), pl.col("is_forward")
    again = pl.col("is_seed") & ~is_forward
    seeds = kernels.filter("is_seed").group_by("stage", "type").agg(
        ratio=(~pl.col("is_forward")).sum() / pl.col("is_forward").sum().clip(1)
    )  # fmt: skip
    whole = seeds.group_by("stage").agg(ratio=pl.col("ratio").min())
    return (
        kernels.group_by("stage")
        .agg(
            compute=time.sum(),
            embedding=time.filter("is_embedding").sum(),
            own=time.filter("is_own").sum(),
            again=time.filter(again).sum(),
            forward=time.filter(is_forward & ~pl.col("is_embedding") & ~pl.col("is_own")).sum(),
            embeddings=(pl.col("is_embedding") & is_forward).sum(),
            attention=(pl.col("is_attention") & is_forward).sum(),
            lanes=pl.col("lanes").first(),
        )
        # Whole sums first: those of fractions differ with the order of their rows.
        .with_columns(pl.exclude("stage", "lanes") / (pl.col("lanes") * micro_batches))
        .join(whole, on="stage", how="left")
        .sort("stage")
    )


def _passes() -> pl.Expr:
    return pl.struct("lane", "piece").n_unique()


def _half(micro_batches: int) -> pl.Expr:
    """Half of what a stage's lanes run of a chunk."""
    return pl.col("lanes") * micro_batches / 2


def _with_steady_shapes(kernels: pl.DataFrame, micro_batches: int) -> pl.DataFrame:
    """Kernels with `*` in `shapes` for each size that no more than half of the micro-batches have.

    A size is counted by shapes, of which a pass can run several: tokens of experts, of which there
    are many, stay rare.
    """
    keys = ["stage", "direction", "type", "shapes"]
    ran = kernels.group_by(keys).agg(passes=_passes(), lanes=pl.col("lanes").first())
    words = (
        ran.with_columns(word=pl.col("shapes").str.extract_all(r"\d+|\D+"))
        .with_columns(place=pl.int_ranges(pl.col("word").list.len()))
        .explode("word", "place")
    )
    here = pl.col("passes").sum().over("stage", "direction", "type", "place", "word")
    is_rare = pl.col("word").str.contains(r"\d") & (here <= _half(micro_batches))
    steady = (
        words.with_columns(word=pl.when(is_rare).then(pl.lit("*")).otherwise("word"))
        .group_by(keys)
        .agg(steady=pl.col("word").sort_by("place").str.join())
    )
    rows = kernels.join(steady, on=keys, how="left", nulls_equal=True)
    return rows.drop("shapes").rename({"steady": "shapes"})


_SCHEMA = pl.Schema({
    "run": pl.String, "capture": pl.String, "stage": pl.Int32, "layer_count": pl.Float64,
    "compute_ns": pl.Int64, **dict.fromkeys(_PARTS, pl.Int64), "excess_ns": pl.Int64,
})  # fmt: skip
