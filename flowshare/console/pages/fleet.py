"""Workers: which run, their readiness, slots and moves; and the number needed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from flowshare.cli.fleet import leaders_of
from flowshare.console.pages.page import Context, Page, Query, View
from flowshare.console.source import NotAnswering
from flowshare.console.values import MASKED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowshare.console.slots import FleetLook


async def _load(view: View, _query: Query) -> Context:
    workers = await view.workers.running()
    ready = scale = None
    pipelines: Mapping[str, Any] = {}
    supervised: Mapping[str, Any] = {}
    if workers:
        asked = view.workers
        ready, scale, told_pipelines, told_supervised = await asyncio.gather(
            asked.ready(), asked.scale(), asked.pipelines(), asked.supervised()
        )
        pipelines, supervised = told_pipelines.rows, told_supervised.rows
    rows: list[dict[str, Any]] = []
    for worker in workers:
        told = ready.rows.get(worker.name) if ready else None
        rows.append(
            {
                "worker": worker,
                "ready": None if told is None else bool(told.get("ok")),
                "reasons": [] if told is None else told.get("reasons", []),
                "workers": supervised.get(worker.name),
                "silent": None if ready is None else ready.silent.get(worker.name),
            }
        )
    look = view.collector.look
    slots, why = None, None
    if look.backend == "workers":
        try:
            slots = await view.slots.look()
        except NotAnswering as error:
            why = str(error)
    answers = list(scale.rows.values()) if scale else []
    return {
        "rows": rows,
        "pipelines": [
            {"process": name, **row, "last_error": _error(row["last_error"], view)}
            for name, rows in pipelines.items()
            for row in rows
            if "name" in row
        ],
        "known": view.workers.known,
        "leads": None if slots is None else _leads(slots, look.led),
        "slots": slots,
        "why": why,
        "scale": next((one for one in answers if one.get("known")), answers[0] if answers else None),
    }


def _leads(slots: FleetLook, led: Mapping[int, int]) -> list[dict[str, Any]]:
    """Return a row for each worker: its address, its slots and the number of share-partitions it leads."""
    return [{**row, "share_partitions": led.get(row["node"])} for row in leaders_of(slots.owners, slots.nodes)]


def _error(text: str | None, view: View) -> str | None:
    """Return the error's text; with masks it is hidden: it may hold any value."""
    return MASKED if text and view.values.hides else text


PAGE: Final = Page("fleet", "Workers", _load)
