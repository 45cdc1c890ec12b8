"""A bar chart as an SVG file, so that a benchmark needs no plotting library."""

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
            f'<text x="{x(tick):.1f}" y="{height - 14}" font-size="11" text-anchor="middle">{tick:,.0f} {unit}</text>'
        )
        tick *= 10
    for number, (label, value, ours) in enumerate(rows):
        y = TOP + ROW * number
        pieces += [
            f'<text x="{LEFT - 8}" y="{y + 14}" font-size="12" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{max(1.0, x(value) - LEFT):.1f}" height="{ROW - 8}" '
            f'fill="{OURS if ours else OTHERS}"/>',
            f'<text x="{x(value) + 6:.1f}" y="{y + 14}" font-size="12">{value:,.0f}</text>',
        ]
    file.write_text("\n".join([*pieces, "</svg>", ""]))
