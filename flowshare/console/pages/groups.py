"""All groups: their work, and why some stand still."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flowshare.cli.worker_pages import needed_workers
from flowshare.console.pages.page import ROWS_MAX, Context, Page, Query, View

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowshare.ops.figures import GroupFigures

SORTS: Final[dict[str, Callable[[GroupFigures], object]]] = {
    "name": lambda line: line.name,
    "backlog": lambda line: (-(line.total.backlog or 0), line.name),
    "age": lambda line: (-(line.total.oldest_age_s or 0), line.name),
    "rate": lambda line: (-(line.total.rate or 0), line.name),
    "stalled": lambda line: (line.stall is None, line.name),
}


async def _load(view: View, query: Query) -> Context:
    look = view.collector.look
    wanted, sort = query.get("find", "").lower(), query.get("sort", "name")
    found = [line for line in look.groups.values() if wanted in line.name.lower()]
    found.sort(key=SORTS.get(sort, SORTS["name"]))  # type: ignore[arg-type]
    first = max(0, min(int(query["from"]), len(found))) if query.get("from", "").isdecimal() else 0
    needed = await _needed(view)
    return {
        "lines": found[first : first + ROWS_MAX],
        "count": len(found),
        "first": first,
        "step": ROWS_MAX,
        "total": len(look.groups),
        "find": query.get("find", ""),
        "sort": sort if sort in SORTS else "name",
        "sorts": list(SORTS),
        "stalled": sum(line.stall is not None for line in found),
        "needed": needed,
    }


async def _needed(view: View) -> dict[str, float]:
    """Return the number of workers that each group needs, as far as running workers tell."""
    if not view.workers.known:
        return {}
    found = needed_workers(await view.workers.topics())
    needed: dict[str, float] = {}
    for (group, _), figure in found.items():
        needed[group] = needed.get(group, 0.0) + figure
    return needed


PAGE: Final = Page("groups", "Groups", _load)
