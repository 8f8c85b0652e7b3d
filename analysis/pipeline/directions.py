"""Which way each kernel works: forward, backward, or for the gradients of weights alone.

range of a pass (mstx) > operator of the framework (its thread, its name, its forward's thread)
    > name of the kernel ("...Grad") > what kernels of the same type and shapes do elsewhere
    > the kernels beside it
"""

from __future__ import annotations

import duckdb
import polars as pl

from npuscope.collector.store import store

FORWARD, BACKWARD, WEIGHTS = "F", "B", "W"
# What names of kernels and operators say of gradients, and what of matrices.
_GRADIENT = r"(?i)backward|grad|_bwd|bwd_|dgrad|wgrad"
_CUBE = r"(?i)matmul|gemm|conv\dd|attention|flash|linear|::(?:b?mm|addmm)$|::\w*mm_"
_PRODUCT = r"(?i)matmul|gemm|linear|::(?:b?mm|addmm)$|::\w*mm_"
_CUBE_CORES = ("AI_CORE", "MIX_AIC")
# Of a thread's operators that are backward by name, from which on all its kernels are.
_AUTOGRAD_SHARE = 0.05
_NUMBER_SHARE = 0.5  # of forward operators, and those without a number record no gradient
_SURE = 0.9  # of the kernels of a type and shapes
# Products of weight gradients alone, one after the other: no layer's backward has so many, its
# forward none. What may add these up between them.
_RUN, _RUN_FORWARD = 3, 2
_ADDED_UP = r"(?i)add|axpy|cast|copy|move|zeros|memset"
_MOST_WEIGHTS = 0.45  # of all products: with more, tokens are as many as features somewhere
# Ranges of a pass: `forward_step`, `backward mb 3`; a layer's own `forward` is none.
_MARK = (
    r"(?i)(forward|backward|fwd|bwd|wgrad).{0,3}(step|pass|micro|mb)"
    r"|micro.?batch.*(forward|backward|fwd|bwd|wgrad)"
)
_MARKED_WEIGHTS = r"(?i)wgrad"
_OPERATORS = """
    with _questions as (
        select rank, connection_id, any_value(operator_name) as operator,
            any_value(operator_thread_id) as thread, any_value(operator_start_ns) as operator_ns,
            coalesce(any_value(operator_start_ns), any_value(api_start_ns)) as launched_ns
        from launches
        where target in ('kernel', 'communication') and connection_id is not null
            and run = $run and capture = $capture
        group by all
    ),
    _facts as (
        select rank, thread_id as thread, start_ns as operator_ns,
            any_value(sequence_number) as sequence,
            any_value(forward_thread_id) as forward_thread
        from host_ops
        where kind = 'operator' and sequence_number >= 0 and run = $run and capture = $capture
        group by all
    ),
    _marked as (
        select rank, name as mark, start_ns, start_ns + dur_ns as end_ns,
            row_number() over (partition by rank order by start_ns) as mark_number
        from marks
        where kind = 'mstx' and dur_ns > 0 and regexp_matches(name, $pattern)
            and run = $run and capture = $capture
    )
    select _questions.rank, connection_id, operator, thread, sequence, forward_thread,
        case when launched_ns < end_ns then mark end as mark,
        case when launched_ns < end_ns then mark_number end as mark_number
    from _questions left join _facts using (rank, thread, operator_ns)
    asof left join _marked on _questions.rank = _marked.rank and launched_ns >= _marked.start_ns"""


def operators(con: duckdb.DuckDBPyConnection, run: str, capture: str) -> pl.DataFrame:
    """Of each launch: rank, connection_id, operator, thread, sequence, forward_thread, and the name
    and number of the range of a pass (mstx) that it lies in."""
    parameters = {"run": run, "capture": capture, "pattern": _MARK}
    return store.frame(con.sql(_OPERATORS, params=parameters))


def with_directions(kernels: pl.DataFrame) -> pl.DataFrame:
    """Kernels with `direction` (F, B, W) and `basis` (marks, operators or names), `is_cube`,
    `is_weight` (a product for the gradient of a weight; by its sizes where `is_sized`) and `row`,
    their place in that order.

    `kernels`: lane (rank and step), order (of the program, else of time), type, name, core, shapes,
    operator, thread, sequence, forward_thread, mark, mark_number.
    """
    named = pl.concat_str(["type", "name"], separator=" ", ignore_nulls=True)
    types = kernels.select("type", "name", "core", "shapes", "operator").unique()
    types = types.with_columns(
        is_gradient=named.str.contains(_GRADIENT),
        is_cube=pl.col("core").is_in(_CUBE_CORES).fill_null(value=False)
        | named.str.contains(_CUBE),
        is_product=named.str.contains(_PRODUCT),
        is_sum=named.str.contains(_ADDED_UP),
        is_backward_operator=pl.col("operator").str.contains(_GRADIENT),
        dims=pl.col("shapes").str.split(";").list.head(2),
    )
    rows = kernels.join(types, on=["type", "name", "core", "shapes", "operator"],
                         how="left", nulls_equal=True)  # fmt: skip
    rows = rows.sort("lane", "order", "start").with_row_index("row")
    rows = _with_weights(rows)
    threads = (
        rows.filter(pl.col("operator").is_not_null())
        .group_by("rank", "thread")
        .agg(
            is_autograd=(
                pl.col("is_backward_operator")
                | pl.col("forward_thread").gt(0).fill_null(value=False)
            ).mean()
            > _AUTOGRAD_SHARE
        )
    )  # fmt: skip
    several = threads.group_by("rank").agg(
        is_told=pl.col("is_autograd").any() & ~pl.col("is_autograd").all()
    )
    rows = rows.join(threads, on=["rank", "thread"], how="left", nulls_equal=True)
    rows = rows.join(several, on="rank", how="left")
    is_by_thread = pl.col("is_told").fill_null(value=False) & pl.col("operator").is_not_null()
    is_forward_type = (pl.col("type") + "Grad").is_in(rows["type"].unique().implode())
    rows = rows.with_columns(
        basis=pl.when(pl.col("mark").is_not_null())
        .then(pl.lit("marks"))
        .when(is_by_thread)
        .then(pl.lit("operators"))
        .otherwise(pl.lit("names")),
        seed=pl.when(pl.col("mark").is_not_null())
        .then(
            pl.when(pl.col("mark").str.contains(_MARKED_WEIGHTS))
            .then(pl.lit(WEIGHTS))
            .when(pl.col("mark").str.contains(r"(?i)backward|bwd"))
            .then(pl.lit(BACKWARD))
            .otherwise(pl.lit(FORWARD))
        )
        .when(is_by_thread)
        .then(pl.when("is_autograd").then(pl.lit(BACKWARD)).otherwise(pl.lit(FORWARD)))
        .when(pl.col("is_gradient") | pl.col("is_backward_operator").fill_null(value=False))
        .then(pl.lit(BACKWARD))
        .when(is_forward_type | named.str.contains(r"(?i)forward|_fwd|fwd_"))
        .then(pl.lit(FORWARD)),
    )
    rows = _with_unrecorded(rows)
    near = (
        pl.col("seed").forward_fill().over("lane").alias("before"),
        pl.col("seed").backward_fill().over("lane").alias("after"),
    )
    rows = rows.with_columns(near)
    # What lies between two of one way goes that way; most of a type and shapes decide for all.
    seeds = (
        rows.filter((pl.col("before") == pl.col("after")) & pl.col("seed").is_null())
        .group_by("type", "shapes")
        .agg(backward=(pl.col("before") == BACKWARD).mean())
    )
    rows = rows.join(seeds, on=["type", "shapes"], how="left", nulls_equal=True)
    learned = (
        pl.when(pl.col("backward") > _SURE)
        .then(pl.lit(BACKWARD))
        .when(pl.col("backward") < 1 - _SURE)
        .then(pl.lit(FORWARD))
    )
    direction = pl.coalesce("seed", learned, "before", "after")
    return (
        _with_runs(rows)
        .with_columns(direction=pl.when("is_run").then(pl.lit(WEIGHTS)).otherwise(direction))
        .drop("before", "after", "backward", "seed", "dims", "is_told", "is_run", "is_sum")
    )


def _with_weights(kernels: pl.DataFrame) -> pl.DataFrame:
    """With `is_weight`: a product of two matrices that adds up over tokens, and cannot be another;
    tokens are the commonest first size of a product. And `is_sized`: whether sizes tell it."""
    cube = kernels.filter("is_product").select(
        pl.col("dims").list.first().str.split(",").list.first()
    )
    common = cube.to_series().drop_nulls().mode() if cube.height else pl.Series(dtype=pl.String)
    tokens = common.sort()[0] if len(common) else "?"
    sizes = [pl.col("dims").list.get(at, null_on_oob=True).str.split(",") for at in (0, 1)]
    a, b, c, d = (one.list.get(at, null_on_oob=True) for one in sizes for at in (-2, -1))
    # Which sizes may be summed over: with one matrix as it is or transposed.
    summed = [(b, b == c), (b, b == d), (a, a == c)]
    is_tokens = pl.any_horizontal(fits & (size == tokens) for size, fits in summed)
    is_other = pl.any_horizontal(fits & (size != tokens) for size, fits in summed)
    is_weight = (pl.col("is_product") & is_tokens & ~is_other).fill_null(value=False)
    kernels = kernels.with_columns(is_weight=is_weight)
    share = kernels.filter("is_product")["is_weight"].mean()
    tells = isinstance(share, float) and 0 < share < _MOST_WEIGHTS
    return kernels.with_columns(
        pl.col("is_weight") & pl.lit(tells),
        is_sized=pl.col("shapes").is_not_null() & pl.lit(tells),
    )


def _with_unrecorded(kernels: pl.DataFrame) -> pl.DataFrame:
    """With `is_weight` also where sizes do not tell it: a product that no gradient is recorded for
    (its operator has no number), where most forward operators have one."""
    is_forward = pl.col("seed") == FORWARD
    numbered = pl.col("sequence").is_not_null().filter(is_forward).mean().over("rank")
    return kernels.with_columns(
        is_weight=pl.col("is_weight")
        | (
            pl.col("is_product")
            & ~pl.col("is_sized")
            & is_forward
            & pl.col("sequence").is_null()
            & (numbered > _NUMBER_SHARE)
        ).fill_null(value=False)
    )


def _with_runs(kernels: pl.DataFrame) -> pl.DataFrame:
    """With `is_run`: of a run of products for gradients of weights alone, or what adds these up
    between them."""
    is_break = ~pl.col("is_weight") & (pl.col("is_product") | ~pl.col("is_sum"))
    one = pl.col("is_weight").cast(pl.Int32)
    run = ["lane", "run"]
    return (
        kernels.with_columns(run=is_break.cum_sum().over("lane"))
        .with_columns(
            is_run=(
                one.sum().over(run)
                >= pl.when(pl.col("seed") == FORWARD).then(_RUN_FORWARD).otherwise(_RUN)
            )
            & (one.cum_sum().over(run) > 0)
            & (one.cum_sum(reverse=True).over(run) > 0)
        )
        .drop("run")
    )
