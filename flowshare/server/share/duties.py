"""What of the work is this server's. By itself it does everything; in a fleet it leads some share-partitions and
coordinates some groups, and what a leader has to know of a group comes from whoever coordinates it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import uuid

    from flowshare.server.runtime.state import ShareKey
    from flowshare.share.config import GroupConfig


class PartitionLeader(NamedTuple):
    """Who leads: node and leader epoch, and where the node is."""

    current: tuple[int, int] = (-1, -1)
    address: tuple[str, int] | None = None


NOT_KNOWN: Final = PartitionLeader()


class Duties:
    """Asked before anything is done for a group or a share-partition; a server by itself has all of it.

    config_of: of a group, as set here. living: members of a group that may come back after a restart. gone: those whose
    processes are known to have ended.
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
        """Raises: Refused (NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS), when another server coordinates it."""

    def check_leader(self, key: ShareKey) -> None:
        """Raises: NotLed, when another server leads it."""

    def worker_gone(self, node_id: int, /) -> bool:
        """Whether a worker has left the fleet, or was given up."""
        del node_id
        return False

    def leader_of(self, topic_id: uuid.UUID, partition: int) -> PartitionLeader:
        """Who leads a partition, to be told to those who ask here in vain; NOT_KNOWN when that is no use."""
        del topic_id, partition
        return NOT_KNOWN

    async def admit(self, group_id: str) -> None:
        """Before a group is made. Raises: GroupIdNotFound (its id belongs to somebody else), Refused."""

    async def know(self, topics: Iterable[str]) -> None:
        """Before a member joins that subscribes to these: have looked for them, so that it is assigned them at once."""

    async def exists(self, topic_id: uuid.UUID) -> bool:
        """Whether there is a topic that is not known here: looked for, and known then. Raises: LogError (not told)."""
        del topic_id
        return False

    async def prepare(self, key: ShareKey) -> None:
        """Before one is loaded: know its group's settings and its log's bounds. Raises: LogError, Refused."""

    def dropped(self, key: ShareKey) -> None:
        """A share-partition that was prepared is loaded no more."""

    def config_of(self, group_id: str, /) -> GroupConfig:
        """A group's settings as they act on its share-partitions."""
        return self._config_of(group_id)

    def living(self, group_id: str, /) -> Container[str]:
        """The group's members that keep what they hold when a share-partition is loaded."""
        return self._living(group_id)

    def gone(self, group_id: str, /) -> Container[str]:
        """The group's former members whose processes are known to have ended."""
        return self._gone(group_id)
