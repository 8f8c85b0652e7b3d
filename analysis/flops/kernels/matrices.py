"""FLOPs of matrix products from the shapes of what goes in and what comes out.

A product of (M x K) and (K x N) is 2 M K N FLOPs (a multiplication and an addition each). The
shapes do not say which input is transposed: M and N are the result's, and K is the dimension that
both inputs have beside them. Where that gives not exactly one K, nothing is said.

FRACTAL_NZ holds a matrix (R x C) as blocks (C1, R1, R0, C0), R and C rounded up to whole blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import isqrt, prod

from .shapes import Tensor

NZ = "FRACTAL_NZ"
_PACKS = (1, 2, 8)  # elements of a quantised matrix in one that is printed: int4 in int8, in int32


@dataclass(frozen=True, slots=True)
class Matrix:
    """Matrices (`rows` x `columns`), one for each index of `batch`.

    The true size is at most `*_block` - 1 smaller than the printed one: more than 1 where the
    layout rounds up.
    """

    batch: tuple[int, ...]
    rows: int
    columns: int
    row_block: int = 1
    column_block: int = 1

    @property
    def is_rounded(self) -> bool:
        return self.row_block > 1 or self.column_block > 1

    @property
    def transpose(self) -> Matrix:
        return Matrix(self.batch, self.columns, self.rows, self.column_block, self.row_block)


@dataclass(frozen=True, slots=True)
class Product:
    """FLOPs of one kernel; `is_rounded`: from sizes that the layout rounded up."""

    flops: int
    is_rounded: bool = False


class UnclearShapes(Exception):
    """What the shapes do not tell, in a few words; `tokens` of attention where they tell these."""

    def __init__(self, reason: str, tokens: int | None = None) -> None:
        super().__init__(reason)
        self.tokens = tokens


def matrix(tensor: Tensor) -> Matrix:
    """The matrices of a tensor: its last two dimensions, or its blocks. Raises UnclearShapes."""
    shape = tensor.shape
    if (tensor.layout or "").startswith(NZ) and len(shape) >= 4:
        columns, rows, row_block, column_block = shape[-4:]
        return Matrix(shape[:-4], rows * row_block, columns * column_block, row_block, column_block)
    if len(shape) < 2:
        raise UnclearShapes("a vector, where a matrix is expected")
    return Matrix(shape[:-2], shape[-2], shape[-1])


def plain_product(x: Tensor, w: Tensor, y: Tensor) -> Product:
    """x times w is y, each transposed or not, with batches in front. Raises UnclearShapes."""
    for one, other, result in _readings(x, w, y):
        products = {
            2 * prod(result.batch) * rows * columns * inner
            for rows, columns, inner in _sizes(one, other, result)
        }
        if len(products) == 1:
            rounded = one.is_rounded or other.is_rounded or result.is_rounded
            return Product(products.pop(), rounded and not _is_exact(one, other, result))
    raise UnclearShapes("the shapes are not those of one matrix product")


def quantised_product(x: Tensor, w: Tensor, y: Tensor) -> Product:
    """As `plain_product`, but elements of w may be packed, several in one. Raises UnclearShapes."""
    try:
        return plain_product(x, w, y)
    except UnclearShapes:
        rows, columns = prod(y.shape[:-1]), y.shape[-1]
        inner = x.element_count // rows if rows and x.element_count % rows == 0 else 0
        if inner and inner in x.shape[-2:]:
            batch = prod(w.shape[:-2]) if w.layout is None or not w.layout.startswith(NZ) else 1
            if any(w.element_count * packed == batch * inner * columns for packed in _PACKS):
                return Product(2 * rows * columns * inner)
        raise


def permuted_product(x: Tensor, w: Tensor, y: Tensor) -> Product:
    """Batched products whose axes lie in any order: by their sizes alone. Raises UnclearShapes.

    |x| |w| |y| is (B M K N) squared times B, the batches of w.
    """
    batch = prod(w.shape[:-2])
    sizes = x.element_count * w.element_count * y.element_count
    root = isqrt(sizes // batch) if batch else 0
    if not root or root * root * batch != sizes or len(w.shape) < 3:
        raise UnclearShapes("the sizes are not those of one batched matrix product")
    return Product(2 * root)


def gathered_product(x: Tensor, w: Tensor, y: Tensor) -> Product:
    """Rows of x are collected from other ranks first; the product of all of them is y."""
    return _by_inner(x, w, y, prod(y.shape[:-1]))


def scattered_product(x: Tensor, w: Tensor, y: Tensor) -> Product:
    """The product of x and w is spread over ranks afterwards; y is this rank's part."""
    return _by_inner(x, w, y, prod(x.shape[:-1]))


def _by_inner(x: Tensor, w: Tensor, y: Tensor, rows: int) -> Product:
    inner, columns = x.shape[-1], y.shape[-1]
    weights = matrix(w)
    for held in (weights, weights.transpose):
        if _fits(inner, held.rows, held.row_block) and _fits(
            columns, held.columns, held.column_block
        ):
            return Product(2 * rows * inner * columns)
    raise UnclearShapes("the shapes are not those of one matrix product")


def grouped_product(
    input_tensors: Sequence[Tensor | None], outputs: Sequence[Tensor | None]
) -> Product:
    """Many products in one kernel; rows of all groups together are known. Raises UnclearShapes.

    Three ways: one x whose rows are split over the matrices of w; x and w whose shared rows are
    split, with one result for each group (a weight's gradient); lists of x, w and y.
    """
    inputs, results = _present(input_tensors), _present(outputs)
    if len(inputs) < 2 or not results:
        raise UnclearShapes("shapes are missing")
    x, w, y = inputs[0], inputs[1], results[0]
    if len(results) > 1 and len(input_tensors) >= 2 * len(results):
        lists = [input_tensors[: len(results)], input_tensors[len(results) : 2 * len(results)]]
        if all(one is not None and len(one.shape) == 2 for one in lists[0]):
            return _sum_of_products(lists[0], lists[1], results)
    if len(x.shape) != 2:
        raise UnclearShapes("the rows of the groups are not known")
    if len(matrix(w).batch) == 0 and len(y.shape) == 3:
        return _shared_rows(x, w, y)
    weights = matrix(w)
    for held in (weights, weights.transpose):
        if _fits(x.shape[1], held.rows, held.row_block) and y.shape[0] == x.shape[0]:
            for halves in (1, 2):  # SwiGLU in the same kernel makes one column of two
                if _fits(halves * y.shape[-1], held.columns, held.column_block):
                    return Product(2 * x.element_count * halves * y.shape[-1])
    if weights.batch or len(y.shape) != 2:
        raise UnclearShapes("the shapes are not those of grouped matrix products")
    return _shared_rows(x, w, y)


def _sum_of_products(
    xs: Sequence[Tensor | None], ws: Sequence[Tensor | None], ys: Sequence[Tensor]
) -> Product:
    parts = []
    for x, w, y in zip(xs, ws, ys, strict=True):
        if x is None or w is None:
            raise UnclearShapes("shapes are missing")
        parts.append(plain_product(x, w, y))
    return Product(sum(part.flops for part in parts), any(part.is_rounded for part in parts))


def _shared_rows(x: Tensor, w: Tensor, y: Tensor) -> Product:
    """y has the groups' results one behind the other, or below each other in one matrix."""
    *groups, rows, columns = y.shape
    counted = {
        x.element_count * columns
        for one, other in product(((0, 1), (1, 0)), ((0, 1), (1, 0)))
        if x.shape[one[0]] == w.shape[other[0]] and w.shape[other[1]] == columns
        if rows == x.shape[one[1]]
        or (not groups and x.shape[one[1]] and not rows % x.shape[one[1]])
    }
    if len(counted) != 1:
        raise UnclearShapes("the shapes are not those of grouped matrix products")
    return Product(2 * counted.pop())


def _present(inputs: Sequence[Tensor | None]) -> list[Tensor]:
    return [one for one in inputs if one is not None]


def _readings(x: Tensor, w: Tensor, y: Tensor) -> Iterator[tuple[Matrix, Matrix, Matrix]]:
    """What the tensors can be as matrices: as printed, with vectors as matrices of one row or
    column, with the batch of x as further rows."""
    plain = [one.layout is None or not one.layout.startswith(NZ) for one in (x, w, y)]
    if all(plain) and (len(x.shape) == 1 or len(w.shape) == 1):
        one = Matrix((), 1, x.shape[0]) if len(x.shape) == 1 else matrix(x)
        other = Matrix((), w.shape[0], 1) if len(w.shape) == 1 else matrix(w)
        rows, columns = min(one.rows, y.element_count), y.element_count // max(one.rows, 1)
        yield one, other, Matrix((), rows, columns)
        return
    one, other = matrix(x), matrix(w)
    result = matrix(y) if len(y.shape) > 1 else Matrix((), 1, y.shape[0])
    if all(_is_batch(held.batch, result.batch) for held in (one, other)):
        yield one, other, result
    if not other.batch and all(plain) and (one.batch or result.batch):
        yield (
            Matrix((), prod(x.shape[:-1]), x.shape[-1]),
            other,
            Matrix((), prod(y.shape[:-1]), y.shape[-1]),
        )


def _is_batch(batch: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether a batch broadcasts to the whole."""
    if len(batch) > len(whole):
        return prod(batch) == prod(whole)
    ends = whole[len(whole) - len(batch) :]
    return all(size in (1, end) for size, end in zip(batch, ends, strict=True))


def _sizes(one: Matrix, other: Matrix, result: Matrix) -> Iterator[tuple[int, int, int]]:
    """(M, N, K) of every way to transpose the inputs that fits; the least of rounded sizes."""
    for left, right in product((one, one.transpose), (other, other.transpose)):
        rows = _same(left.rows, left.row_block, result.rows, result.row_block)
        columns = _same(right.columns, right.column_block, result.columns, result.column_block)
        inner = _same(left.columns, left.column_block, right.rows, right.row_block)
        if rows is not None and columns is not None and inner is not None:
            yield rows, columns, inner


def _same(size: int, block: int, other: int, other_block: int) -> int | None:
    """The size that two printed ones stand for, each rounded up to its block; None: none."""
    least = min(size, other)
    return least if size - least < block and other - least < other_block else None


def _fits(size: int, printed: int, block: int) -> bool:
    return _same(size, 1, printed, block) == size


def _is_exact(one: Matrix, other: Matrix, result: Matrix) -> bool:
    """Whether each of M, K and N is printed without rounding by one of those that have it."""
    return any(
        1 in (left.row_block, result.row_block)
        and 1 in (right.column_block, result.column_block)
        and 1 in (left.column_block, right.row_block)
        and next(iter(_sizes(left, right, result)), None) is not None
        for left, right in product((one, one.transpose), (other, other.transpose))
    )
