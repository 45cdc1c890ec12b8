"""The backend interface: the place where an app's share groups live, reached through connections of one protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from flowshare.core_errors import FlowshareError

if TYPE_CHECKING:
    from flowshare.client.net.security import Security
    from flowshare.protocol.messages import Connection


class BackendError(FlowshareError):
    """A backend cannot be used; the text says why and what to do."""


class Leader(Enum):
    """The processes that lead a backend's share groups."""

    PROCESS = "process"
    """One server of flowshare's: the process that has the path or the memory, or `flowshare serve`."""
    WORKERS = "workers"
    """The app's workers, with their state in topics of a Kafka cluster."""
    BROKERS = "brokers"
    """Kafka's brokers."""


class Feature:
    """One feature, by the leaders that have it: an attribute of `Capabilities`, True where one of these leads."""

    def __init__(self, *leaders: Leader) -> None:
        self._leaders = leaders

    def __get__(self, of: Capabilities, kind: object = None) -> bool:
        return of.leader in self._leaders


_OURS: Final = (Leader.PROCESS, Leader.WORKERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The features that differ between backends, checked when an app starts. A table in docs/backends.md tells users.

    leader: who leads; it decides all features but these two. durable: confirmed writes survive a restart. settling:
    outputs can be written in one step with accepting their inputs.

    cheap_acknowledge: each acknowledgement may be sent alone, because none costs a broker a write. delayed_release: a
    release can carry a delay. unrun_release: a record that was never run can be released without costing an attempt.
    server_dead_letters: the server can write dead letters of records that the delivery limit archives.
    letters_by_choice: a group chooses for which of the records that it gives up the server writes letters. ranges_only:
    acquiring without record bytes. own_limits: any delivery limit and lock duration can be set. window_by_count:
    finished records behind a slow one do not count against the record locks. pausing: groups can be paused.
    group_limit: the records in flight of a whole group can be limited. priority: new records can come before
    redeliveries. key_order: of each key one record at a time is handed out, the first that is not settled.
    """

    leader: Leader
    durable: bool = True
    settling: bool = True

    cheap_acknowledge = Feature(Leader.PROCESS)
    delayed_release = unrun_release = server_dead_letters = letters_by_choice = ranges_only = Feature(*_OURS)
    own_limits = window_by_count = pausing = group_limit = priority = key_order = Feature(*_OURS)

    @property
    def durable_acquires(self) -> bool:
        """True if an acquire is written before its records leave, so that no delivery is forgotten."""
        return self.durable and self.leader in _OURS


EMBEDDED: Final = Capabilities(leader=Leader.PROCESS)
MEMORY: Final = Capabilities(leader=Leader.PROCESS, durable=False)
WORKERS: Final = Capabilities(leader=Leader.WORKERS)
NATIVE: Final = Capabilities(leader=Leader.BROKERS, settling=False)
SERVED: Final = EMBEDDED
"""A `kafka://` address at which one of flowshare's own servers answers (`flowshare serve`, a path's port)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaAddress:
    """Address for clients of Kafka's protocol: `host:port` of a backend's brokers, and their security."""

    hosts: tuple[str, ...]
    security: Security | None = None


GroupNeeds = Mapping[str, Sequence[str]]
"""Needs of an app: each of its groups, with what Kafka's brokers lack for that group, in words."""
NOTHING_ASKED: Final[GroupNeeds] = MappingProxyType({})


class Backend(ABC):
    """One opened backend; everything runs on the loop that called `start`."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """The backend's name: embedded, memory, workers, native, or log (a Kafka without share groups)."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """The features of this backend."""

    @property
    def kafka(self) -> KafkaAddress | None:
        """Address for other people's Kafka clients; None when they cannot connect, or before `start`."""
        return None

    @abstractmethod
    async def start(self) -> None:
        """Open the backend. Raises: BackendError, LogError (StorageHeld names the holder of the path)."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections, write what is queued, release everything; harmless when the backend was not opened."""

    @abstractmethod
    async def connect(self, client_id: str) -> Connection:
        """Open a new connection. Raises: BackendError before `start` and after `close`."""

    async def check_groups(self, groups: Collection[str]) -> None:  # noqa: B027 - where there is no other place
        """Check, before a group is used, that the group is not in another place: used here, it would begin anew.

        Raises: BackendError with what to do, ClientError, OSError.
        """

    async def set_address(self, address: str, supervisor: str = "") -> None:  # noqa: B027 - where it is not possible
        """Tell other processes the address of this process's health pages (`host:port`), where that is possible.

        supervisor: `host:port` of the pages of this worker's supervisor; empty: no supervisor.
        """

    def on_lost(self, listener: Callable[[BackendError], object]) -> None:  # noqa: B027 - where it cannot happen
        """Have `listener` called once when the backend's data is gone for good, so that waiting is of no use."""

    def stats(self) -> Mapping[str, Any]:
        """Return counters and gauges of the share-partitions led here (`Server.stats`); empty when this process leads
        none."""
        return {}
