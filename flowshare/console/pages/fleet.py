"""Workers, and what each leads; how many are needed."""

from __future__ import annotations

from typing import Any, Final

from flowshare.console.pages.page import Context, Page, Query, View


async def _load(view: View, _query: Query) -> Context:
    workers = await view.workers.running()
    ready, scale = (await view.workers.ready(), await view.workers.scale()) if workers else (None, None)
    rows: list[dict[str, Any]] = []
    for worker in workers:
        told = ready.rows.get(worker.name) if ready else None
        rows.append(
            {
                "worker": worker,
                "ready": None if told is None else bool(told.get("ok")),
                "reasons": [] if told is None else told.get("reasons", []),
                "silent": None if ready is None else ready.silent.get(worker.name),
            }
        )
    answers = list(scale.rows.values()) if scale else []
    return {
        "rows": rows,
        "known": view.workers.known,
        "scale": next((one for one in answers if one.get("known")), answers[0] if answers else None),
    }


PAGE: Final = Page("fleet", "Workers", _load)
