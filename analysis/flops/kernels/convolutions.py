"""FLOPs of convolutions: every element of the forward's result takes Cin x window products.

The gradients multiply as often: that of the input by the filter, that of the filter by the input.
So all three are 2 x |result of the forward| x elements of the filter for one output channel.

NC1HWC0 and FRACTAL_Z round channels up to blocks. Where there is one block only, most of it may be
filling (an image's 3 channels in a block of 8 or 16), so that nothing is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from .matrices import Product, Unresolved
from .shapes import Tensor

_BLOCKED = ("NC1HWC0", "NDC1HWC0")
_OUTPUT_FIRST = ("NCHW", "NCDHW", "NHWC", "NDHWC", "ND", None)
_OUTPUT_LAST = ("HWCN", "DHWCN")
_CUBE = 16  # output channels of a filter are rounded up to it


def forward(given: Sequence[Tensor | None], made: Sequence[Tensor | None]) -> Product:
    """Conv2D, Conv3D: input, filter, mostly a bias. Raises Unresolved."""
    x, w, y = _wide(given, 2) + _wide(made, 1)
    return _convolved(x, w, y)


def of_input(given: Sequence[Tensor | None], made: Sequence[Tensor | None]) -> Product:
    """Gradient of the input, from filter and gradient of the result. Raises Unresolved."""
    w, y, x = _wide(given, 2) + _wide(made, 1)
    return _convolved(x, w, y)


def of_filter(given: Sequence[Tensor | None], made: Sequence[Tensor | None]) -> Product:
    """Gradient of the filter, from input and gradient of the result. Raises Unresolved."""
    x, y, w = _wide(given, 2) + _wide(made, 1)
    return _convolved(x, w, y)


def _wide(tensors: Sequence[Tensor | None], count: int) -> list[Tensor]:
    """The first ones that are no biases or lists of sizes. Raises Unresolved for too few."""
    found = [one for one in tensors if one is not None and len(one.shape) >= 4][:count]
    if len(found) < count:
        raise Unresolved("shapes are missing")
    return found


def _convolved(x: Tensor, w: Tensor, y: Tensor) -> Product:
    if (w.layout or "").startswith("FRACTAL_Z"):
        return _blocked(x, w, y)
    channels = (
        w.shape[0] if w.layout in _OUTPUT_FIRST
        else w.shape[-1] if w.layout in _OUTPUT_LAST else 0
    )  # fmt: skip
    if channels == 0 or x.layout in _BLOCKED or y.layout in _BLOCKED:
        raise Unresolved("the filter's layout is not known")
    if channels not in (y.shape[1], y.shape[-1]):
        raise Unresolved("the shapes are not those of a convolution")
    return Product(2 * y.element_count * (w.element_count // channels))


def _blocked(x: Tensor, w: Tensor, y: Tensor) -> Product:
    """Filter as (C1 x window, N1, N0, C0), others as (N, [D,] C1, H, W, C0)."""
    if x.layout not in _BLOCKED or y.layout not in _BLOCKED or len(w.shape) != 4:
        raise Unresolved("the filter's layout is not known")
    into, out = x.shape[-4], y.shape[-4]
    window_blocks, blocks, block, element = w.shape
    made = out * y.shape[-1]
    if min(into, out) <= 1:
        raise Unresolved("channels are known only as at most one block")
    if (
        window_blocks % into or element != x.shape[-1] or prod((blocks, block)) - made >= _CUBE
        or blocks * block < made
    ):  # fmt: skip
        raise Unresolved("the shapes are not those of a convolution in one group")
    return Product(2 * y.element_count * window_blocks * element, is_rounded=True)
