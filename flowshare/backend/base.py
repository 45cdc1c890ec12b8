"""What a backend is: the place where an app's share groups live, reached through connections of one protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from flowshare.errors import FlowshareError

if TYPE_CHECKING:
    from flowshare.client.net.security import Security
    from flowshare.protocol.messages import Connection


class BackendError(FlowshareError):
    """A backend cannot be used; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What differs between backends, checked when an app starts.

    durable: what was confirmed is there after a restart. durable_acquires: an acquire is written before its records
    leave, so that no delivery is forgotten. delayed_release: a release can carry a delay.
    unrun_release: a record that was never run can go back without costing an attempt. server_dead_letters: what the
    delivery limit archives can be dead-lettered by the server. ranges_only: acquiring without record bytes.
    group_configs: groups have settings. cheap_acknowledge: each may be sent by itself, because none is a write of a
    broker's.
    own_limits: any delivery limit and lock duration can be had. window_by_count: finished records behind a slow one do
    not count against the record locks. pausing: groups can be paused. group_limit: what a whole group has in flight can
    be limited. priority: new records can come before redeliveries. key_order: of each key one record at a time is out,
    the first that is not settled. settling: outputs can be written in one step with what accepts their inputs.
    What users are told of them is a table of docs/backends.md.
    """

    durable: bool
    durable_acquires: bool = True
    delayed_release: bool = True
    unrun_release: bool = True
    server_dead_letters: bool = True
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaAddress:
    """Where clients of Kafka's protocol reach a backend: `host:port` of its brokers, and how they are secured."""

    hosts: tuple[str, ...]
    security: Security | None = None


GroupNeeds = Mapping[str, Sequence[str]]
"""All groups of an app, with what Kafka's brokers lack of what each asks for, in words."""
NOTHING_ASKED: Final[GroupNeeds] = MappingProxyType({})


class Backend(ABC):
    """One opened backend; everything happens on the loop that called `start`."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """Which backend it is: embedded, memory, workers, native, or log (a Kafka without share groups)."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What it can do."""

    @property
    def kafka(self) -> KafkaAddress | None:
        """Where other people's Kafka clients reach it; None when they cannot, or before `start`."""
        return None

    @abstractmethod
    async def start(self) -> None:
        """Open it. Raises: BackendError, LogError (StorageHeld names who holds the path)."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections, write what is queued, let go of everything; harmless when it was not opened."""

    @abstractmethod
    async def connect(self, client_id: str) -> Connection:
        """A new connection. Raises: BackendError before `start` and after `close`."""

    async def check_groups(self, groups: Collection[str]) -> None:  # noqa: B027 - where there is no other place
        """See, before a group is used, that it is not in another place: there it would be, here it would begin anew.

        Raises: BackendError with what to do, ClientError, OSError.
        """

    async def set_address(self, address: str) -> None:  # noqa: B027 - where it is not possible
        """Make known to other processes where this one's health pages answer (`host:port`), where that is possible."""

    def on_lost(self, listener: Callable[[BackendError], object]) -> None:  # noqa: B027 - where it cannot happen
        """Have `listener` told, once, when what lay there is gone for good: to wait for it is of no use."""

    def stats(self) -> Mapping[str, Any]:
        """Counters and gauges of the share-partitions led here, `Server.stats`; empty when none are."""
        return {}
