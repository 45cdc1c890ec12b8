"""Share groups over one storage: the parts of every server of share groups, alone or in a fleet.

Writers: `PartitionOwner` writes the state of one share-partition, `Coordinator` groups, `GroupConfigs` settings, all
into one `Storage`. `Duties` says which of them are this server's, `Leaders` reaches the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from flowshare.server.runtime.budget import StateBudget
from flowshare.server.runtime.connection import IN_PROCESS, InProcess
from flowshare.server.runtime.coordinator import Damage
from flowshare.server.runtime.state import PREFIX as STATE
from flowshare.server.runtime.topic_index import TopicIndex
from flowshare.server.share.acknowledge import Acknowledger, ShareAcknowledging
from flowshare.server.share.coordinator import PREFIX as GROUP
from flowshare.server.share.coordinator import Coordinator
from flowshare.server.share.dead_letters import DeadLetters
from flowshare.server.share.duties import Duties
from flowshare.server.share.fetch import ShareFetching
from flowshare.server.share.group_configs import PREFIX as SETTINGS
from flowshare.server.share.group_configs import GroupConfigs
from flowshare.server.share.leaders import LocalLeaders
from flowshare.server.share.loader import Loader
from flowshare.server.share.partitions import Partitions
from flowshare.server.share.rates_and_breakers import KeptBreaker, Pacing
from flowshare.server.share.resume import ShareResuming
from flowshare.server.share.sessions import Sessions
from flowshare.server.share.settle import ShareSettling
from flowshare.server.share.stats import Stats

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from flowshare.clock import Clock, TimerHandle
    from flowshare.log.base import Storage
    from flowshare.server.runtime.connection import Family, Handlers
    from flowshare.server.runtime.state import ShareKey
    from flowshare.server.security.acls import Authorizer
    from flowshare.server.share.leaders import Leaders
    from flowshare.server.share.partition_log import CuttableLog
    from flowshare.share.config import ServerConfig
    from flowshare.share.session import ClosedSession


class Breakers(Protocol):
    """Keeps breakers of the groups coordinated here."""

    def breaker(self, group_id: str, /) -> KeptBreaker | None:
        """Return a group's breaker; None: it has none. Raises: Refused."""


class ShareService:
    """The share groups of one server, and its connections within the process."""

    def __init__(
        self,
        *,
        storage: Storage,
        config: ServerConfig,
        clock: Clock,
        duties: Duties | None = None,
        leaders: Callable[[LocalLeaders], Leaders] | None = None,
        is_other_group: Callable[[str], bool] = lambda _: False,
        members_resume: bool = False,
        budget: StateBudget | None = None,
        kafka: CuttableLog | None = None,
    ) -> None:
        """duties: the share-partitions and groups of this server; None: all, their rates' permits included.

        leaders: makes the leaders of all share-partitions from those of this server.

        budget: bytes of the state of groups and transactions; None: of the share groups alone.
        kafka: the storage's log, if it is one that may lose its end.
        is_other_group: returns True for a group id of another kind.
        members_resume: flowshare's own members whose connection broke come back with their records (a fleet's do).
        """
        self.config = config
        self.clock = clock
        self._storage = storage
        self.stats = Stats()
        self.topics = TopicIndex(storage)
        self.budget = budget or StateBudget(config.coordinator_state_bytes)
        self.damage = Damage()
        self.configs = GroupConfigs(storage, config, self.damage)
        self.duties = duties or Duties(
            self.configs.acting,
            lambda group_id: self.coordinator.living(group_id),
            lambda group_id: self.coordinator.gone(group_id),
        )
        self._dead_letters = DeadLetters(
            storage=storage, clock=clock, stats=self.stats, auto_create=config.dead_letter_auto_create
        )
        self.pacing = Pacing(self.configs.acting, clock) if duties is None else None
        self.breakers: Breakers | None = self.pacing
        """Keeper of the groups' breakers; set by the maker of a fleet's service."""
        loader = Loader(storage, clock, updates_max=config.snapshot_updates_max, stats=self.stats, kafka=kafka)
        self.partitions = Partitions(
            storage=storage,
            topics=self.topics,
            loader=loader,
            clock=clock,
            stats=self.stats,
            duties=self.duties,
            durable_acquire=config.acquire_durable,
            on_archiving=self._dead_letters.start,
            damage=self.damage,
            pacing=self.pacing,
            kafka=kafka,
        )
        self.sessions = Sessions(
            self.partitions,
            sessions_max=config.share_sessions_max,
            connection_sessions_max=config.connection_share_sessions_max,
        )
        self.local = LocalLeaders(
            store=storage,
            topics=self.topics,
            partitions=self.partitions,
            sessions=self.sessions,
            loader=loader,
            duties=self.duties,
            clock=clock,
        )
        self.leaders = self.local if leaders is None else leaders(self.local)
        self.coordinator = Coordinator(
            storage=storage,
            topics=self.topics,
            leaders=self.leaders,
            duties=self.duties,
            clock=clock,
            config_of=self.configs.acting,
            damage=self.damage,
            return_grace_ms=config.return_grace_ms,
            groups_max=config.share_groups_max,
            budget=self.budget,
            is_other_group=is_other_group,
            members_resume=members_resume,
        )
        self._keep_on_close = config.return_grace_ms > 0
        self._members_resume = members_resume and self._keep_on_close
        self._awaited: set[TimerHandle] = set()
        self._closing = False
        self._connections: set[InProcess] = set()

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read groups and settings; share-partitions are loaded at their first fetch. Raises: LogError."""
        await self.configs.start()
        await self.partitions.start()
        await self.coordinator.start()

    def configure(self, config: ServerConfig) -> None:
        """Apply other settings of the server from now on, to groups as their defaults and bounds.

        Settings read only when a share-partition is loaded stay (share.acquire.durable, snapshots).
        """
        self.config = config
        self.configs.configure(config)
        self._dead_letters.auto_create = config.dead_letter_auto_create
        self.budget.configure(config.coordinator_state_bytes)
        self.sessions.configure(
            sessions_max=config.share_sessions_max, connection_sessions_max=config.connection_share_sessions_max
        )
        self._keep_on_close = config.return_grace_ms > 0
        self.coordinator.reconfigure(return_grace_ms=config.return_grace_ms, groups_max=config.share_groups_max)
        for group_id in self.partitions.groups():
            self.partitions.configure(group_id)

    def authorize(self, authorizer: Authorizer) -> None:
        """Set the authorizer of this server's sockets, for the server's later work for peers, too."""
        self._dead_letters.authorizer = authorizer

    def prepare_close(self) -> None:
        """Let closed connections' members keep their records from now on. Call it before closing the sockets."""
        self._closing = True

    async def close_groups(self) -> None:
        """Close all connections and stop watching members."""
        self.prepare_close()
        for connection in tuple(self._connections):
            await connection.close()
        await self.coordinator.close()

    async def close_partitions(self) -> None:
        """Write all queued updates and stop all owners."""
        while self._awaited:
            self._awaited.pop().cancel()
        await self._dead_letters.close()
        await self.partitions.close()

    def take_up(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Serve the groups, settings and share-partitions of these entries, taken over from another server."""
        by_prefix: dict[bytes, list[tuple[bytes, bytes]]] = {}
        for key, value in entries:
            by_prefix.setdefault(key[:2], []).append((key, value))
        self.configs.take_up(by_prefix.get(SETTINGS, ()))
        self.partitions.take_up(key for key, _ in by_prefix.get(STATE, ()))
        self.coordinator.take_up(by_prefix.get(GROUP, ()))

    async def lay_down(self, *, groups: Callable[[str], bool], share_partitions: Callable[[ShareKey], bool]) -> None:
        """Stop serving these; queued updates are written first, if that is still possible."""
        gone = [group_id for group_id in self.coordinator.groups if groups(group_id)]
        self.coordinator.lay_down(gone)
        await self.partitions.lay_down(share_partitions)
        await self.configs.lay_down(groups)

    def knows_group(self, group_id: str) -> bool:
        """Return True if there is a share group of this id, readable or not."""
        return group_id in self.coordinator.groups or group_id in self.damage

    # --- connections --------------------------------------------------------------------------------------------

    def connect(self, handlers: Handlers, *, client_id: str, host: str) -> InProcess:
        """Return a new connection. `host` stands in the descriptions of its members."""
        connection = InProcess(handlers, client_id=client_id, host=host, on_close=self._disconnected)
        self._connections.add(connection)
        return connection

    async def _disconnected(self, connection: InProcess) -> None:
        self._connections.discard(connection)
        self.coordinator.lost(connection)
        if self._closing and self._keep_on_close and connection.host != IN_PROCESS:
            return
        if self._members_resume and connection.own and not self._closing:
            for closed in self.sessions.cut_off(connection):
                self._await_return(closed)
        else:
            self.sessions.disconnected(connection)

    def _await_return(self, closed: ClosedSession) -> None:
        """Give a cut-off member the grace to come back, before its records go to others."""

        def give_up() -> None:
            self._awaited.discard(timer)
            self.sessions.gave_up(closed)

        timer = self.clock.call_later(self.config.return_grace_ms / 1000, give_up)
        self._awaited.add(timer)

    # --- answers ------------------------------------------------------------------------------------------------

    def families(self) -> Collection[Family]:
        """Return the handlers of the requests that members send all the time."""
        acknowledger = Acknowledger(self.partitions, self.topics, self.stats)
        return (
            ShareFetching(
                partitions=self.partitions,
                topics=self.topics,
                acknowledger=acknowledger,
                sessions=self.sessions,
                clock=self.clock,
                stats=self.stats,
                duties=self.duties,
            ),
            ShareAcknowledging(acknowledger=acknowledger, sessions=self.sessions, stats=self.stats, duties=self.duties),
            ShareSettling(
                storage=self._storage,
                partitions=self.partitions,
                topics=self.topics,
                stats=self.stats,
                duties=self.duties,
                settled_late=self.sessions.drop_unread,
            ),
            ShareResuming(self.partitions, self.topics, self.sessions.resumed),
        )

    def figures(self) -> Mapping[str, Any]:
        """Return counters since the start and present gauges, see `Server.stats`."""
        owners = self.partitions.owners()
        return {
            **self.stats.copy(),
            "groups": self.coordinator.states(),
            "rebalances": self.coordinator.rebalances,
            "sessions": len(self.sessions),
            "sessions_opened": self.sessions.opened,
            "sessions_evicted": self.sessions.evicted,
            "sessions_refused": self.sessions.refused,
            "parked": self.sessions.parked,
            "connections": len(self._connections),
            "rate_limited_s": self.partitions.rate_limited_s,
            "share_partitions": len(owners),
            "in_flight": sum(owner.partition.acquired_count for owner in owners),
            "partitions": [
                {
                    "group": owner.key.group_id,
                    "topic": owner.log.topic,
                    "partition": owner.key.partition,
                    "start_offset": owner.partition.start_offset,
                    "in_flight": owner.partition.acquired_count,
                    "delayed": owner.partition.delayed_count,
                    "blocked": owner.partition.blocked_count,
                    "lock_timeouts": owner.lock_timeouts,
                    "redeliveries": owner.redeliveries,
                }
                for owner in owners
            ],
        }
