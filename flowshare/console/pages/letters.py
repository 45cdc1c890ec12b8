"""Dead letters: their topics; of one topic grouped by exception and reason; one letter with its trace and record."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from flowshare.console.markup import HEADERS_MAX
from flowshare.console.pages.page import BYTES_MAX, PARTITION_MAX, ROWS_MAX, Context, Missing, Page, Query, View
from flowshare.console.values import MASKED, masked_kind, masked_trace
from flowshare.ops.letters import SUFFIX, is_own, letter_of, partitions_of, place_of, plain
from flowshare.ops.replay import Replayed, replayed_in

if TYPE_CHECKING:
    from flowshare.ops.session import CommandSession

_NUMBERS: Final = re.compile(r"\d+(\.\d+)?")
NEWEST: Final = 2_000
"""The newest letters of a topic that are read to group them."""
SHOWN: Final = 100


async def _load(view: View, query: Query) -> Context:
    topic, at = query.get("topic") or None, query.get("at") or None
    if topic is None:
        return {"topic": None, "letter": None, "topics": await view.source.ask(_topics)}
    if at is not None:
        return {"topic": topic, "topics": None, "letter": await _one(view, topic, at, view.values.form(query))}
    wanted = query.get("reason", "").lower(), query.get("exception", "").lower()
    letters, total, replayed = await view.source.ask(lambda session: _newest(session, topic))
    if view.values.hides:  # masked before the search: a match would tell the hidden text
        letters = [_masked(letter) for letter in letters]
    if letters and not any(letter["is_letter"] for letter in letters):
        raise Missing(f"the newest records of {topic} are no dead letters; topics of dead letters are named *{SUFFIX}")
    kind = (query["exception"], query["kind"]) if "kind" in query and "exception" in query else None
    chosen = [
        letter
        for letter in letters
        if (kind_of(letter) == kind if kind else wanted[0] in letter["reason"].lower())
        and wanted[1] in letter["exception"].lower()
    ]
    return {
        "topic": topic,
        "topics": None,
        "letter": None,
        "total": total,
        "read": len(letters),
        "kinds": _kinds(letters),
        "letters": [
            {
                **plain(one, replayed),
                "died_ms": one["died_ms"],
                "place": f"{one['letter_partition']}@{one['letter_offset']}",
            }
            for one in chosen[:SHOWN]
        ],
        "more": max(0, len(chosen) - SHOWN),
        "reason": query.get("reason", ""),
        "exception": query.get("exception", ""),
        "kind": kind[1] if kind else None,
        "masks": view.values.hides,
    }


def _masked(letter: dict[str, Any]) -> dict[str, Any]:
    """Mask an exception's text, which may hold the record's values; its class and its place are shown."""
    return {
        **letter,
        "reason": MASKED if letter["reason"] else "",
        "exception": masked_kind(letter["exception"]),
        "trace": masked_trace(letter["trace"]),
    }


def kind_of(letter: Mapping[str, Any]) -> tuple[str, str]:
    """Return the key that groups letters: the exception, and the reason's first line without its numbers."""
    return letter["exception"], _NUMBERS.sub("#", letter["reason"].partition("\n")[0])[:200]


def _kinds(letters: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return exceptions and reasons, the most frequent first."""
    counts: Counter[tuple[str, str]] = Counter()
    newest: dict[tuple[str, str], int] = {}
    for letter in letters:
        kind = kind_of(letter)
        counts[kind] += 1
        newest[kind] = max(newest.get(kind, 0), letter["died_ms"])
    return [
        {"exception": exception, "reason": reason, "count": count, "newest_ms": newest[exception, reason]}
        for (exception, reason), count in counts.most_common(ROWS_MAX)
    ]


async def _topics(session: CommandSession) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for topic in await session.admin.list_topics():
        if topic.name.endswith(SUFFIX):
            parts = [session.admin.offsets(topic.name, number) for number in range(topic.partitions)]
            found = await asyncio.gather(*parts)
            count = sum(ends.high_watermark - ends.log_start for ends in found)
            replayed = await replayed_in(session.admin, topic.name)
            sent = None
            if replayed is not None:
                ends = enumerate(found)
                sent = sum(replayed.count(number, one.log_start, one.high_watermark) for number, one in ends)
            rows.append({"topic": topic.name, "count": count, "replayed": sent})
    return rows


async def _newest(session: CommandSession, topic: str) -> tuple[list[dict[str, Any]], int, Replayed | None]:
    """Return the newest letters, newest first, the number of all letters, and the replayed ones."""
    partitions = await partitions_of(session, topic)
    found: list[dict[str, Any]] = []
    total = 0
    for number in range(partitions):
        ends = await session.admin.offsets(topic, number)
        total += ends.high_watermark - ends.log_start
        first = max(ends.log_start, ends.high_watermark - NEWEST // partitions)
        if ends.high_watermark > first:
            records = await session.admin.read(topic, number, first, limit=NEWEST, bytes_max=BYTES_MAX // partitions)
            found += [letter_of(topic, number, record) for record in records]
    letters = sorted(found, key=lambda letter: (-letter["died_ms"], -letter["letter_offset"]))
    return letters, total, await replayed_in(session.admin, topic)


async def _one(view: View, topic: str, at: str, form: str) -> Context:
    partition, offset = place_of(topic, at[:60])
    if partition > PARTITION_MAX or offset >= 2**63:
        raise Missing(f"there is no letter at {topic}-{at}")

    async def ask(session: CommandSession) -> tuple[dict[str, Any], Any, Replayed | None]:
        found = await session.admin.read(topic, partition, offset, limit=1)
        if not found or found[0].offset != offset:
            raise Missing(f"there is no letter at {topic}-{partition}@{offset}")
        letter = letter_of(topic, partition, found[0])
        record = None
        if (place := _place(letter)) is not None:
            record = await _record(session, *place)
        return letter, record, await replayed_in(session.admin, topic)

    letter, record, replayed = await view.source.ask(ask)
    others = [(name, value) for name, value in letter["headers"] if not is_own(name)]
    now = None if record is None else record.value
    lacking = await view.values.learn((letter["raw_key"], letter["raw_value"], now), form)
    if view.values.hides:
        letter = _masked(letter)
    return {
        "masks": view.values.hides,
        **plain(letter, replayed),
        "died_ms": letter["died_ms"],
        "place": f"{partition}@{offset}",
        "form": form,
        "forms": view.values.forms,
        "lacking": lacking,
        "key_text": view.values.aside(letter["raw_key"]),
        "headers": {name: view.values.aside(value, name) for name, value in others[:HEADERS_MAX]},
        "more_headers": max(0, len(others) - HEADERS_MAX),
        "value_text": view.values.text(letter["raw_value"], form),
        "trace": letter["trace"],
        "left_out": letter["left_out"],
        "record": None
        if record is None
        else {"timestamp_ms": record.timestamp_ms, "value_text": view.values.text(record.value, form)},
    }


def _place(letter: Mapping[str, Any]) -> tuple[str, int, int] | None:
    """Return the place of its record, as the letter has it; None: missing or malformed."""
    partition, offset = letter["partition"], letter["offset"]
    if not letter["topic"] or not all(text.isdecimal() and len(text) < 19 for text in (partition, offset)):
        return None
    return (letter["topic"], int(partition), int(offset)) if int(partition) <= PARTITION_MAX else None


async def _record(session: CommandSession, topic: str, partition: int, offset: int) -> Any:
    """Return the record that died; None: it is gone."""
    from flowshare.client.errors import ClientError

    try:
        found = await session.admin.read(topic, partition, offset, limit=1)
    except ClientError:
        return None
    return found[0] if found and found[0].offset == offset else None


PAGE: Final = Page("letters", "Dead letters", _load)
