"""Keys of groups with an order: records that wait behind another of their key, who holds that one; parked keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from flowshare.client.errors import ServerError, Unsupported
from flowshare.console.pages.page import ROWS_MAX, Context, Page, Query, View
from flowshare.share.parking import OVER

if TYPE_CHECKING:
    from flowshare.cli.session import CommandSession
    from flowshare.console.values import Values

GROUPS_MAX: Final = 50
"""Groups whose parked keys are asked for on one page."""


async def _load(view: View, query: Query) -> Context:
    only = query.get("group") or None
    lines = [line for line in view.collector.look.groups.values() if only in (None, line.name)]
    blocked: list[dict[str, Any]] = [
        {"group": line.name, "topic": row["topic"], **key}
        for line in lines
        for row in line.topics
        for key in row.get("stuck") or ()
        if key["blocked"]
    ]
    blocked.sort(key=lambda key: -key["blocked"])
    with_parked = [line.name for line in lines if line.total("parked")][:GROUPS_MAX]
    ordered = [line.name for line in lines if line.settings.configs.get("share.key.order")]

    async def ask(session: CommandSession) -> list[dict[str, Any]]:
        return [row for name in with_parked for row in await _parked(session, name, view.values)]

    return {
        "group": only,
        "blocked": blocked[:ROWS_MAX],
        "parked": (await view.source.ask(ask) if with_parked else [])[:ROWS_MAX],
        "ordered": ordered,
    }


async def _parked(session: CommandSession, group: str, values: Values) -> list[dict[str, Any]]:
    try:
        told = await session.admin.parked_keys(group)
    except (ServerError, Unsupported):
        return []
    await values.learn((one.key for one in told.keys[:ROWS_MAX]), values.forms[0])
    return [
        {
            "group": group,
            "topic": one.topic,
            "partition": one.partition,
            "key": values.aside(one.key),
            "key_hex": one.key.hex(),
            "since": one.parked.first,
            "last": one.parked.last,
            "replayed": one.parked.version > OVER,
        }
        for one in told.keys
    ]


PAGE: Final = Page("keys", "Keys", _load)
