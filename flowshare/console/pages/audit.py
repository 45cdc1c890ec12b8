"""The audit: who did what, when, and the outcome."""

from __future__ import annotations

from typing import Final

from flowshare.console.pages.page import Context, Page, Query, View, whole

SHOWN: Final = 100


async def _load(view: View, query: Query) -> Context:
    before = whole(query, "before") if query.get("before") else None
    deeds = await view.store.deeds(before=before, limit=SHOWN)
    return {"deeds": deeds, "older": deeds[-1].number if len(deeds) == SHOWN else None}


PAGE: Final = Page("audit", "Audit", _load)
