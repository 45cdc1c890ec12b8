"""Held records and their holders, in all share-partitions of groups with records in flight: for several pages."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from flowshare.client.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from flowshare.console.pages.page import View
    from flowshare.ops.figures import GroupFigures, PartitionFigures
    from flowshare.ops.session import CommandSession

PARTITIONS_MAX: Final = 64
"""Share-partitions that one page asks about; those with the most come first."""
RUNS_MAX: Final = 1_000
AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Neighbouring records in the same state. due_ms: end of the lock, or of the delay."""

    group: str
    topic: str
    partition: int
    first: int
    last: int
    state: str
    attempt: int
    member: str
    due_ms: int

    @property
    def count(self) -> int:
        """The record count."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search. runs: the runs found. left_out: share-partitions that were not asked. unknown: missing
    facts, with reasons."""

    runs: list[Held]
    left_out: int = 0
    unknown: tuple[str, ...] = ()


async def find(view: View, states: Sequence[str], column: str, group: str | None = None) -> Found:
    """Return the runs in these states. column: of `PartitionFigures`, tells which partitions have any. group: of this
    one only."""
    lines = [line for line in view.collector.look.groups.values() if group in (None, line.name)]
    parts = [part for line in lines if line.kind == "share" for part in line.partitions]
    counts = [(getattr(part, column), part) for part in parts]
    places = sorted((pair for pair in counts if pair[0]), key=lambda pair: -pair[0])
    unknown: list[str] = []
    if any(count is None for count, _ in counts):
        unknown.append(_untold(column))

    async def ask(session: CommandSession) -> list[list[Held]]:
        turns = asyncio.Semaphore(AT_ONCE)
        return await asyncio.gather(
            *(_of(session, part, states, turns, unknown) for _, part in places[:PARTITIONS_MAX])
        )

    runs = [run for found in (await view.source.ask(ask) if places else []) for run in found]
    return Found(runs, max(0, len(places) - PARTITIONS_MAX), tuple(dict.fromkeys(unknown)))


def _untold(column: str) -> str:
    """Return the facts that Kafka's brokers do not tell."""
    if column != "delayed":
        return "Kafka's brokers do not tell who holds what"
    return "Kafka's brokers know no delays: members hold what comes again soon"


async def _of(
    session: CommandSession,
    part: PartitionFigures,
    states: Sequence[str],
    turns: asyncio.Semaphore,
    unknown: list[str],
) -> list[Held]:
    group, topic, partition = part.group, part.topic, part.partition
    async with turns:
        try:
            page = await session.admin.browse(group, topic, partition, states=tuple(states), limit=RUNS_MAX)
        except ClientError as error:
            unknown.append(f"{group}, {topic}-{partition}: {error}")
            return []
    if page.unknown:
        unknown.append(f"{group}: {page.unknown}")
    return [
        Held(
            group=group,
            topic=topic,
            partition=partition,
            first=run.first,
            last=run.last,
            state=run.state,
            attempt=run.delivery_count,
            member=run.member_id,
            due_ms=run.due_ms,
        )
        for run in page.runs
    ]


def stuck_keys(lines: Iterable[GroupFigures]) -> list[dict[str, Any]]:
    """Return the records that others of their key wait for, each with its group and topic."""
    return [
        {"group": line.name, "topic": topic.topic, **key._asdict()}
        for line in lines
        for topic in line.topics
        for key in topic.stuck
        if key.blocked
    ]


class Whose:
    """Finds the group whose record a handler works on. lines: of all groups."""

    def __init__(self, runs: Sequence[Held], lines: Iterable[GroupFigures]) -> None:
        self._runs: dict[tuple[str, int], list[Held]] = {}
        for run in runs:
            self._runs.setdefault((run.topic, run.partition), []).append(run)
        self._readers: dict[str, set[str]] = {}
        for line in lines:
            for topic in line.topics:
                self._readers.setdefault(topic.topic, set()).add(line.name)

    def run(self, row: Mapping[str, Any]) -> tuple[str | None, Held | None]:
        """Return the group, if clear, and its held run there, if known.

        row: a worker's, with agent, topic, partition and offset. A group is named after its agent, unless it was given
        another name.
        """
        beside = self._runs.get((row.get("topic", ""), row.get("partition", -1)), ())
        holding = {run.group: run for run in beside if run.first <= row["offset"] <= run.last}
        suffix = f".{row.get('agent')}"
        named = {one for one in self._readers.get(row.get("topic", ""), ()) if one.endswith(suffix)}
        found = (named & holding.keys()) if named and holding else (named or holding.keys())
        if len(found) != 1:
            return None, None
        group = next(iter(found))
        return group, holding.get(group)
