"""What a backend is: the place where an app's share groups live, reached through connections of one protocol."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from flowshare.client.security import Security
    from flowshare.protocol.messages import Connection


class BackendError(Exception):
    """A backend cannot be used; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What differs between backends, checked when an app starts.

    durable: what was confirmed is there after a restart. durable_acquires: an acquire is written before its records
    leave, so that no delivery is forgotten. delayed_release: a release can carry a delay.
    unrun_release: a record that was never run can go back without costing an attempt. server_dead_letters: what the
    delivery limit archives can be dead-lettered by the server. ranges_only: acquiring without record bytes.
    group_configs: groups have settings. fast_acknowledge: acknowledgements need not wait for a fetch.
    cheap_acknowledge: each may be sent by itself, because none is a write of a broker's.
    own_limits: any delivery limit and lock duration can be had. window_by_count: finished records behind a slow one do
    not count against the record locks. private_stats: the server tells what is in flight and delayed.
    pausing: groups can be paused. group_limit: what a whole group has in flight can be limited. fair_locks: where
    limits are reached, members get equal parts. priority: new records can come before redeliveries.
    `backend.capabilities` has the table.
    """

    durable: bool
    durable_acquires: bool = True
    delayed_release: bool = True
    unrun_release: bool = True
    server_dead_letters: bool = True
    ranges_only: bool = True
    group_configs: bool = True
    fast_acknowledge: bool = True
    cheap_acknowledge: bool = True
    own_limits: bool = True
    window_by_count: bool = True
    private_stats: bool = True
    pausing: bool = True
    group_limit: bool = True
    fair_locks: bool = True
    priority: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaAddress:
    """Where clients of Kafka's protocol reach a backend: `host:port` of its brokers, and how they are secured."""

    hosts: tuple[str, ...]
    security: Security | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What an app asks of whoever leads its groups. groups: all of them, group id -> in words what Kafka's brokers
    lack."""

    groups: Mapping[str, Sequence[str]]


NOTHING_ASKED: Final = Asked({})


class Backend(Protocol):
    """One opened backend; everything happens on the loop that called `start`."""

    @property
    def kind(self) -> str:
        """Which backend it is: embedded, memory, workers or native."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        ...

    @property
    def kafka(self) -> KafkaAddress | None:
        """Where other people's Kafka clients reach it; None when they cannot, or before `start`."""
        ...

    async def start(self) -> None:
        """Open it. Raises: BackendError, LogError (StorageHeld names who holds the path)."""

    async def close(self) -> None:
        """Close all connections, write what is queued, let go of everything; harmless when it was not opened."""

    async def connect(self, client_id: str) -> Connection:
        """A new connection. Raises: BackendError before `start` and after `close`."""
        ...

    async def check_groups(self, groups: Collection[str]) -> None:
        """See, before a group is used, that it is not in another place: there it would be, here it would begin anew.

        Raises: BackendError with what to do, ClientError, OSError.
        """

    async def set_address(self, address: str) -> None:
        """Make known to other processes where this one's health pages answer (`host:port`), where that is possible."""

    def stats(self) -> Mapping[str, Any]:
        """Counters and gauges of the share-partitions led here, `Server.stats`; empty when none are."""
        ...
