"""Tokens of a grouped matmul by its shapes, and what each of them is multiplied with."""

from __future__ import annotations

from npuscope.analysis.flops.kernels.shapes import Cell, Tensor, tensors

Grouped = tuple[str | None, int | None, int, int, int]


def grouped_shape(input_shapes: Cell, input_dtypes: Cell, output_shapes: Cell) -> Grouped | None:
    """dtype, experts (of the rank; None: not told), inner, columns, tokens; None where unclear.

    Three ways, as in `flops.matrices.grouped`: rows of one x split over the matrices of w (tokens
    are rows of x); x and w whose shared rows are split, with one result for each expert (a weight's
    gradient: tokens are these rows); lists of x, w and y, one of each for an expert.
    """
    try:
        given, made = tensors(input_shapes, input_dtypes), tensors(output_shapes)
    except ValueError:
        return None
    inputs = [one for one in given if one is not None]
    results = [one for one in made if one is not None]
    if len(inputs) < 2 or not results:
        return None
    x, w, y = inputs[0], inputs[1], results[0]
    if len(results) > 1:
        return _listed(given[: len(results)], results)
    if len(x.shape) != 2:
        return None
    if len(w.shape) == 2 and len(y.shape) == 3:
        return _shared(x, w, y)
    if len(w.shape) < 3 or y.shape[0] != x.shape[0]:
        return None
    return x.dtype, w.shape[0], x.shape[1], y.shape[-1], x.shape[0]


def _listed(xs: tuple[Tensor | None, ...], ys: list[Tensor]) -> Grouped | None:
    held = [x for x in xs if x is not None and len(x.shape) == 2]
    if len(held) != len(ys) or len({x.shape[1] for x in held}) != 1:
        return None
    tokens = sum(x.shape[0] for x in held)
    return held[0].dtype, len(held), held[0].shape[1], ys[0].shape[-1], tokens


def _shared(x: Tensor, w: Tensor, y: Tensor) -> Grouped | None:
    experts, rows, columns = y.shape
    shared = {
        tokens
        for tokens, inner in (x.shape, x.shape[::-1])
        for other, outer in (w.shape, w.shape[::-1])
        if inner == rows and outer == columns and tokens == other
    }
    return (x.dtype, experts, rows, columns, shared.pop()) if len(shared) == 1 else None
