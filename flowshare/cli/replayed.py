"""Which dead letters were replayed, so that a second `dlq replay` leaves them out.

It stands where every backend keeps such things: as committed offsets of a consumer group without members,
`<dead-letter topic>.replayed`, the offset of a partition being the first that was not replayed, and the metadata the
runs behind it (`17-20,25`). Brokers forget it a week after the last replay, unless offsets.retention.minutes says else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowshare.client.admin import ShareAdmin

SUFFIX: Final = ".replayed"
METADATA_MAX: Final = 4000
"""Characters of metadata: brokers take 4,096 bytes (offset.metadata.max.bytes)."""

Run = tuple[int, int]
"""First and last offset."""


class Replayed:
    """The replayed letters of one dead-letter topic."""

    def __init__(self, admin: ShareAdmin, topic: str) -> None:
        self._admin = admin
        self._topic = topic
        self._runs: dict[int, list[Run]] = {}

    async def load(self) -> None:
        """Read what is remembered."""
        for part in await self._admin.committed_offsets(self._topic + SUFFIX):
            if part.topic == self._topic and part.offset >= 0:
                self._runs[part.partition] = merged(
                    [*([(0, part.offset - 1)] if part.offset else []), *parse(part.metadata)]
                )

    def __contains__(self, place: tuple[int, int]) -> bool:
        """Whether the letter at this partition and offset was replayed."""
        partition, offset = place
        return any(first <= offset <= last for first, last in self._runs.get(partition, ()))

    async def check(self) -> None:
        """Whether letters can be remembered, before any is sent. Raises: ServerError (the group may not be written)."""
        await self._commit(self._runs or {0: []})

    async def add(self, places: list[tuple[int, int]]) -> None:
        """Remember letters, by partition and offset."""
        for partition, offset in places:
            self._runs[partition] = merged([*self._runs.get(partition, ()), (offset, offset)])
        await self._commit({partition for partition, _ in places})

    async def _commit(self, partitions: Iterable[int]) -> None:
        from flowshare.protocol.messages import OffsetToCommit

        commits = []
        for partition in sorted(partitions):
            runs = self._runs.get(partition, [])
            start = (await self._admin.offsets(self._topic, partition)).log_start
            runs = merged([*([(0, start - 1)] if start else []), *runs])  # what is deleted needs no run of its own
            behind = runs[0][1] + 1 if runs and runs[0][0] == 0 else 0
            text = format_runs([run for run in runs if run[0] >= behind])
            commits.append(OffsetToCommit(self._topic, partition, behind, -1, text))
        await self._admin.commit_offsets(self._topic + SUFFIX, commits)


def merged(runs: list[Run]) -> list[Run]:
    """The same offsets in as few runs as there can be, ascending."""
    found: list[Run] = []
    for first, last in sorted(runs):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def format_runs(runs: list[Run]) -> str:
    """Runs as text, the newest as far as there is room."""
    texts: list[str] = []
    room = METADATA_MAX
    for first, last in reversed(runs):
        text = str(first) if first == last else f"{first}-{last}"
        room -= len(text) + 1
        if room < 0:
            break
        texts.append(text)
    return ",".join(reversed(texts))


def parse(text: str) -> list[Run]:
    """What `format_runs` wrote; nothing of what somebody else did."""
    runs: list[Run] = []
    for word in text.split(","):
        first, _, last = word.partition("-")
        if first.isdecimal() and (last.isdecimal() or not last):
            runs.append((int(first), int(last or first)))
    return runs
