"""Records in flight: who holds them, how long the lock still holds, and where each handler is."""

from __future__ import annotations

from typing import Any, Final

from flowshare.console.pages import held
from flowshare.console.pages.page import ROWS_MAX, Context, Page, Query, View


async def _load(view: View, query: Query) -> Context:
    group = query.get("group") or None
    stacks = "stacks" in query
    running, silent, hidden = await _running(view, stacks=stacks)
    found = await held.find(view, ("acquired", "pending"), "in_flight", group)
    whose = held.Whose(found.runs, view.collector.look.groups.values())
    for row in running:
        row["group"] = whose.run(row)[0] if row.get("topic") else None
    running = [row for row in running if group in (None, row["group"])]
    now_ms = view.clock.now_ms()
    found.runs.sort(key=lambda run: run.due_ms)
    rows = [
        {"run": run, "left_s": (run.due_ms - now_ms) / 1000 if run.due_ms > 0 else None}
        for run in found.runs[:ROWS_MAX]
    ]
    return {
        "group": group,
        "running": running[:ROWS_MAX],
        "silent": silent,
        "hidden": hidden,
        "stacks": stacks,
        "rows": rows,
        "more": max(0, len(found.runs) - ROWS_MAX),
        "left_out": found.left_out,
        "unknown": found.unknown,
        "workers_known": view.workers.known,
    }


async def _running(view: View, *, stacks: bool) -> tuple[list[dict[str, Any]], dict[str, str], bool]:
    """Return records that handlers work on, oldest first; workers that did not answer; True if names were withheld."""
    if not view.workers.known:
        return [], {}, False
    told = await view.workers.in_flight(stacks=stacks)
    rows = [{"worker": name, **row} for name, found in told.rows.items() for row in found]
    return sorted(rows, key=lambda row: -row["age_s"]), dict(told.silent), any("agent" not in row for row in rows)


PAGE: Final = Page("in-flight", "In flight", _load)
