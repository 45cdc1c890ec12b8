"""Dead letters as operators see them: where they are, what they say of themselves, and how they look."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from flowshare.ops import Failure
from flowshare.ops.arguments import moment, together

if TYPE_CHECKING:
    from flowshare.ops.replay import Replayed
    from flowshare.ops.session import CommandSession

SUFFIX: Final = ".dlq"
ROUND: Final = 1_000
"""Letters that are read, or sent, at once."""
SERVER_PREFIX: Final = "__dlq.errors."
"""Headers of dead letters that the server itself writes: records that the delivery limit archived (KIP-1191)."""
NOT_COPIED: Final = "key, value and headers: the server did not copy the record, which is at its place"
_SERVERS: Final = {"delivery.count": "attempts", "message": "reason", "topic.id": "topic_id"}
"""The server's names of facts that an agent's dead letters have too."""
_NUMBERS: Final = ("partition", "offset", "attempts", "timestamp")
"""Facts that are numbers, though headers have text only."""
_NUMBER_MAX: Final = 19
_FACTS: Final = ("reason", "exception", "topic", "partition", "offset", "attempts", "agent", "group", "timestamp")


filter_options: Final = together(
    click.option("--reason", help="The reason contains this."),
    click.option("--exception", help="The exception's name contains this."),
    click.option("--agent", help="Died in this agent."),
    click.option("--since", metavar="ISO", help="Died at or after this time (UTC unless it names a zone)."),
)
"""The filters of letters; a command gets them as keyword arguments, for `LetterFilter.of`."""


class LetterFilter(NamedTuple):
    """The dead letters that are meant; the default: all of them. given: a filter was given."""

    reason: str = ""
    exception: str = ""
    agent: str | None = None
    since_ms: float = -math.inf
    given: bool = False

    @classmethod
    def of(cls, reason: str | None, exception: str | None, agent: str | None, since: str | None) -> LetterFilter:
        """Read the texts of options. Raises: UsageError."""
        since_ms = -math.inf if since is None else moment(since, "--since").timestamp() * 1000
        given = any((reason, exception, agent, since))
        return cls((reason or "").lower(), (exception or "").lower(), agent, since_ms, given)

    def takes(self, letter: Mapping[str, Any]) -> bool:
        """True if this letter is meant."""
        return (
            self.reason in letter["reason"].lower()
            and self.exception in letter["exception"].lower()
            and self.agent in (None, letter["agent"])
            and letter["died_ms"] >= self.since_ms
        )


async def partitions_of(session: CommandSession, topic: str) -> int:
    """How many the topic has. Raises: Failure (it is a group's name), ServerError (there is none)."""
    names = {found.name: found for found in await session.admin.list_topics()}
    if topic not in names and topic + SUFFIX in names:
        raise Failure(f"there is no topic {topic!r}; the dead letters of the group are in {topic + SUFFIX}")
    return (names.get(topic) or await session.admin.describe_topic(topic)).partitions


async def read_letters(session: CommandSession, topic: str) -> AsyncIterator[dict[str, Any]]:
    """The topic's letters, oldest first in each partition."""
    for partition in range(await partitions_of(session, topic)):
        ends = await session.admin.offsets(topic, partition)
        offset = ends.log_start
        while offset < ends.high_watermark:
            records = await session.admin.read(topic, partition, offset, limit=ROUND)
            if not records:
                break
            for record in records:
                yield letter_of(topic, partition, record)
            offset = records[-1].offset + 1


def letter_of(topic: str, partition: int, record: Any) -> dict[str, Any]:
    from flowshare.agents.feed.dead_letter import PREFIX

    texts = {name: (value or b"").decode("utf-8", "replace") for name, value in record.headers}
    facts = {_SERVERS.get(name, name): text for name, text in _cut(texts, SERVER_PREFIX).items()}
    if facts and record.key is None and record.value is None:
        facts["left_out"] = NOT_COPIED
    facts |= _cut(texts, PREFIX)
    return {
        **{name: facts.get(name, "") for name in _FACTS},
        "is_letter": bool(facts),
        "trace": facts.get("trace", ""),
        "topic_id": facts.get("topic_id", ""),
        "left_out": facts.get("left_out", ""),
        "letter_topic": topic,
        "letter_partition": partition,
        "letter_offset": record.offset,
        "died_ms": record.timestamp_ms,
        "headers": record.headers,
        "raw_key": record.key,
        "raw_value": record.value,
    }


def place_of(topic: str, text: str) -> tuple[int, int]:
    """Partition and offset of a letter, with the topic in front or without, as `dlq show` prints them."""
    partition, _, offset = text.removeprefix(f"{topic}-").partition("@")
    if not (partition.isdecimal() and offset.isdecimal()):
        raise click.BadParameter(f"{text!r} is no place of {topic}, such as {topic}-0@17 or 0@17", param_hint="--at")
    return int(partition), int(offset)


def plain(letter: Mapping[str, Any], replayed: Replayed | None) -> dict[str, Any]:
    """A letter for tables and JSON. replayed: of its topic; None: it is not told."""
    kept = {name: letter[name] for name in (*_FACTS, "trace")}
    kept |= {name: _number(letter[name]) for name in _NUMBERS}
    origin = f"{letter['topic']}-{letter['partition']}@{letter['offset']}" if letter["topic"] else ""
    headers = {name: text_of(value) for name, value in letter["headers"] if not is_own(name)}
    return {
        **kept,
        "at": place_text(letter),
        "replayed": None if replayed is None else (letter["letter_partition"], letter["letter_offset"]) in replayed,
        "died": time_of(letter["died_ms"]),
        "origin": origin,
        "key": text_of(letter["raw_key"]),
        "value": text_of(letter["raw_value"]),
        "headers": headers,
    }


def _number(text: str) -> int | None:
    """Return a header's number; None: the text is no number."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdecimal() and len(digits) <= _NUMBER_MAX else None


def is_own(name: str) -> bool:
    from flowshare.agents.feed.dead_letter import PREFIX

    return name.startswith((PREFIX, SERVER_PREFIX))


def place_text(letter: Mapping[str, Any]) -> str:
    return f"{letter['letter_topic']}-{letter['letter_partition']}@{letter['letter_offset']}"


def text_of(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")


def time_of(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _cut(texts: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): text for name, text in texts.items() if name.startswith(prefix)}
