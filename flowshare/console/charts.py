"""Drawings as SVG, without style and script: lines over time, bars, a share-partition's window as a strip. Pure.

Colours are classes of the style sheet. Every drawing has its figures as text beside it, for people who cannot see it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from markupsafe import Markup

WIDTH: Final = 640
HEIGHT: Final = 120
POINTS_MAX: Final = 720
CELLS_MAX: Final = 1_000
CELLS_A_ROW: Final = 100
CELL: Final = 10


class Series(NamedTuple):
    """A line: its name, its colour (0 to 3), and values at times, oldest first. None: not known."""

    name: str
    colour: int
    points: Sequence[tuple[float, float | None]]


def lines(
    series: Sequence[Series], since_s: float, until_s: float, *, show: Callable[[float], str], title: str
) -> Markup:
    """Draw lines over time. A value holds until the next one. show: formats a figure."""
    span = max(1.0, until_s - since_s)
    top = max((value for one in series for _, value in one.points if value is not None), default=0.0)
    scale = (HEIGHT - 8) / top if top > 0 else 0.0
    parts = [
        Markup('<svg class="chart" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">').format(
            WIDTH, HEIGHT, title
        )
    ]
    for one in series:
        path = _path(one.points, since_s, until_s, span, scale)
        if path:
            parts.append(Markup('<path class="line c{}" d="{}"/>').format(one.colour, path))
    parts.append(Markup("</svg>"))
    legend = Markup(" ").join(
        Markup('<span class="key c{}">{} <b>{}</b></span>').format(one.colour, one.name, _last(one, show))
        for one in series
    )
    peak = Markup('<span class="peak">top {}</span>').format(show(top)) if top > 0 else Markup("")
    return Markup('<figure class="plot"><figcaption>{} {}</figcaption>{}</figure>').format(
        legend, peak, Markup("").join(parts)
    )


def _last(one: Series, show: Callable[[float], str]) -> str:
    value = one.points[-1][1] if one.points else None
    return "–" if value is None else show(value)


def _path(
    points: Sequence[tuple[float, float | None]], since_s: float, until_s: float, span: float, scale: float
) -> str:
    """Draw steps, as figures hold until the next ones; gaps for unknown ones."""
    made: list[str] = []
    drawing = False
    y = 0.0
    step = max(1, -(-len(points) // POINTS_MAX))
    for at_s, value in [*points[:-1:step], *points[-1:]]:
        x = min(max(0.0, (at_s - since_s) / span), 1.0) * WIDTH
        if drawing:
            made.append(f"H{x:.1f}")
        if value is None:
            drawing = False
            continue
        y = HEIGHT - 4 - value * scale
        made.append(f"V{y:.1f}" if drawing else f"M{x:.1f} {y:.1f}")
        drawing = True
    if drawing:
        made.append(f"H{min(max(0.0, (until_s - since_s) / span), 1.0) * WIDTH:.1f}")
    return "".join(made)


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar. name: below it. shown: its figure as text. href: its link."""

    name: str
    value: float
    shown: str
    href: str = ""


def bars(found: Sequence[Bar], title: str) -> Markup:
    """Draw a histogram as a table whose rows have a bar: it reads well without the bars."""
    top = max((one.value for one in found), default=0.0)
    rows = Markup("").join(
        Markup(
            '<tr><th scope="row">{}</th><td class="n">{}</td><td class="bar"><svg viewBox="0 0 100 10" '
            'preserveAspectRatio="none" aria-hidden="true"><rect class="c0" width="{}" height="10"/></svg></td></tr>'
        ).format(
            Markup('<a href="{}">{}</a>').format(one.href, one.name) if one.href else one.name,
            one.shown,
            f"{100 * one.value / top:.1f}" if top else 0,
        )
        for one in found
    )
    return Markup('<table class="bars"><caption>{}</caption><tbody>{}</tbody></table>').format(title, rows)


class Run(NamedTuple):
    """Offsets of one state. mark: True: they hold others up."""

    first: int
    last: int
    state: str
    mark: bool = False


class Cell(NamedTuple):
    """The offsets of one cell of a strip, and the state shown for them."""

    first: int
    last: int
    state: str
    mark: bool


STATES: Final = (
    "acquired",
    "pending",
    "archiving",
    "delayed",
    "blocked",
    "unknown",
    "available",
    "claimed",
    "archived",
    "acknowledged",
    "committed",
    "free",
    "hole",
)
"""States by rank: a cell of several offsets shows the first of these that one of them has."""
_RANK: Final[Mapping[str, int]] = {state: number for number, state in enumerate(STATES)}


def cells(runs: Sequence[Run], first: int, end: int, *, cells_max: int = CELLS_MAX) -> list[Cell]:
    """Return cells for the offsets [first, end), each of equally many. Offsets in no run are available."""
    if end <= first:
        return []
    each = -(-(end - first) // cells_max)
    count = -(-(end - first) // each)
    ranks = [_RANK["available"]] * count
    covered = [0] * count
    marks = [False] * count
    worst = [len(STATES)] * count
    for run in runs:
        low, high = max(run.first, first), min(run.last, end - 1)
        if low > high:
            continue
        rank = _RANK.get(run.state, len(STATES) - 1)
        for number in range((low - first) // each, (high - first) // each + 1):
            begin = first + number * each
            covered[number] += min(high, begin + each - 1) - max(low, begin) + 1
            worst[number] = min(worst[number], rank)
            marks[number] = marks[number] or (run.mark and begin <= run.first < begin + each)
    made: list[Cell] = []
    for number in range(count):
        begin = first + number * each
        last = min(begin + each, end) - 1
        whole = covered[number] >= last - begin + 1
        ranks[number] = worst[number] if whole else min(worst[number], ranks[number])
        made.append(Cell(begin, last, STATES[min(ranks[number], len(STATES) - 1)], marks[number]))
    return made


def _each(found: Sequence[Cell]) -> str:
    count = found[0].last - found[0].first + 1 if found else 1
    return "a cell is an offset" if count == 1 else f"a cell is {count} offsets"


def strip(found: Sequence[Cell], link: Callable[[Cell], str]) -> Markup:
    """Draw cells in rows; each shows its offsets and leads to its records, by pointer only: Tab passes the cells by, as
    there may be a thousand, and goes through the list of runs."""
    rows = -(-len(found) // CELLS_A_ROW)
    parts = [
        Markup('<svg class="strip" viewBox="0 0 {} {}" role="group" aria-label="{}">').format(
            CELLS_A_ROW * CELL, max(1, rows) * CELL, _each(found)
        )
    ]
    for number, cell in enumerate(found):
        text = f"{cell.first}" if cell.first == cell.last else f"{cell.first} to {cell.last}"
        parts.append(
            Markup(
                '<a href="{}" tabindex="-1">'
                '<rect class="{}{}" x="{}" y="{}" width="9" height="9"><title>{}</title></rect></a>'
            ).format(
                link(cell),
                f"s-{cell.state}",
                " blocker" if cell.mark else "",
                number % CELLS_A_ROW * CELL,
                number // CELLS_A_ROW * CELL,
                f"{text}: {cell.state}{', holds others up' if cell.mark else ''}",
            )
        )
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)
