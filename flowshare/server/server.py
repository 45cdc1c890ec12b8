"""The server: all parts put together, one table from request class to handler, connections within the process.

One event loop runs everything: share groups (`ShareService`), consumer groups, transactions, topics and records, all
over one `Storage`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flowshare.groups.types import ClassicConfig
from flowshare.server.budget import StateBudget
from flowshare.server.classic import ClassicGroups
from flowshare.server.configs import ConfigApis
from flowshare.server.coordinator import IN_PROCESS
from flowshare.server.groups import GroupApis
from flowshare.server.later import Later, Table
from flowshare.server.mutations import MutationQuota
from flowshare.server.share_service import ShareService
from flowshare.server.topics import TopicApis
from flowshare.server.transactions import Transactions
from flowshare.transactions.config import TransactionConfig

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.log.base import Storage
    from flowshare.server.connection import InProcess
    from flowshare.server.edge.base import Authorizer
    from flowshare.server.topic_index import TopicIndex
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
        budget = StateBudget(config.coordinator_state_bytes)
        self.share = ShareService(
            storage=storage,
            config=config,
            clock=clock,
            is_other_group=self._is_consumer_group,
            budget=budget,
        )
        self.classic = ClassicGroups(
            storage=storage,
            topics=self.topics,
            clock=clock,
            config=classic or ClassicConfig(),
            is_share_group=self.share.knows_group,
            budget=budget,
        )
        self._transactions = Transactions(
            storage=storage,
            clock=clock,
            config=transactions or TransactionConfig(),
            settle=self.classic.complete_transaction,
            budget=budget,
        )
        self._handlers = self._table(storage)

    async def start(self) -> None:
        """Read groups and settings; share-partitions are loaded at their first fetch. Raises: LogError."""
        await self.share.start()
        await self.classic.start()
        await self._transactions.start()

    async def close(self) -> None:
        """Close all connections, write what is queued, stop all tasks.

        Members of other processes keep their records, durably, if they may come back (group.share.return.grace.ms).
        """
        await self.share.close_groups()
        await self._transactions.close()
        await self.classic.close()
        await self.share.close_partitions()

    def prepare_close(self) -> None:
        """Call it before closing the sockets: from now on a closed connection takes nothing from its members."""
        self.share.prepare_close()

    def authorize(self, authorizer: Authorizer) -> None:
        """Who may do what at this server's sockets, see `ShareService.authorize`."""
        self.share.authorize(authorizer)

    def connect(self, *, client_id: str, host: str = IN_PROCESS) -> InProcess:
        """A new connection. `host` stands in the descriptions of its members."""
        return self.share.connect(self._handlers, client_id=client_id, host=host)

    def _is_consumer_group(self, group_id: str) -> bool:
        return group_id in self.classic

    @property
    def topics(self) -> TopicIndex:
        """The topics, by name and by id: a view to read."""
        return self.share.topics

    def stats(self) -> Mapping[str, Any]:
        """Counters since the start and gauges of now; share-groups.md §7.1 says what Kafka calls them.

        Beside the fields of `Stats`: groups by state, share sessions, loaded share-partitions, fetches under way,
        connections; per loaded share-partition records in flight, delayed, lapsed locks and redeliveries.
        """
        return self.share.figures()

    def _table(self, storage: Storage) -> Table:
        share = self.share
        families = (
            *share.families(),
            GroupApis(coordinator=share.coordinator, topics=self.topics, clock=self.clock, classic=self.classic),
            ConfigApis(log=storage, server=self.config, configs=share.configs, coordinator=share.coordinator),
            TopicApis(
                log=storage,
                topics=self.topics,
                coordinator=share.coordinator,
                classic=self.classic,
                partitions_max=self.config.partitions_max,
                quota=MutationQuota(
                    self.config.mutation_rate, self.config.mutation_windows * self.config.mutation_window_s
                ),
            ),
        )
        later = Later(
            storage=storage, clock=self.clock, share=share, classic=self.classic, transactions=self._transactions
        )
        return Table(families, later.by_messages())
