"""Bars and lines as SVG files, so that a benchmark needs no plotting library."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

WIDTH, LEFT, RIGHT, ROW, TOP = 860, 300, 90, 26, 60
OURS, OTHERS = "#1f77b4", "#9a9a9a"


def bars(file: Path, title: str, rows: Sequence[tuple[str, float, bool]], *, unit: str) -> None:
    """Write horizontal bars on a logarithmic scale. rows: (label, value, whether it is flowshare's)."""
    low = 10 ** math.floor(math.log10(min(value for _, value, _ in rows)))
    high = 10 ** math.ceil(math.log10(max(value for _, value, _ in rows)))
    span = math.log10(high / low) or 1.0
    inner, height = WIDTH - LEFT - RIGHT, TOP + ROW * len(rows) + 40

    def x(value: float) -> float:
        return LEFT + inner * math.log10(value / low) / span

    pieces = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="16" y="28" font-size="16">{escape(title)}</text>',
    ]
    tick = low
    while tick <= high:
        pieces.append(f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP - 8}" y2="{height - 32}" stroke="#ddd"/>')
        pieces.append(
            f'<text x="{x(tick):.1f}" y="{height - 14}" font-size="11" text-anchor="middle">{_text(tick)} {unit}</text>'
        )
        tick *= 10
    for number, (label, value, ours) in enumerate(rows):
        y = TOP + ROW * number
        pieces += [
            f'<text x="{LEFT - 8}" y="{y + 14}" font-size="12" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{max(1.0, x(value) - LEFT):.1f}" height="{ROW - 8}" '
            f'fill="{OURS if ours else OTHERS}"/>',
            f'<text x="{x(value) + 6:.1f}" y="{y + 14}" font-size="12">{_text(value)}</text>',
        ]
    file.write_text("\n".join([*pieces, "</svg>", ""]))


COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2", "#7f7f7f")
DASHES = ("", "6 3", "2 3")
"""Lines differ by colour first, then by these."""
PLOT, LEGEND, INNER = 420, 300, 480


def lines(
    file: Path, title: str, series: Sequence[tuple[str, Sequence[tuple[float, float]]]], *, x_label: str, y_label: str
) -> None:
    """Write lines on two logarithmic scales to the base of 2, and the line y = x beside them as the ideal.

    series: (label, points); what is below 1 is drawn at 1.
    """
    points = [point for _, each in series for point in each]
    low, high = 0, math.ceil(max([1.0, *(math.log2(value) for point in points for value in point if value > 0)]))
    left, top, height = 60, 66, 66 + PLOT + 50

    def place(x: float, y: float) -> str:
        across, up = ((math.log2(max(1.0, value)) - low) / (high - low) for value in (x, y))
        return f"{left + INNER * across:.1f},{top + PLOT * (1 - up):.1f}"

    pieces = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + INNER + LEGEND}" height="{height}" '
        'font-family="sans-serif">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="16" y="28" font-size="16">{escape(title)}</text>',
        f'<text x="{left + INNER / 2:.0f}" y="{height - 8}" font-size="12" text-anchor="middle">'
        f"{escape(x_label)}</text>",
        f'<text x="16" y="{top - 16}" font-size="12">{escape(y_label)}</text>',
    ]
    for exponent in range(low, high + 1):
        tick = 2.0**exponent
        (x, bottom), (_, y) = (place(*at).split(",") for at in ((tick, 2.0**low), (2.0**low, tick)))
        pieces += [
            f'<line x1="{x}" x2="{x}" y1="{top}" y2="{bottom}" stroke="#ddd"/>',
            f'<line x1="{left}" x2="{left + INNER}" y1="{y}" y2="{y}" stroke="#ddd"/>',
            f'<text x="{x}" y="{top + PLOT + 18}" font-size="11" text-anchor="middle">{_text(tick)}</text>',
            f'<text x="{left - 8}" y="{float(y) + 4:.1f}" font-size="11" text-anchor="end">{_text(tick)}</text>',
        ]
    ends = f"{place(2.0**low, 2.0**low)} {place(2.0**high, 2.0**high)}"
    pieces.append(f'<polyline points="{ends}" fill="none" stroke="#bbb" stroke-width="4"/>')
    for number, (label, each) in enumerate(series):
        look = f'stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="2" '
        look += f'stroke-dasharray="{DASHES[number // len(COLOURS) % len(DASHES)]}"'
        y, x = top + 10 + 20 * number, left + INNER + 20
        pieces += [
            f'<polyline points="{" ".join(place(*point) for point in each)}" fill="none" {look}/>',
            f'<line x1="{x}" x2="{x + 24}" y1="{y}" y2="{y}" {look}/>',
            f'<text x="{x + 30}" y="{y + 4}" font-size="12">{escape(label)}</text>',
        ]
    file.write_text("\n".join([*pieces, "</svg>", ""]))


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"
