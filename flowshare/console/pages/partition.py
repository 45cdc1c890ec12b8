"""One share-partition: its offsets, and its window as a strip, a cell an offset or several."""

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
"""The most offsets that a strip shows."""
LIMIT: Final = 10_000
LOCKS: Final = "share.partition.max.record.locks"
WINDOW: Final = "share.partition.max.window"


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
        "used": _used(view, page),
        "unknown_at": unknown[0][0] if page.kind == "native" and first is None and (unknown := untold(page)) else None,
    }


def blocker(page: BrowsePage) -> BrowsedRun | None:
    """Return the run that keeps the start offset where it is: the first unfinished one from there on."""
    done = ("acknowledged", "archived", "committed")
    return next((run for run in page.runs if run.state not in done and run.first >= page.start_offset), None)


def _used(view: View, page: BrowsePage) -> list[tuple[str, int, int]]:
    """Return used and allowed numbers of locks and window; nothing if the group's settings are not known."""
    line = view.collector.look.groups.get(page.group_id)
    if line is None or page.kind != "share" or not page.initialised:
        return []
    given = line.settings
    place = (page.topic, page.partition)
    locks = next((part.in_flight for part in line.partitions if (part.topic, part.partition) == place), None)
    pairs = (("locks", locks, LOCKS), ("window", max(0, page.end_offset - page.start_offset), WINDOW))
    return [
        (name, used, int(given[setting]))
        for name, used, setting in pairs
        if used is not None and given.get(setting, "").isdecimal()
    ]


def untold(page: BrowsePage) -> list[tuple[int, int]]:
    """Return the offsets of a window led by Kafka's brokers that are in no run: free or held, the brokers do not tell
    which."""
    found: list[tuple[int, int]] = []
    at = page.start_offset
    told = [(run.first, run.last) for run in page.runs] + [(hole.first, hole.last) for hole in page.holes]
    for first, last in sorted(told):
        if first > at:
            found.append((at, first - 1))
        at = max(at, last + 1)
    return found


def _states(page: BrowsePage) -> list[tuple[str, int]]:
    counts: Counter[str] = Counter()
    if page.kind == "native" and (known := untold(page)):
        counts["unknown"] = sum(last - first + 1 for first, last in known)
    for run in page.runs:
        counts[run.state] += run.last - run.first + 1
    return sorted(counts.items(), key=lambda pair: -pair[1])


def _strip(page: BrowsePage, first: int | None, holder: BrowsedRun | None) -> tuple[Any, int, int]:
    begin = max(page.start_offset, first or 0, 0)
    end = page.next if page.next is not None else max(page.end_offset, begin)
    end = min(end, begin + SPAN_MAX)
    runs = [charts.Run(run.first, run.last, run.state, run == holder or run.head == -2) for run in page.runs]
    if page.kind == "native":
        runs += [charts.Run(first, last, "unknown") for first, last in untold(page)]
    runs += [charts.Run(hole.first, hole.last, "hole") for hole in page.holes]

    def link(cell: charts.Cell) -> str:
        return url("browse", group=page.group_id, topic=page.topic, partition=page.partition, **{"from": cell.first})

    return charts.strip(charts.cells(runs, begin, end), link), begin, end


PAGE: Final = Page("partition", "Share-partition", _load, listed=False)
