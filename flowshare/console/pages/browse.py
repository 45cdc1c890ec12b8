"""Records of a topic, without taking them: by offset, time or key, with state and attempts in a group."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from flowshare.client.errors import ClientError
from flowshare.console.markup import HEADERS_MAX
from flowshare.console.pages.page import BYTES_MAX, PARTITION_MAX, ROWS_MAX, Context, Page, Query, View, whole
from flowshare.console.values import MASKED
from flowshare.ops.letters import is_own

if TYPE_CHECKING:
    from flowshare.client.admin.browsing import BrowsePage
    from flowshare.console.values import Values
    from flowshare.ops.session import CommandSession

SHOWN: Final = 50
SEARCHED: Final = 5_000
"""The most records that are read to find a key."""


async def _load(view: View, query: Query) -> Context:
    topics = await view.source.ask(lambda session: session.admin.list_topics())
    form = view.values.form(query)
    base: Context = {
        "topics": [topic.name for topic in topics[:ROWS_MAX]],
        "groups": sorted(view.collector.look.groups)[:ROWS_MAX],
        "query": query,
        "form": form,
        "forms": view.values.forms,
        "rows": None,
    }
    if not query.get("topic"):
        return base
    return base | await _records(view, query, form)


async def _records(view: View, query: Query, form: str) -> Context:
    topic, partition = query["topic"], whole(query, "partition", 0, most=PARTITION_MAX)
    group, key = query.get("group") or None, query.get("key") or None
    states: dict[int, Any] = {}

    async def ask(session: CommandSession) -> tuple[list[Any], Any, int, str | None]:
        bounds = await session.admin.offsets(topic, partition)
        first = await _first(session, query, topic, partition, bounds)
        limit = SHOWN if key is None else SEARCHED
        records = (
            await session.admin.read(topic, partition, first, limit=limit, bytes_max=BYTES_MAX)
            if first < bounds.high_watermark
            else []
        )
        at = records[-1].offset + 1 if records else first
        if key is not None:
            records = [one for one in records if one.key == key.encode()][:SHOWN]
        why = await _add_states(session, group, topic, partition, records, states) if group else None
        return records, bounds, at, why

    records, bounds, after, why = await view.source.ask(ask)
    lacking = await view.values.learn((raw for one in records for raw in (one.value, one.key)), form)
    return {
        "topic": topic,
        "partition": partition,
        "bounds": bounds,
        "after": after if after < bounds.high_watermark else None,
        "searched": SEARCHED if key is not None else None,
        "why": why,
        "lacking": lacking,
        "rows": [
            {
                "offset": one.offset,
                "timestamp_ms": one.timestamp_ms,
                "key": view.values.aside(one.key),
                "value": view.values.text(one.value, form),
                "headers": [(name, _header(name, value, view.values)) for name, value in one.headers[:HEADERS_MAX]],
                "more_headers": max(0, len(one.headers) - HEADERS_MAX),
                "run": states.get(one.offset),
            }
            for one in records
        ],
    }


async def _first(session: CommandSession, query: Query, topic: str, partition: int, bounds: Any) -> int:
    """Return the first offset: given, by a time, or else of the newest records. Raises ValueError."""
    if query.get("from"):
        return max(int(bounds.log_start), whole(query, "from"))
    if query.get("time"):
        try:
            at = datetime.fromisoformat(query["time"])
        except ValueError:
            raise ValueError(f"{query['time'][:40]!r} is no time such as 2026-11-21T09:00:00 (UTC)") from None
        return await session.admin.offset_at(topic, partition, at if at.tzinfo else at.replace(tzinfo=UTC))
    return int(max(bounds.log_start, bounds.high_watermark - (SHOWN if not query.get("key") else SEARCHED)))


async def _add_states(
    session: CommandSession, group: str, topic: str, partition: int, records: list[Any], states: dict[int, Any]
) -> str | None:
    """Add the group's states of these records to `states`. Returns the reason if states are not told."""
    if not records:
        return None
    try:
        page = await session.admin.browse(group, topic, partition, from_offset=records[0].offset)
    except ClientError as error:
        return str(error)
    offsets = [one.offset for one in records]
    for run in page.runs:
        states |= {offset: run for offset in offsets if run.first <= offset <= run.last}
    for offset in offsets:
        if offset not in states and page.initialised:
            states[offset] = _outside(page, offset)
    return page.unknown or None


def _outside(page: BrowsePage, offset: int) -> str:
    """Return the state of an offset that is in no run."""
    if offset < page.start_offset:
        return "finished"
    if page.kind != "native":
        return "not reached"
    return "not told"


def _header(name: str, value: bytes | None, values: Values) -> str:
    """Return a header as text; with masks without the text of a dead letter's exception: it may hold any value."""
    says_more = is_own(name) and name.endswith(("reason", "message", "exception", "trace"))
    return MASKED if values.hides and says_more else values.aside(value, name)


PAGE: Final = Page("browse", "Browse", _load)
