"""Work with the most tries or the greatest age, with the buttons to end it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from flowshare.console.pages import held
from flowshare.console.pages.page import ROWS_MAX, Context, Page, Query, View

STALLED_MAX: Final = 100
"""The most groups that stand still which are named; the page of all groups has them, too."""
ATTEMPTS: Final = 2
"""The delivery count from which a record is worth looking at."""
LONG_S: Final = 30.0
"""Time, in s, from which a handler counts as long; its lock has been renewed by then."""


async def _load(view: View, query: Query) -> Context:
    group = query.get("group") or None
    in_flight = await held.find(view, ("acquired", "pending"), "in_flight", group)
    again = await held.find(view, ("delayed",), "delayed", group)
    runs = [*in_flight.runs, *again.runs]
    once = sum(run.count for run in runs if run.attempt < ATTEMPTS)
    runs = sorted((run for run in runs if run.attempt >= ATTEMPTS), key=lambda run: (-run.attempt, run.first))
    now_ms = view.clock.now_ms()
    lines = [line for line in view.collector.look.groups.values() if group in (None, line.name)]
    stalled = [line for line in lines if line.stall]
    return {
        "group": group,
        "stalled": stalled[:STALLED_MAX],
        "more_stalled": max(0, len(stalled) - STALLED_MAX),
        "rows": [{"run": run, "left_s": (run.due_ms - now_ms) / 1000 if run.due_ms > 0 else None} for run in runs][
            :ROWS_MAX
        ],
        "once": once,
        "hanging": await _hanging(view, in_flight.runs, group),
        "more": max(0, len(runs) - ROWS_MAX),
        "unknown": tuple(dict.fromkeys((*in_flight.unknown, *again.unknown))),
        "left_out": in_flight.left_out + again.left_out,
        "keys": [{**key, "run": _run(key["group"], key["topic"], key)} for key in held.stuck_keys(lines)][:ROWS_MAX],
    }


async def _hanging(view: View, runs: Sequence[held.Held], group: str | None) -> list[dict[str, Any]]:
    """Return the records whose handlers run for long, the longest first; with their groups, if clear."""
    if not view.workers.known:
        return []
    told = await view.workers.in_flight()
    rows: list[dict[str, Any]] = [
        {"worker": name, **row} for name, found in told.rows.items() for row in found if _whole(row)
    ]
    rows = [row for row in rows if row["age_s"] >= LONG_S]
    whose = held.Whose(runs, view.collector.look.groups.values())
    for row in rows:
        row["group"], run = whose.run(row)
        row["run"] = None if run is None else _run(run.group, row["topic"], row)
    rows = [row for row in rows if group in (None, row["group"])]
    return sorted(rows, key=lambda row: -row["age_s"])[:ROWS_MAX]


def _whole(row: Mapping[str, Any]) -> bool:
    """True if the row names the record and its agent: names may be withheld."""
    return all(name in row for name in ("agent", "topic", "partition", "offset"))


def _run(group: str, topic: str, key: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record that a row's buttons act on."""
    return {
        "group": group,
        "topic": topic,
        "partition": key["partition"],
        "first": key["offset"],
        "last": key["offset"],
    }


PAGE: Final = Page("stuck", "Stuck", _load)
