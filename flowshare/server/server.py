"""The server: all parts put together, one table from request class to handler, connections within the process.

One event loop runs everything: share groups (`ShareService`), consumer groups, transactions, topics and records, all
over one `BrokerStorage`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

from flowshare.groups.consumer_types import ConsumerConfig
from flowshare.groups.types import ClassicConfig
from flowshare.log.base import StorageFull
from flowshare.server.groups.configs import ConsumerGroupConfigs
from flowshare.server.groups.coordinator import ConsumerGroups
from flowshare.server.records.configs import ConfigApis
from flowshare.server.records.topics import TopicApis
from flowshare.server.runtime.budget import StateBudget
from flowshare.server.runtime.connection import IN_PROCESS, Table
from flowshare.server.share.groups import GroupApis
from flowshare.server.share.service import ShareService
from flowshare.server.transactions.coordinator import TransactionCoordinator
from flowshare.transactions.coordinator import TransactionConfig

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.log.base import StateStore
    from flowshare.log.storage import BrokerStorage
    from flowshare.server.cooperative.coordinator import CooperativeGroups
    from flowshare.server.groups.coordinator import Gone
    from flowshare.server.runtime.connection import Family, InProcess
    from flowshare.server.runtime.state import Write
    from flowshare.server.runtime.topic_index import TopicIndex
    from flowshare.server.security.acls import Authorizer
    from flowshare.share.config import ServerConfig

CLUSTER_ID: Final = b"m/cluster-id"
logger = logging.getLogger(__name__)


async def cluster_id(store: StateStore) -> str:
    """Return the id of the records' cluster, made at the first call. Raises: StorageError.

    Clients refuse a broker whose cluster id changes. On a full disk a new id is not kept: the next start has another.
    """
    for key, value in await store.scan(CLUSTER_ID):
        if key == CLUSTER_ID:
            return value.decode()
    made = str(uuid.uuid4())
    try:
        await store.write([(CLUSTER_ID, made.encode())])
    except StorageFull as error:
        logger.warning("the cluster's id is not kept: %s", error)
    return made


class Server:
    """Share groups, topics and records over one storage; the caller closes the storage.

    `classic`, `consumer`: settings of consumer groups of either protocol, `transactions`: of producers and
    transactions; None: the defaults.
    """

    def __init__(
        self,
        *,
        storage: BrokerStorage,
        config: ServerConfig,
        clock: Clock,
        classic: ClassicConfig | None = None,
        consumer: ConsumerConfig | None = None,
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
        self.classic = ConsumerGroups(
            storage=storage,
            topics=self.topics,
            clock=clock,
            config=classic or ClassicConfig(),
            configs=ConsumerGroupConfigs(storage, consumer or ConsumerConfig()),
            is_share_group=self.share.knows_group,
            budget=budget,
        )
        self._transactions = TransactionCoordinator(
            storage=storage,
            clock=clock,
            config=transactions or TransactionConfig(),
            settle=self.classic.complete_transaction,
            budget=budget,
        )
        self._budget = budget
        self._storage = storage
        self._cooperative_groups: CooperativeGroups | None = None
        self.classic.beside = self._forget
        self.classic.in_use = self._in_use
        self._handlers = self._table(storage)

    async def start(self) -> None:
        """Read groups and settings; share-partitions are loaded at their first fetch. Raises: LogError."""
        await self.share.start()
        await self.classic.start()
        await self._transactions.start()
        open_in_groups = self._transactions.open_in_groups()
        if open_in_groups is not None:
            await self.classic.drop_ended(open_in_groups)

    async def close(self) -> None:
        """Close all connections, write all queued updates, stop all tasks.

        Members of other processes keep their records, durably, if they may come back (group.share.return.grace.ms).
        """
        async with AsyncExitStack() as rest:  # from the last one on, whatever becomes of the others
            rest.push_async_callback(self.share.close_partitions)
            rest.push_async_callback(self.classic.close)
            if self._cooperative_groups is not None:
                rest.push_async_callback(self._cooperative_groups.close)
            rest.push_async_callback(self._transactions.close)
            await self.share.close_groups()

    def prepare_close(self) -> None:
        """Let closed connections' members keep their records from now on. Call it before closing the sockets."""
        self.share.prepare_close()

    def authorize(self, authorizer: Authorizer) -> None:
        """Set the authorizer of this server's sockets, see `ShareService.authorize`."""
        self.share.authorize(authorizer)

    def connect(self, *, client_id: str, host: str = IN_PROCESS) -> InProcess:
        """Return a new connection. `host` stands in the descriptions of its members."""
        return self.share.connect(self._handlers, client_id=client_id, host=host)

    def _is_consumer_group(self, group_id: str) -> bool:
        return group_id in self.classic

    @property
    def topics(self) -> TopicIndex:
        """The topics, by name and by id: a view to read."""
        return self.share.topics

    async def size(self, topic: str, partition: int) -> int:
        """Return the bytes of a partition's log. Raises: LogError."""
        return (await self._storage.bounds(topic, partition)).size

    def stats(self) -> Mapping[str, Any]:
        """Return counters since the start and present gauges; SG-17.7 defines them.

        Beside the fields of `Stats`: groups by state, and how often their partitions were given out anew; share
        sessions, loaded share-partitions, fetches under way, connections; per loaded share-partition records in flight,
        delayed, blocked by another one of their key, lapsed locks and redeliveries. rate_limited_s: seconds by group
        for which its rate kept records from fetches. offsets_expired: committed offsets of consumer groups.
        `cooperative`: of cooperative groups, once one of them asked.
        """
        figures = {
            **self.share.figures(),
            "offsets_expired": self.classic.offsets_expired,
            "consumer_groups": self.classic.states(),
            "consumer_rebalances": self.classic.rebalances,
        }
        groups = self._cooperative_groups
        return figures if groups is None else {**figures, "cooperative": groups.figures()}

    def _table(self, storage: BrokerStorage) -> Table:
        share = self.share
        families = (
            *share.families(),
            GroupApis(share, self.classic, cooperative=self._cooperative_names),
            ConfigApis(share, storage, storage.alter_topic, consumer_groups=self.classic),
            TopicApis(share, storage, self.classic),
        )
        later = (
            self._records,
            self._share_offsets,
            self._browsing,
            self._groups,
            self._producers,
            self._states,
            self._cooperative,
        )
        return Table(families, later)

    async def _cooperative_names(self) -> Collection[str]:
        from flowshare.server.cooperative.store import group_ids

        return await group_ids(self._storage)

    async def _forget(self, group_id: str, partitions: Gone) -> Sequence[Write]:
        """Forget the cooperative state that goes with committed offsets; return the writes that remove it."""
        from flowshare.server.cooperative.store import removal

        if self._cooperative_groups is not None:
            self._cooperative_groups.forget(group_id, partitions)
        return await removal(self._storage, group_id, partitions)

    def _in_use(self, group_id: str, topic_id: uuid.UUID, partition: int) -> bool:
        groups = self._cooperative_groups
        return groups is not None and groups.in_use(group_id, (topic_id, partition))

    # --- families that share agents alone never need: imported and made at the first of their requests ---------------

    def _records(self) -> Iterable[Family]:
        from flowshare.server.records.records import RecordApis

        return (RecordApis(self._storage, self.clock, admission=self._transactions.admission),)

    def _share_offsets(self) -> Iterable[Family]:
        from flowshare.server.share.offsets import ShareOffsetApis

        return (ShareOffsetApis(self.share, self._storage),)

    def _browsing(self) -> Iterable[Family]:
        from flowshare.server.share.browsing import BrowseApis
        from flowshare.server.share.changes import ChangeApis

        return (BrowseApis(self.share), ChangeApis(self.share, self._storage))

    def _groups(self) -> Iterable[Family]:
        from flowshare.server.groups.consumer import ConsumerMemberApis
        from flowshare.server.groups.members import ClassicMemberApis
        from flowshare.server.groups.offsets import ClassicOffsetApis

        check = self._transactions.check_offsets
        offsets = ClassicOffsetApis(self.classic, check=check)
        return (ClassicMemberApis(self.classic), ConsumerMemberApis(self.classic), offsets)

    def _producers(self) -> Iterable[Family]:
        from flowshare.server.transactions.apis import TransactionApis

        return (TransactionApis(transactions=self._transactions, log=self._storage, clock=self.clock),)

    def _states(self) -> Iterable[Family]:
        from flowshare.server.share.state_apis import ShareStateApis

        return (ShareStateApis(self.share, self._storage),)

    def _cooperative(self) -> Iterable[Family]:
        from flowshare.server.cooperative.beside import InGroups
        from flowshare.server.cooperative.coordinator import CooperativeGroups
        from flowshare.server.cooperative.members import CooperativeMembers
        from flowshare.server.cooperative.settle import CooperativeSettling
        from flowshare.server.cooperative.stats import Stats
        from flowshare.server.cooperative.tools import CooperativeTools

        groups = self._cooperative_groups = CooperativeGroups(
            storage=self._storage,
            topics=self.topics,
            clock=self.clock,
            beside=InGroups(self.classic),
            budget=self._budget,
            stats=Stats(),
            groups_max=self.classic.config.groups_max,
        )
        groups.start()
        return (CooperativeMembers(groups), CooperativeSettling(groups), CooperativeTools(groups))
