"""Where the ordinary committed offset of a group stands, which is the stable offset for every tool.

On a server with consumer groups of its own (`InGroups`) it is written in one piece with the state, so it is exactly the
stable offset, or somebody else has set it: an administrator, or a consumer before. Then the group begins anew there,
and until it does that offset is left alone. A partition has state exactly as long as the group has an offset committed
for it: what is stored besides is left over from a group that was deleted, and counts for nothing.

In a fleet (`InKafka`) it is Kafka's. The members commit it there and say what stands there, with each first hold of a
partition; so it may be older than the stable offset, and is told apart by its metadata. That none is there means that
the group was deleted if one was seen before, else that no member has come to commit it yet.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from flowshare.core_errors import CoordinatorNotAvailable, InvalidGroupId
from flowshare.groups.offsets import OFFSET_BYTES, Committed, OffsetChange, OffsetPartition
from flowshare.log.base import LogError
from flowshare.protocol.messages.cooperative import GroupOffset
from flowshare.server.runtime.state import GROUP_ID_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from contextlib import AbstractAsyncContextManager

    from flowshare.log.base import CheckedOutput, StateStore, Topic
    from flowshare.server.groups.coordinator import ConsumerGroups
    from flowshare.server.runtime.state import Write

METADATA_BYTES: Final = 100


class StableOffset(NamedTuple):
    """A stable offset as it is committed the ordinary way."""

    topic: Topic
    partition: int
    value: GroupOffset


class Beside(Protocol):
    """The groups' ordinary committed offsets."""

    exact: bool
    """True if the ordinary committed offset and the state are written in one piece."""

    def check(self, group_id: str) -> None:
        """Check that a group of this id can be cooperative. Raises: CoreError, Refused."""

    def committed(self, group_id: str, topic: Topic, partition: int) -> GroupOffset | None:
        """Return the committed offset of a partition, as far as this server knows it."""
        ...

    def locked(self, group_id: str, party: str | None) -> AbstractAsyncContextManager[None]:
        """While the state of a group is read or written. party: who makes the group if it is not there. Raises:
        CoreError, Refused."""
        ...

    async def write(
        self,
        group_id: str,
        writes: Sequence[Write],
        moved: Sequence[StableOffset],
        outputs: Sequence[CheckedOutput] = (),
    ) -> None:
        """Write state, stable offsets and outputs in one piece; the group is locked. Raises: `WRITE_ERRORS`."""

    async def delete(self, group_id: str) -> None:
        """Delete the group with its offsets and its state, where these are one. Raises: CoreError, LogError."""


class InGroups:
    """The consumer groups of this server."""

    exact = True

    def __init__(self, groups: ConsumerGroups) -> None:
        self._groups = groups

    def check(self, group_id: str) -> None:
        """Raises: InvalidGroupId, InconsistentGroupProtocol (a share group), StateCorrupt."""
        if self._groups.entries.get(group_id) is None:
            self._groups.discard_void(self._groups.ensure(group_id))

    def committed(self, group_id: str, topic: Topic, partition: int) -> GroupOffset | None:
        """As it is at this moment."""
        entry = self._groups.entries.get(group_id)
        if entry is None:
            return None
        found = entry.offsets.committed.get(OffsetPartition(topic.name, partition))
        if found is None or found.topic_id != topic.topic_id:
            return None
        return GroupOffset(found.offset, found.metadata)

    @asynccontextmanager
    async def locked(self, group_id: str, party: str | None) -> AsyncGenerator[None]:
        """No offset of the group is committed or removed meanwhile."""
        while True:
            entry = self._groups.ensure(group_id, party)
            try:
                async with entry.lock:
                    if self._groups.holds(entry):  # else it was deleted while this waited
                        yield
                        return
            finally:
                self._groups.discard_void(entry)

    async def write(
        self,
        group_id: str,
        writes: Sequence[Write],
        moved: Sequence[StableOffset],
        outputs: Sequence[CheckedOutput] = (),
    ) -> None:
        """Raises: CoordinatorNotAvailable, OutputRefused."""
        entry = self._groups.find(group_id)
        now_ms = self._groups.clock.now_ms()
        changes = [
            OffsetChange(
                OffsetPartition(topic.name, partition),
                Committed(
                    offset=value.offset,
                    metadata=value.metadata,
                    commit_ms=now_ms,
                    topic_id=topic.topic_id,
                    order=entry.offsets.next_order(),
                ),
            )
            for topic, partition, value in moved
        ]
        await self._groups.write_offsets(entry, changes, beside=writes, outputs=outputs)

    async def delete(self, group_id: str) -> None:
        """Raises: GroupIdNotFound, NonEmptyGroup, LogError."""
        await self._groups.delete(group_id)


class InKafka:
    """Groups whose offsets are another server's. store: where their state is."""

    exact = False

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    def check(self, group_id: str) -> None:
        """Raises: InvalidGroupId."""
        if not 0 < len(group_id.encode()) <= GROUP_ID_BYTES_MAX:
            raise InvalidGroupId(f"a group id has 1 to {GROUP_ID_BYTES_MAX} bytes")

    def committed(self, group_id: str, topic: Topic, partition: int) -> GroupOffset | None:
        """Nothing is known here."""
        del group_id, topic, partition
        return None

    @asynccontextmanager
    async def locked(self, group_id: str, party: str | None) -> AsyncGenerator[None]:
        """One at a time."""
        del party
        lock, waiting = self._locks.get(group_id, (asyncio.Lock(), 0))
        self._locks[group_id] = lock, waiting + 1
        try:
            async with lock:
                yield
        finally:
            _, waiting = self._locks[group_id]
            self._locks[group_id] = lock, waiting - 1
            if waiting == 1:
                del self._locks[group_id]

    async def write(
        self,
        group_id: str,
        writes: Sequence[Write],
        moved: Sequence[StableOffset],
        outputs: Sequence[CheckedOutput] = (),
    ) -> None:
        """Raises: LogError."""
        assert not outputs, "outputs of a fleet are written apart from its state"
        del group_id, moved
        await self._store.write(writes)

    async def delete(self, group_id: str) -> None:
        """The offsets are Kafka's: who asks deletes them there first."""


NEW_BYTES: Final = OFFSET_BYTES + METADATA_BYTES
"""Memory that a newly committed offset takes, in bytes, about."""
WRITE_ERRORS: Final = (LogError, CoordinatorNotAvailable)
"""The errors that `Beside.write` raises: nothing of that write is stored."""
