"""The figures of a run as text: one table with a headline of each workload, and one a workload with all of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.modes.judge import Spread, spread
from benchmarks.modes.workloads import CONCURRENCY, IN_ORDER, MEMBERS, RANDOM

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from benchmarks.modes.workloads import Sample

VOID, NOTHING = "void", "—"
NOT_MEASURED: Final = "not measured in this run"
NOT_AGAIN: Final = "what fails is not tried again: at most once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A figure. missing: why a sample may be without it."""

    title: str
    workload: str
    figure: str
    variant: str = ""
    factor: float = 1.0
    missing: str = NOT_MEASURED


def _of(workload: str, *figures: tuple[str, str], factor: float = 1.0, missing: str = "") -> list[Column]:
    return [
        Column(title=title, workload=workload, figure=figure, factor=factor, missing=missing or NOT_MEASURED)
        for title, figure in figures
    ]


MOST_MEMBERS, MOST_CONCURRENCY = MEMBERS[-1], CONCURRENCY[-1]
CRASH = _of("W8", ("back s", "back"), ("last s", "last"), ("twice", "twice"), ("lost", "lost"))
BYTES = [
    Column(title=f"{variant} B", workload="W10", figure="bytes", variant=variant) for variant in (IN_ORDER, RANDOM)
]
HEADLINE: Final[tuple[Column, ...]] = (
    Column(title="W1 records/s", workload="W1", figure="rate"),
    Column(title="W3 p50 ms", workload="W3", figure="common p50"),
    Column(title="W3 p99 ms", workload="W3", figure="common p99"),
    Column(title="W4 p99 ms", workload="W4", figure="p99"),
    Column(title=f"W5 × of {MOST_MEMBERS}", workload="W5", figure="speed-up", variant=MOST_MEMBERS),
    Column(title=f"W6 % at {MOST_CONCURRENCY}", workload="W6", figure="of ideal", variant=MOST_CONCURRENCY, factor=100),
    Column(title="W7 attempts", workload="W7", figure="attempts"),
    Column(title="W7 again s", workload="W7", figure="again p50", missing=NOT_AGAIN),
    *(Column(title=f"W8 {one.title}", workload=one.workload, figure=one.figure, variant=one.variant) for one in CRASH),
    *(Column(title=f"W10 {one.title}", workload=one.workload, figure=one.figure, variant=one.variant) for one in BYTES),
    Column(title="W13 s", workload="W13", figure="first"),
)
DETAILS: Final[Mapping[str, Sequence[Column]]] = {
    "W1": _of("W1", ("records/s", "rate"), ("to the first record s", "join")),
    "W3": [
        Column(title=f"{label} {part}{'/s' if part == 'rate' else ' ms'}", workload="W3", figure=f"{short} {part}")
        for short, label in (("common", "all:"), ("own", "own:"))
        for part in ("rate", "p50", "p95", "p99", "max", "sender late")
    ],
    "W4": _of("W4", ("p50 ms", "p50"), ("p99 ms", "p99"), ("max ms", "max")),
    "W5": [
        *(Column(title=f"{one} members ×", workload="W5", figure="speed-up", variant=one) for one in MEMBERS),
        Column(title=f"at work of {MOST_MEMBERS}", workload="W5", figure="at work", variant=MOST_MEMBERS),
        Column(title="all at work after s", workload="W5", figure="join", variant=MOST_MEMBERS),
    ],
    "W6": [
        column
        for one in CONCURRENCY
        for column in (
            Column(title=f"{one} at once, records/s", workload="W6", figure="rate", variant=one),
            Column(title="% of the ideal", workload="W6", figure="of ideal", variant=one, factor=100),
        )
    ],
    "W7": [
        Column(title="attempts a record", workload="W7", figure="attempts"),
        Column(title="again after s, median", workload="W7", figure="again p50", missing=NOT_AGAIN),
        Column(title="at most s", workload="W7", figure="again max", missing=NOT_AGAIN),
        Column(title="failed for good", workload="W7", figure="failed for good"),
    ],
    "W8": CRASH,
    "W10": BYTES,
    "W13": _of("W13", ("first record after s", "first"), ("twice", "twice")),
}


class Results:
    """Samples by cell, and why cells are empty."""

    def __init__(
        self, arms: Iterable[str], samples: Iterable[Sample], empty: Mapping[tuple[str, str, str], str]
    ) -> None:
        """empty: by arm, workload and variant; both are "" where nothing of an arm can be had."""
        self.arms = list(arms)
        self._empty = empty
        self._cells: dict[tuple[str, str, str], list[Sample]] = {}
        for one in samples:
            self._cells.setdefault((one.arm, one.workload, one.variant), []).append(one)

    def samples(self, arm: str, column: Column) -> list[Sample]:
        """Of a cell."""
        return self._cells.get((arm, column.workload, column.variant), [])

    def spread(self, arm: str, column: Column) -> Spread | None:
        """A cell's median, least and most; None: it is void or empty."""
        found = self.samples(arm, column)
        values = [one.figures[column.figure] * column.factor for one in found if column.figure in one.figures]
        if any(one.complaints for one in found) or not values:
            return None
        return spread(values)

    def why_empty(self, arm: str, column: Column) -> str:
        """For a footnote."""
        if self.samples(arm, column):
            return column.missing
        own = self._empty.get((arm, column.workload, column.variant))
        return own or self._empty.get((arm, "", "")) or NOT_MEASURED

    def complaints(self) -> list[str]:
        """Why trials do not count, one line each."""
        return [
            f"{one.arm}, {one.workload} {one.variant}, round {one.turn + 1}: {'; '.join(one.complaints)}"
            for each in self._cells.values()
            for one in each
            if one.complaints
        ]


def number(value: float) -> str:
    """Three digits that count.

    >>> number(123456), number(12.345), number(0.01234), number(0)
    ('123,000', '12.3', '0.012', '0')
    """
    if value == 0 or math.isnan(value):
        return "0" if value == 0 else NOTHING
    digits = 2 - math.floor(math.log10(abs(value)))
    shown = round(value, digits)
    return f"{shown:,.0f}" if shown >= 100 or shown == int(shown) else f"{shown:.{min(3, max(0, digits))}f}"


class Notes:
    """Footnotes, each said once."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def mark(self, text: str) -> str:
        """The mark of a text."""
        if text not in self._texts:
            self._texts.append(text)
        return f"[{self._texts.index(text) + 1}]"

    def lines(self) -> list[str]:
        """All of them."""
        return [f"[{place}] {text}" for place, text in enumerate(self._texts, 1)]


def rows(results: Results, columns: Sequence[Column], notes: Notes, *, spreads: bool) -> list[list[str]]:
    """Head and cells. spreads: each with its least and most."""
    found = [["mode", *(column.title for column in columns)]]
    for arm in results.arms:
        found.append([arm, *(cell(results, arm, column, notes, spreads=spreads) for column in columns)])
    return found


def cell(results: Results, arm: str, column: Column, notes: Notes, *, spreads: bool) -> str:
    """One cell."""
    got = results.spread(arm, column)
    if got is not None:
        middle = number(got.median)
        low, high = number(got.low), number(got.high)
        return middle if not spreads or low == high else f"{middle} ({low}–{high})"
    if any(one.complaints for one in results.samples(arm, column)):
        return VOID
    return NOTHING + notes.mark(results.why_empty(arm, column))


def plain(found: Sequence[Sequence[str]]) -> list[str]:
    """For the screen, columns below each other."""
    widths = [max(len(row[place]) for row in found) for place in range(len(found[0]))]
    return [
        "  ".join(
            text.ljust(width) if not place else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in found
    ]


def markdown(found: Sequence[Sequence[str]]) -> list[str]:
    """For a page."""
    lines = ["| " + " | ".join(row) + " |" for row in found]
    lines.insert(1, "|" + "---|" * len(found[0]))
    return lines
