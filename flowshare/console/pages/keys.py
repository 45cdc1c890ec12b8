"""Keys of groups with an order: records that wait behind another of their key, with its holder; parked keys."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from flowshare.client.errors import ClientError, ServerError, Unsupported
from flowshare.console.forms import TEXT_MAX
from flowshare.console.pages import held
from flowshare.console.pages.page import ROWS_MAX, Context, Page, Query, View
from flowshare.share.parking import OVER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flowshare.client.admin.browsing import BrowsedRecord
    from flowshare.console.values import Values
    from flowshare.ops.session import CommandSession

Place = tuple[str, int, int]
HEADS_MAX: Final = 50
"""The most blocked keys whose records are read for one page, to name them."""
GROUPS_MAX: Final = 50
"""The most groups whose parked keys are asked for on one page."""
KEY_MAX: Final = TEXT_MAX // 2
"""The most bytes of a key that a form can name."""


async def _load(view: View, query: Query) -> Context:
    only = query.get("group") or None
    lines = [line for line in view.collector.look.groups.values() if only in (None, line.name)]
    blocked = sorted(held.stuck_keys(lines), key=lambda key: -key["blocked"])[:ROWS_MAX]
    with_parked = [line.name for line in lines if line.total.parked][:GROUPS_MAX]
    ordered = [line.name for line in lines if line.settings.get("share.key.order")]

    async def ask(session: CommandSession) -> list[dict[str, Any]]:
        return [row for name in with_parked for row in await _parked(session, name, view.values)]

    heads: dict[Place, BrowsedRecord] = {}
    if blocked:
        heads = await view.source.ask(lambda session: _heads(session, blocked[:HEADS_MAX]))
    await view.values.learn((head.key for head in heads.values()), view.values.forms[0])
    for key in blocked:
        head = heads.get((key["topic"], key["partition"], key["offset"]))
        key["key"] = None if head is None else view.values.aside(head.key)
        key["written_ms"] = None if head is None else head.timestamp_ms
    return {
        "group": only,
        "blocked": blocked,
        "parked": (await view.source.ask(ask) if with_parked else [])[:ROWS_MAX],
        "ordered": ordered,
    }


async def _heads(session: CommandSession, blocked: Sequence[Mapping[str, Any]]) -> dict[Place, BrowsedRecord]:
    """Return the records that others of their key wait behind, if readable and still there."""
    wanted: dict[tuple[str, int], set[int]] = {}
    for key in blocked:
        wanted.setdefault((key["topic"], key["partition"]), set()).add(key["offset"])
    found: dict[Place, BrowsedRecord] = {}
    for (topic, partition), offsets in wanted.items():
        try:
            page = await session.admin.records(topic, partition, [(one, one) for one in sorted(offsets)])
        except ClientError:  # no READ was granted, or the topic has just been deleted
            continue
        found |= {(topic, partition, one.offset): one for one in page.records}
    return found


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
            "key_hex": one.key.hex() if len(one.key) <= KEY_MAX else None,
            "key_mark": hashlib.sha256(one.key).hexdigest()[:32],
            "since": one.parked.first,
            "last": one.parked.last,
            "replayed": one.parked.version > OVER,
        }
        for one in told.keys
    ]


PAGE: Final = Page("keys", "Keys", _load)
