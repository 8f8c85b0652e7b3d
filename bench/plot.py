"""A plot of a few curves on logarithmic axes, as SVG text that a repository can keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 640, 400, 70, 50, 40, 20
_COLOURS = ("#1f6feb", "#8b949e", "#d29922", "#3fb950")


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of positive x and y."""

    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


def draw(title: str, x_name: str, y_name: str, curves: Sequence[Curve]) -> str:
    """The plot as SVG; axes reach whole powers of ten."""
    points = [point for curve in curves for point in curve.points]
    spans = [
        (floor(log10(min(values))), max(ceil(log10(max(values))), floor(log10(min(values))) + 1))
        for values in zip(*points, strict=True)
    ]

    def place(point: tuple[float, float]) -> tuple[float, float]:
        """Position of a point in the picture."""
        shares = [
            (log10(v) - low) / (high - low) for v, (low, high) in zip(point, spans, strict=True)
        ]
        x = _LEFT + shares[0] * (_WIDTH - _LEFT - _RIGHT)
        return x, _HEIGHT - _BOTTOM - shares[1] * (_HEIGHT - _BOTTOM - _TOP)

    (x_low, x_high), (y_low, y_high) = spans
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_WIDTH / 2, 22, title, size=15),
        _text((_LEFT + _WIDTH) / 2, _HEIGHT - 12, x_name),
        f'<text transform="translate(18,{_HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
        f"{y_name}</text>",
    ]
    for power in range(x_low, x_high + 1):
        x, y = place((10.0**power, 10.0**y_low))
        parts += [_line(x, y, x, _TOP), _text(x, y + 18, f"{10.0**power:g}")]
    for power in range(y_low, y_high + 1):
        x, y = place((10.0**x_low, 10.0**power))
        parts += [_line(x, y, _WIDTH - _RIGHT, y), _text(x - 22, y + 4, f"{10.0**power:g}")]
    for number, curve in enumerate(curves):
        colour, placed = _COLOURS[number % len(_COLOURS)], [place(p) for p in curve.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        dash = ' stroke-dasharray="6 4"' if curve.dashed else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}"'
                     f' stroke-width="2"{dash}/>')  # fmt: skip
        if not curve.dashed:
            parts += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in placed
            ]
        parts.append(_text(_LEFT + 70, _TOP + 20 + 18 * number, curve.name, colour=colour))
    return "\n".join([*parts, "</svg>", ""])


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:.1f},{y1:.1f}L{x2:.1f},{y2:.1f}" stroke="#d0d7de"/>'


def _text(x: float, y: float, text: str, *, size: int = 12, colour: str = "#24292f") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}"'
        f' text-anchor="middle">{text}</text>'
    )
