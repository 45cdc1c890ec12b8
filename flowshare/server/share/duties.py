"""This server's part of the work. A server by itself does everything. In a fleet a server leads some share-partitions
and coordinates some groups; a leader learns about a group from the server that coordinates the group."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import uuid

    from flowshare.server.runtime.state import ShareKey
    from flowshare.share.config import GroupConfig


class PartitionLeader(NamedTuple):
    """The leader of a partition: node and leader epoch, and the node's address."""

    current: tuple[int, int] = (-1, -1)
    address: tuple[str, int] | None = None


NOT_KNOWN: Final = PartitionLeader()


class Duties:
    """Asked before any work for a group or a share-partition; a server by itself has all duties.

    config_of: returns a group's config, as set here. living: returns members of a group that may come back after a
    restart. gone: returns those whose processes are known to have ended.
    """

    def __init__(
        self,
        config_of: Callable[[str], GroupConfig],
        living: Callable[[str], Container[str]],
        gone: Callable[[str], Container[str]] = lambda _: (),
    ) -> None:
        self._config_of = config_of
        self._living = living
        self._gone = gone

    def check_coordinator(self, group_id: str) -> None:
        """Check that this server coordinates the group. Raises: Refused (NOT_COORDINATOR,
        COORDINATOR_LOAD_IN_PROGRESS)."""

    def check_leader(self, key: ShareKey) -> None:
        """Check that this server leads it. Raises: NotLed."""

    def worker_gone(self, node_id: int, /) -> bool:
        """Return True if a worker has left the fleet, or was given up."""
        del node_id
        return False

    def leader_of(self, topic_id: uuid.UUID, partition: int) -> PartitionLeader:
        """Return a partition's leader, for clients that ask here in vain; NOT_KNOWN when that is no use."""
        del topic_id, partition
        return NOT_KNOWN

    async def admit(self, group_id: str) -> None:
        """Check a new group's id. Raises: GroupIdNotFound (another group has the id), Refused."""

    async def know(self, topics: Iterable[str]) -> None:
        """Look for the topics of a member that is about to join, so that they are assigned to it at once."""

    async def exists(self, topic_id: uuid.UUID) -> bool:
        """Look for a topic that is not known here; return True if it exists, and is known now. Raises: LogError (not
        told)."""
        del topic_id
        return False

    async def prepare(self, key: ShareKey) -> None:
        """Learn a group's settings and a log's bounds before its share-partition is loaded. Raises: LogError,
        Refused."""

    def dropped(self, key: ShareKey) -> None:
        """Note that a prepared share-partition is not loaded any more."""

    def config_of(self, group_id: str, /) -> GroupConfig:
        """Return a group's settings as they act on its share-partitions."""
        return self._config_of(group_id)

    def living(self, group_id: str, /) -> Container[str]:
        """Return the group's members that keep their records when a share-partition is loaded."""
        return self._living(group_id)

    def gone(self, group_id: str, /) -> Container[str]:
        """Return the group's former members whose processes are known to have ended."""
        return self._gone(group_id)
