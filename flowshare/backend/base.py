"""The backend interface: the place where an app's share groups live, reached through connections of one protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from flowshare.core_errors import FlowshareError

if TYPE_CHECKING:
    from flowshare.client.net.security import Security
    from flowshare.protocol.messages import Connection


class BackendError(FlowshareError):
    """A backend cannot be used; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The features that differ between backends, checked when an app starts.

    durable: confirmed writes survive a restart. durable_acquires: an acquire is written before its records leave, so
    that no delivery is forgotten. delayed_release: a release can carry a delay. unrun_release: a record that was never
    run can be released without costing an attempt. server_dead_letters: the server can write dead letters of records
    that the delivery limit archives. letters_by_choice: a group chooses for which of the records that it gives up the
    server writes letters. ranges_only: acquiring without record bytes. group_configs: groups have settings.
    cheap_acknowledge: each acknowledgement may be sent alone, because none costs a broker a write. own_limits: any
    delivery limit and lock duration can be set. window_by_count: finished records behind a slow one do not count
    against the record locks. pausing: groups can be paused. group_limit: the records in flight of a whole group can be
    limited. priority: new records can come before redeliveries. key_order: of each key one record at a time is handed
    out, the first that is not settled. settling: outputs can be written in one step with accepting their inputs. A
    table in docs/backends.md tells users about these features.
    """

    durable: bool
    durable_acquires: bool = True
    delayed_release: bool = True
    unrun_release: bool = True
    server_dead_letters: bool = True
    letters_by_choice: bool = True
    ranges_only: bool = True
    group_configs: bool = True
    cheap_acknowledge: bool = True
    own_limits: bool = True
    window_by_count: bool = True
    pausing: bool = True
    group_limit: bool = True
    priority: bool = True
    key_order: bool = True
    settling: bool = True


EMBEDDED: Final = Capabilities(durable=True)
MEMORY: Final = Capabilities(durable=False, durable_acquires=False)
WORKERS: Final = Capabilities(durable=True, cheap_acknowledge=False)
NATIVE: Final = Capabilities(
    durable=True,
    durable_acquires=False,
    delayed_release=False,
    unrun_release=False,
    server_dead_letters=False,
    letters_by_choice=False,
    ranges_only=False,
    cheap_acknowledge=False,
    own_limits=False,
    window_by_count=False,
    pausing=False,
    group_limit=False,
    priority=False,
    key_order=False,
    settling=False,
)
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
