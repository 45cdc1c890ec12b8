"""One share-partition: where it stands, and its window as a strip, a cell an offset or several."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from flowshare.console import charts
from flowshare.console.markup import url
from flowshare.console.pages.page import Context, Page, Query, View, place, whole

if TYPE_CHECKING:
    from flowshare.client.admin.browsing import BrowsedRun, BrowsePage

RUNS_SHOWN: Final = 100
SPAN_MAX: Final = 200_000
"""Offsets that a strip shows."""
LIMIT: Final = 10_000


async def _load(view: View, query: Query) -> Context:
    group, topic, partition = place(query)
    first = whole(query, "from") if query.get("from") else None
    page = await view.source.ask(
        lambda session: session.admin.browse(group, topic, partition, from_offset=first, limit=LIMIT)
    )
    holder = blocker(page) if first is None or first <= page.start_offset else None
    strip, begin, end = _strip(page, first, holder)
    runs = [run for run in page.runs if run.state not in ("available", "free")]
    return {
        "group": group,
        "topic": topic,
        "partition": partition,
        "found": page,
        "strip": strip,
        "begin": begin,
        "end": end,
        "states": _states(page),
        "runs": runs[:RUNS_SHOWN],
        "more": max(0, len(runs) - RUNS_SHOWN),
        "blocker": holder,
    }


def blocker(page: BrowsePage) -> BrowsedRun | None:
    """The run that keeps the start offset where it is: the first one that is not finished, of a page from there on."""
    done = ("acknowledged", "archived", "committed")
    return next((run for run in page.runs if run.state not in done and run.first >= page.start_offset), None)


def _states(page: BrowsePage) -> list[tuple[str, int]]:
    counts: Counter[str] = Counter()
    for run in page.runs:
        counts[run.state] += run.last - run.first + 1
    return sorted(counts.items(), key=lambda pair: -pair[1])


def _strip(page: BrowsePage, first: int | None, holder: BrowsedRun | None) -> tuple[Any, int, int]:
    begin = max(page.start_offset, first or 0, 0)
    end = page.next if page.next is not None else max(page.end_offset, begin)
    end = min(end, begin + SPAN_MAX)
    runs = [charts.Run(run.first, run.last, run.state, run == holder) for run in page.runs]
    runs += [charts.Run(hole.first, hole.last, "hole") for hole in page.holes]

    def link(cell: charts.Cell) -> str:
        return url("browse", group=page.group_id, topic=page.topic, partition=page.partition, **{"from": cell.first})

    return charts.strip(charts.cells(runs, begin, end), link), begin, end


PAGE: Final = Page("partition", "Share-partition", _load, listed=False)
