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
# What `with_directions` returns: texts, which take the memory, have told theirs by then.
_COLUMNS = (
    "row", "at", "lane", "start", "dur", "stream", "type", "sequence", "mark_number", "order",
    "is_launched", "is_cube", "is_product", "is_sized", "is_weight", "basis", "direction",
)  # fmt: skip
_OPERATORS = """
    with _questions as (
        select rank, connection_id, any_value(operator_name) as operator,
            any_value(operator_thread_id) as thread, any_value(operator_start_ns) as operator_ns,
            coalesce(any_value(operator_start_ns), any_value(api_start_ns)) as launched_ns
        from launches
        where target in ('kernel', 'communication') and connection_id is not null
            and run = $run and capture = $capture and rank between $first and $last
        group by all
    ),
    _facts as (
        select rank, thread_id as thread, start_ns as operator_ns,
            any_value(sequence_number) as sequence,
            any_value(forward_thread_id) as forward_thread
        from host_ops
        where kind = 'operator' and sequence_number >= 0 and run = $run and capture = $capture
            and rank between $first and $last
        group by all
    ),
    _marked as (
        select rank, name as mark, start_ns, start_ns + dur_ns as end_ns,
            row_number() over (partition by rank order by start_ns) as mark_number
        from marks
        where kind = 'mstx' and dur_ns > 0 and regexp_matches(name, $pattern)
            and run = $run and capture = $capture and rank between $first and $last
    )
    select _questions.rank, connection_id, operator, thread, sequence, forward_thread,
        case when launched_ns < end_ns then mark end as mark,
        case when launched_ns < end_ns then mark_number end as mark_number
    from _questions left join _facts using (rank, thread, operator_ns)
    asof left join _marked on _questions.rank = _marked.rank and launched_ns >= _marked.start_ns"""


def operators(
    con: duckdb.DuckDBPyConnection, run: str, capture: str, ranks: dict[str, int]
) -> pl.DataFrame:
    """Of each launch of some ranks (a part of `rank_parts`): rank, connection_id, operator, thread,
    sequence, forward_thread, and the name and number of the range of a pass (mstx) that it lies
    in."""
    parameters = {"run": run, "capture": capture, "pattern": _MARK, **ranks}
    return store.frame(con.sql(_OPERATORS, params=parameters))


def with_directions(kernels: pl.DataFrame) -> pl.DataFrame:
    """Kernels with `direction` (F, B, W) and `basis` (marks, operators or names), `is_cube`,
    `is_weight` (a product for the gradient of a weight; by its sizes where `is_sized`) and `row`,
    their place in that order.

    `kernels`: lane (rank and step), order (of the program, else of time), type, name, core, shapes,
    operator, thread, sequence, forward_thread, mark, mark_number.
    """
    named = pl.concat_str(["type", "name"], separator=" ", ignore_nulls=True)
    likes = ["type", "name", "core", "shapes", "operator"]
    types = kernels.group_by(likes).agg(count=pl.len())
    types = types.with_columns(
        is_gradient=named.str.contains(_GRADIENT),
        is_cube=pl.col("core").is_in(_CUBE_CORES).fill_null(value=False)
        | named.str.contains(_CUBE),
        is_product=named.str.contains(_PRODUCT),
        is_sum=named.str.contains(_ADDED_UP),
        is_backward_operator=pl.col("operator").str.contains(_GRADIENT),
        is_operator=pl.col("operator").is_not_null(),
        is_forward=(pl.col("type") + "Grad").is_in(kernels["type"].unique().implode())
        | named.str.contains(r"(?i)forward|_fwd|fwd_"),
        dims=pl.col("shapes").str.split(";").list.head(2),
    )
    types = _with_weights(types).drop("count", "dims")
    # What a kernel is called is told: only what was made of it is carried along.
    rows = kernels.join(types, on=likes, how="left", nulls_equal=True)
    rows = rows.drop("name", "core", "operator").sort("lane", "order", "start")
    rows = rows.with_row_index("row")
    threads = (
        rows.filter("is_operator")
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
    is_by_thread = pl.col("is_told").fill_null(value=False) & pl.col("is_operator")
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
        .when("is_forward")
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
        .select(_COLUMNS)
    )


def _with_weights(types: pl.DataFrame) -> pl.DataFrame:
    """Of kernels that are alike, `count` of them: with `is_weight`, a product of two matrices that
    adds up over tokens, and cannot be another; tokens are the commonest first size of a product.
    And `is_sized`: whether sizes tell it."""
    first = pl.col("dims").list.first().str.split(",").list.first()
    common = (
        types.filter("is_product")
        .group_by(size=first)
        .agg(pl.col("count").sum())
        .drop_nulls("size")
        .sort("count", "size", descending=[True, False])
    )
    tokens = common["size"][0] if common.height else "?"
    sizes = [pl.col("dims").list.get(at, null_on_oob=True).str.split(",") for at in (0, 1)]
    a, b, c, d = (one.list.get(at, null_on_oob=True) for one in sizes for at in (-2, -1))
    # Which sizes may be summed over: with one matrix as it is or transposed.
    summed = [(b, b == c), (b, b == d), (a, a == c)]
    is_tokens = pl.any_horizontal(fits & (size == tokens) for size, fits in summed)
    is_other = pl.any_horizontal(fits & (size != tokens) for size, fits in summed)
    is_weight = (pl.col("is_product") & is_tokens & ~is_other).fill_null(value=False)
    types = types.with_columns(is_weight=is_weight)
    weights, products = types.select(
        pl.col("count").filter(pl.col(name)).sum().alias(name)
        for name in ("is_weight", "is_product")
    ).row(0)
    tells = 0 < weights / max(products, 1) < _MOST_WEIGHTS
    return types.with_columns(
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
    is_first = is_break | (pl.col("lane") != pl.col("lane").shift()).fill_null(value=True)
    one = pl.col("is_weight").cast(pl.Int32)
    so_far = one.cum_sum()
    before = pl.when(is_first).then(so_far - one).forward_fill()
    whole = pl.when(is_first.shift(-1, fill_value=True)).then(so_far).backward_fill()
    least = pl.when(pl.col("seed") == FORWARD).then(_RUN_FORWARD).otherwise(_RUN)
    return kernels.with_columns(
        is_run=(whole - before >= least) & (so_far > before) & (so_far - one < whole)
    )
