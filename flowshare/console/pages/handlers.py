"""Agents: handlers' times, their outcomes and exceptions, summed over the workers that answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.handler.texts import age
from flowshare.console import charts
from flowshare.console.markup import number, rate
from flowshare.console.pages.page import Context, Page, Query, View
from flowshare.console.store import AGENTS

if TYPE_CHECKING:
    from flowshare.console.agents import AgentCounts

_NAMES: Final = {
    "records redelivered": "redelivered",
    "handler errors": "errors",
    "handler timeouts": "timeouts",
    "records undecodable": "undecodable",
    "dead letter queue records": "dead letters",
}
AGENTS_SHOWN: Final = 100
"""The most agents shown: those with most handled records."""
SPANS: Final = {"10m": 600, "1h": 3600, "24h": 86400}


async def _load(view: View, query: Query) -> Context:
    span = query.get("span", "10m") if query.get("span") in SPANS else "10m"
    watch = view.agents
    busiest = sorted(watch.agents.items(), key=lambda pair: -pair[1].handled)[:AGENTS_SHOWN]
    return {
        "known": view.workers.known,
        "span": span,
        "spans": list(SPANS),
        "agents": [
            {"name": name, **_shown(found), "charts": await _drawn(view, name, span)}
            for name, found in sorted(busiest, key=lambda pair: pair[0])
        ],
        "more": len(watch.agents) - len(busiest),
        "silent": watch.silent,
        "workers": watch.answered,
    }


def _shown(found: AgentCounts) -> dict[str, Any]:
    bars: list[charts.Bar] = []
    before = 0.0
    for edge, total in sorted(found.buckets.items()):
        if total > before:
            name = "longer" if edge == float("inf") else f"≤ {age(edge)}"
            bars.append(charts.Bar(name, total - before, number(total - before)))
        before = max(before, total)
    return {
        "counts": [(_NAMES.get(name, name), value) for name, value in found.counts.items()],
        "exceptions": sorted(found.exceptions.items(), key=lambda pair: -pair[1]),
        "histogram": charts.bars(bars, "time of the handler") if bars else None,
        "mean_s": found.seconds / found.handled if found.handled else None,
        "handled": found.handled,
    }


async def _drawn(view: View, name: str, span: str) -> list[Any]:
    now_s = view.clock.now_ms() // 1000
    since_s = now_s - SPANS[span]
    points = await view.store.figures(AGENTS, name, since_s, minutes=span == "24h")

    def line(label: str, colour: int, column: str) -> charts.Series:
        return charts.Series(label, colour, [(one.at_s, getattr(one.figures, column)) for one in points])

    ended = [line("handled", 0, "handled"), line("failed", 1, "failed"), line("timed out", 3, "timed_out")]
    return [
        charts.lines(ended, since_s, now_s, show=rate, title="records a second"),
        charts.lines([line("mean time", 2, "mean_s")], since_s, now_s, show=age, title="time of the handler"),
    ]


PAGE: Final = Page("handlers", "Handlers", _load)
