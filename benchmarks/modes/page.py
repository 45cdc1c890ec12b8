"""Write the results of a run: the plots and the page's figures."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from benchmarks import plot
from benchmarks.modes.table import DETAILS, HEADLINE, Column, Notes, Results, markdown, rows
from benchmarks.modes.workloads import MEMBERS, WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

BEGIN: Final = "<!-- figures: begin (make bench-modes writes what is between) -->"
END: Final = "<!-- figures: end -->"
SPEED_UP, LATENCY, HEAD = "speed-up.svg", "latency.svg", "head-of-line.svg"


def write(out: Path, page: Path | None, results: Results, config: Mapping[str, str], ours: Sequence[str]) -> None:
    """Plots and figures into `out`, and the figures into a page. Raises: ValueError: it has no place for them."""
    plots = plots_of(out, results, ours)
    where = os.path.relpath(out, page.parent) if page else "."
    figures = figures_of(results, config, [(title, f"{where}/{name}") for title, name in plots])
    (out / "figures.md").write_text(figures)
    if page:
        page.write_text(replaced(page.read_text(), figures))


def replaced(text: str, figures: str) -> str:
    """A page with other figures. Raises: ValueError."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no lines {BEGIN!r} and {END!r} for the figures to stand between")
    return f"{before}{BEGIN}\n\n{figures.strip()}\n\n{END}{after}"


def figures_of(results: Results, config: Mapping[str, str], plots: Sequence[tuple[str, str]]) -> str:
    """The tables, the plots, and what they depend on, as markdown."""
    notes = Notes()
    lines = [*markdown(rows(results, HEADLINE, notes, spreads=False)), ""]
    for title, name in plots:
        lines += [f"![{title}]({name})", ""]
    for workload in WORKLOADS:
        columns = DETAILS[workload.number]
        if any(results.samples(arm, column) for arm in results.arms for column in columns):
            lines += [f"### {workload.number}: {workload.title}", ""]
            lines += [*markdown(rows(results, columns, notes, spreads=True)), ""]
    lines += [f"- {line}" for line in notes.lines()]
    lines += ["", "| measured with | |", "|---|---|", *(f"| {name} | {value} |" for name, value in config.items())]
    return "\n".join(lines) + "\n"


def plots_of(out: Path, results: Results, ours: Sequence[str]) -> list[tuple[str, str]]:
    """Write what can be drawn; (title, name) of each."""
    found = []
    series = []
    for arm in results.arms:
        points = []
        for members in MEMBERS:
            got = results.spread(arm, Column(title="", workload="W5", figure="speed-up", variant=members))
            if got is not None:
                points.append((float(members), got.median))
        if points:
            series.append((arm, points))
    if series:
        title = "W5: members with handlers of 50 ms on 4 partitions"
        plot.lines(out / SPEED_UP, title, series, x_label="members", y_label="times one handler alone")
        found.append((title, SPEED_UP))
    for workload, figure, name, title in (
        ("W3", "common p99", LATENCY, "W3: p99 from due to handled, at one even rate for all"),
        ("W4", "p99", HEAD, "W4: p99 of 1 ms records while 1 of 100 takes 1 s"),
    ):
        bars = []
        for arm in results.arms:
            got = results.spread(arm, Column(title="", workload=workload, figure=figure))
            if got is not None:
                bars.append((arm, got.median, arm in ours))
        if bars:
            plot.bars(out / name, title, sorted(bars, key=lambda bar: bar[1]), unit="ms")
            found.append((title, name))
    return found
