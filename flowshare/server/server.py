"""The server: all parts put together, one table from request class to handler, connections within the process.

One event loop runs everything. Who writes what: `Owner` the state of one share-partition, `Coordinator` groups,
`GroupConfigs` settings, the log its records; all of it lies in one `Storage`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flowshare.groups.types import ClassicConfig
from flowshare.server.classic import ClassicGroups
from flowshare.server.configs import ConfigApis
from flowshare.server.connection import InProcess
from flowshare.server.coordinator import IN_PROCESS, Coordinator
from flowshare.server.damage import Damage
from flowshare.server.dead_letters import DeadLetters
from flowshare.server.group_configs import GroupConfigs
from flowshare.server.groups import GroupApis
from flowshare.server.initializer import Initializer
from flowshare.server.later import Later, Table
from flowshare.server.loader import Loader
from flowshare.server.partitions import Partitions
from flowshare.server.sessions import Sessions
from flowshare.server.share_ack import Acknowledger, ShareAcknowledging
from flowshare.server.share_fetch import ShareFetching
from flowshare.server.share_resume import ShareResuming
from flowshare.server.stats import Stats
from flowshare.server.topic_index import TopicIndex
from flowshare.server.topics import TopicApis
from flowshare.server.transactions import Transactions
from flowshare.transactions.config import TransactionConfig

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.log.base import Storage
    from flowshare.share.config import ServerConfig


class Server:
    """Share groups, topics and records over one storage; the storage is the caller's to close.

    `classic`: settings of consumer groups, `transactions`: of producers and transactions; None: the defaults.
    """

    def __init__(
        self,
        *,
        storage: Storage,
        config: ServerConfig,
        clock: Clock,
        classic: ClassicConfig | None = None,
        transactions: TransactionConfig | None = None,
    ) -> None:
        self.config = config
        self.clock = clock
        self._stats = Stats()
        self._topics = TopicIndex(storage)
        damage = Damage()
        self._configs = GroupConfigs(storage, config, damage)
        self._dead_letters = DeadLetters(
            storage=storage, clock=clock, stats=self._stats, auto_create=config.dead_letter_auto_create
        )
        loader = Loader(storage, clock, updates_max=config.snapshot_updates_max)
        self._partitions = Partitions(
            storage=storage,
            topics=self._topics,
            loader=loader,
            clock=clock,
            stats=self._stats,
            config_of=self._configs.acting,
            durable_acquire=config.acquire_durable,
            on_archiving=self._dead_letters.start,
            damage=damage,
            living=lambda group_id: self._coordinator.living(group_id),
        )
        initializer = Initializer(store=storage, topics=self._topics, partitions=self._partitions, loader=loader)
        self._coordinator = Coordinator(
            storage=storage,
            topics=self._topics,
            partitions=self._partitions,
            initializer=initializer,
            clock=clock,
            config_of=self._configs.acting,
            damage=damage,
            return_grace_ms=config.return_grace_ms,
            is_other_group=lambda group_id: group_id in self.classic,
        )
        self.classic = ClassicGroups(
            storage=storage,
            topics=self._topics,
            clock=clock,
            config=classic or ClassicConfig(),
            is_share_group=lambda group_id: group_id in self._coordinator.groups or group_id in damage,
        )
        self._transactions = Transactions(
            storage=storage,
            clock=clock,
            config=transactions or TransactionConfig(),
            settle=self.classic.complete_transaction,
        )
        self._keep_on_close = config.return_grace_ms > 0
        self._closing = False
        self._sessions = Sessions(self._partitions, sessions_max=config.share_sessions_max)
        self._handlers = self._table(storage, clock, initializer)
        self._connections: set[InProcess] = set()

    async def start(self) -> None:
        """Read groups and settings; share-partitions are loaded at their first fetch. Raises: LogError."""
        await self._configs.start()
        await self._partitions.start()
        await self._coordinator.start()
        await self.classic.start()
        await self._transactions.start()

    async def close(self) -> None:
        """Close all connections, write what is queued, stop all tasks.

        Members of other processes keep their records, durably, if they may come back (group.share.return.grace.ms).
        """
        self.prepare_close()
        for connection in tuple(self._connections):
            await connection.close()
        await self._coordinator.close()
        await self._transactions.close()
        await self.classic.close()
        await self._dead_letters.close()
        await self._partitions.close()

    def prepare_close(self) -> None:
        """Call it before closing the sockets: from now on a closed connection takes nothing from its members."""
        self._closing = True

    def connect(self, *, client_id: str, host: str = IN_PROCESS) -> InProcess:
        """A new connection. `host` stands in the descriptions of its members."""
        connection = InProcess(self._handlers, client_id=client_id, host=host, on_close=self._disconnected)
        self._connections.add(connection)
        return connection

    @property
    def topics(self) -> TopicIndex:
        """The topics, by name and by id: a view to read."""
        return self._topics

    def stats(self) -> Mapping[str, Any]:
        """Counters since the start and gauges of now; share-groups.md §7.1 says what Kafka calls them.

        Beside the fields of `Stats`: groups by state, share sessions, loaded share-partitions, fetches under way,
        connections; per loaded share-partition records in flight, delayed, lapsed locks and redeliveries.
        """
        owners = self._partitions.owners()
        return {
            **self._stats.copy(),
            "groups": self._coordinator.states(),
            "sessions": len(self._sessions),
            "parked": self._sessions.parked,
            "connections": len(self._connections),
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
                    "lock_timeouts": owner.lock_timeouts,
                    "redeliveries": owner.redeliveries,
                }
                for owner in owners
            ],
        }

    def _table(self, storage: Storage, clock: Clock, initializer: Initializer) -> Table:
        acknowledger = Acknowledger(self._partitions, self._topics, clock)
        config_of = self._configs.acting
        families = (
            ShareFetching(
                partitions=self._partitions,
                topics=self._topics,
                acknowledger=acknowledger,
                sessions=self._sessions,
                clock=clock,
                stats=self._stats,
                config_of=config_of,
            ),
            ShareAcknowledging(
                acknowledger=acknowledger, sessions=self._sessions, stats=self._stats, config_of=config_of
            ),
            ShareResuming(self._partitions),
            GroupApis(coordinator=self._coordinator, classic=self.classic, topics=self._topics),
            ConfigApis(log=storage, server=self.config, configs=self._configs, coordinator=self._coordinator),
            TopicApis(log=storage, topics=self._topics, coordinator=self._coordinator, classic=self.classic),
        )
        later = Later(
            storage=storage,
            clock=clock,
            topics=self._topics,
            partitions=self._partitions,
            coordinator=self._coordinator,
            initializer=initializer,
            classic=self.classic,
            transactions=self._transactions,
        )
        return Table(families, later.by_messages())

    async def _disconnected(self, connection: InProcess) -> None:
        self._connections.discard(connection)
        self._coordinator.lost(connection)
        if self._closing and self._keep_on_close and connection.host != IN_PROCESS:
            return
        self._sessions.disconnected(connection)
