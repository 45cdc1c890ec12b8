"""Records that wait for the end of a delay: their due times as a histogram, and the next ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.agents.handler.retry_headers import retry_topic
from flowshare.agents.handler.texts import age
from flowshare.console import charts
from flowshare.console.markup import number
from flowshare.console.pages import held
from flowshare.console.pages.page import ROWS_MAX, Context, Page, Query, View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowshare.ops.watcher import Snapshot

EDGES_S: Final = (0, 1, 5, 15, 60, 300, 900, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600)


async def _load(view: View, query: Query) -> Context:
    group = query.get("group") or None
    found = await held.find(view, ("delayed",), "delayed", group)
    now_ms = view.clock.now_ms()
    runs = sorted(found.runs, key=lambda run: run.due_ms)
    return {
        "group": group,
        "histogram": charts.bars(_without_end(histogram(runs, now_ms)), "due in"),
        "count": sum(run.count for run in runs),
        "rows": [{"run": run, "left_s": max(0.0, (run.due_ms - now_ms) / 1000)} for run in runs[:ROWS_MAX]],
        "more": max(0, len(runs) - ROWS_MAX),
        "unknown": found.unknown,
        "left_out": found.left_out,
        "apart": [one for one in apart(view.collector.look) if group in (None, one.group)][:ROWS_MAX],
    }


class Apart(NamedTuple):
    """Records of a group that wait in a topic of their own, in a partition."""

    group: str
    topic: str
    partition: int
    records: int


def apart(look: Snapshot) -> list[Apart]:
    """Return the places where records wait for their next attempt, of groups led by Kafka's brokers, which know no
    delays."""
    return [
        Apart(part.group, part.topic, part.partition, part.backlog)
        for part in look.partitions
        if not look.controls and part.backlog and part.topic == retry_topic(part.group)
    ]


def histogram(runs: Sequence[held.Held], now_ms: int) -> list[charts.Bar]:
    """Return the number of records due within each span of time."""
    counts = [0] * (len(EDGES_S) + 1)
    for run in runs:
        left_s = (run.due_ms - now_ms) / 1000
        counts[sum(left_s > edge for edge in EDGES_S)] += run.count
    names = ["now", *(f"≤ {_round(edge)}" for edge in EDGES_S[1:]), f"> {_round(EDGES_S[-1])}"]
    return [charts.Bar(name, count, number(count)) for name, count in zip(names, counts, strict=True)]


def _round(edge_s: float) -> str:
    """Return `15 m` instead of `15 m 0 s`."""
    return age(edge_s).replace(".0 s", " s").removesuffix(" 0 s").removesuffix(" 0 m").removesuffix(" 0 h")


def _without_end(bars: list[charts.Bar]) -> list[charts.Bar]:
    """Return the bars up to the last span with records."""
    return bars[: max((at for at, bar in enumerate(bars) if bar.value), default=0) + 1]


PAGE: Final = Page("delayed", "Delayed", _load)
