"""All share-partitions of this server: known ones by their keys, loaded ones by their owners.

A share-partition is loaded at its first fetch and dropped when its group's last session has ended and no member holds
records of it. A share-partition whose state cannot be read is refused for a while, then tried again (SG-2.1).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from flowshare.core_errors import CoreError, StateCorrupt, UnknownTopicId, UnknownTopicOrPartition
from flowshare.log.base import LogError, NotLed
from flowshare.protocol.key_hash import KeyOrder
from flowshare.server.runtime.failures import Refused, failure
from flowshare.server.runtime.state import PREFIX, ShareKey, key_of
from flowshare.server.share.opened_log import Kept, OpenedBatches, OpenedLog
from flowshare.server.share.owner import PartitionOwner
from flowshare.server.share.partition_log import PartitionLog
from flowshare.server.share.quotas import Quotas

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Generator, Iterable

    from flowshare.clock import Clock
    from flowshare.log.base import Storage, Topic
    from flowshare.server.runtime.coordinator import Damage
    from flowshare.server.runtime.topic_index import TopicIndex
    from flowshare.server.share.duties import Duties
    from flowshare.server.share.loader import Loader
    from flowshare.server.share.partition_log import CuttableLog
    from flowshare.server.share.quotas import Quota
    from flowshare.server.share.rates_and_breakers import Pacing
    from flowshare.server.share.stats import Stats
    from flowshare.share.breaker import Gate

logger = logging.getLogger(__name__)

RETRY_S: Final = 1.0
"""Seconds that a share-partition which could not be loaded is refused without another try."""


class Partitions:
    """All share-partitions of this server, each loaded with its owner at the first use.

    duties: decides which share-partitions this server leads, and knows their groups' settings.
    pacing: lets records of groups with a rate or a breaker through; None: another server calls `let_through` and
    `open_gate`.
    kafka: the log, if the log may lose its end.
    """

    def __init__(
        self,
        *,
        storage: Storage,
        topics: TopicIndex,
        loader: Loader,
        clock: Clock,
        stats: Stats,
        duties: Duties,
        durable_acquire: bool,
        on_archiving: Callable[[PartitionOwner], None],
        damage: Damage,
        pacing: Pacing | None = None,
        kafka: CuttableLog | None = None,
    ) -> None:
        self._storage = storage
        self._topics = topics
        self._loader = loader
        self._clock = clock
        self._stats = stats
        self._duties = duties
        self._durable_acquire = durable_acquire
        self._on_archiving = on_archiving
        self._damage = damage
        self._owners: dict[ShareKey, PartitionOwner] = {}
        self._by_log: dict[tuple[str, int], list[PartitionOwner]] = {}
        self._by_group: dict[str, dict[ShareKey, None]] = {}
        self._loading: dict[ShareKey, asyncio.Task[PartitionOwner]] = {}
        self._loading_from: dict[ShareKey, float] = {}
        self._held: dict[ShareKey, asyncio.Future[None]] = {}
        self._renewed: set[ShareKey] = set()
        self._failed: dict[ShareKey, tuple[Exception, float]] = {}
        self._pacing = pacing
        self._quotas = Quotas(clock, self._paced)
        self._unused: set[ShareKey] = set()
        """Share-partitions of groups without sessions, loaded or being loaded: to be dropped as soon as idle."""
        self._opened_batches: OpenedBatches[Kept] = OpenedBatches()
        self._closed = False
        self._kafka = kafka
        storage.on_append(self._appended)
        if kafka is not None:
            kafka.on_cut(self._cut)

    async def start(self) -> None:
        """Learn the share-partitions that have state. Raises: LogError."""
        self.take_up(name for name, _ in await self._storage.scan(PREFIX))

    def take_up(self, names: Iterable[bytes]) -> None:
        """Note the share-partitions of these store entries as led by this server from now on."""
        for name in names:
            try:
                self.know(key_of(name))
            except StateCorrupt:
                logger.exception("an entry of the state store is left out")

    async def lay_down(self, slot: Callable[[ShareKey], bool]) -> None:
        """Let go of share-partitions that this server does not lead any more. Queued updates and begun replacements of
        stored state are written first: later they would overwrite other servers' writes, if the share-partitions came
        back."""
        held = [key for key in self._held if slot(key)]
        known = (key for keys in self._by_group.values() for key in keys)
        mine = {key for key in (*known, *self._loading, *self._owners) if slot(key)}
        for key in mine:
            owner = self._owners.get(key)
            if owner is not None:
                owner.lay_down()
            load = self._loading.get(key)
            if load is not None:  # a load may wait for brokers that do not answer
                load.cancel()
        await self.forget(mine)
        await self.settled(held)

    async def close(self) -> None:
        """Write all queued updates and stop all owners."""
        self._closed = True
        if self._pacing is not None:
            self._pacing.close()
        if self._loading:
            await asyncio.wait(list(self._loading.values()))
        await self._close(list(self._owners.values()))

    def get(self, key: ShareKey) -> PartitionOwner | None:
        """Return the owner of a loaded share-partition, or None."""
        owner = self._owners.get(key)
        return None if owner is None or owner.closed else owner

    async def open(self, key: ShareKey) -> PartitionOwner:
        """Return the owner of a share-partition, loaded if need be.

        Raises: UnknownTopicId, UnknownTopicOrPartition, StateCorrupt, NotLed, LogError
        """
        owner = self.get(key)
        if owner is not None:
            return owner
        await self.settled((key,))
        owner = self.get(key)  # another waiting caller may have loaded it
        if owner is not None:
            return owner
        self._check(key)
        error, retry_s = self._failed.get(key, (None, 0.0))
        if error is not None and self._clock.monotonic() < retry_s:
            raise error.with_traceback(None)
        task = self._loading.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._load(key), name=f"load {key}")
            self._loading[key] = task
            self._loading_from[key] = self._clock.monotonic()
            task.add_done_callback(lambda done: self._loaded(key, done))
        try:
            # Shielded: others wait for the same load, and the first caller may go away.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and caller is not None and not caller.cancelling():
                raise NotLed(f"share-partition {key} was given to another server while it was loaded") from None
            raise

    def check_led(self, key: ShareKey) -> None:
        """Check that this server leads the share-partition. Raises: NotLed."""
        self._duties.check_leader(key)

    def loading_s(self, key: ShareKey) -> float:
        """Return for how many seconds a share-partition has been loading; 0: it does not."""
        began_s = self._loading_from.get(key)
        return 0.0 if began_s is None else self._clock.monotonic() - began_s

    def served(self, key: ShareKey) -> bool:
        """Return True if a share-partition is loaded or being loaded."""
        return key in self._loading or self.get(key) is not None

    @contextlib.contextmanager
    def held(self, keys: Iterable[ShareKey]) -> Generator[None]:
        """Block loads of these share-partitions while their stored state is replaced; loads wait.

        Raises: NotLed, when another server leads one of them.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        keys = tuple(keys)
        for key in keys:
            self.check_led(key)
        # A key that is held already is released by its first holder; the writes reach the store in order.
        mine = [key for key in keys if key not in self._held]
        self._held.update(dict.fromkeys(mine, done))
        try:
            yield
        finally:
            for key in mine:
                del self._held[key]
            done.set_result(None)

    async def settled(self, keys: Iterable[ShareKey]) -> None:
        """Wait until no caller replaces the stored state of these share-partitions."""
        for key in tuple(keys):
            while (held := self._held.get(key)) is not None:
                await asyncio.shield(held)

    def know(self, key: ShareKey) -> None:
        """Note that a share-partition has state, possibly new state."""
        self._renewed.add(key)
        self._by_group.setdefault(key.group_id, {})[key] = None

    def knows(self, key: ShareKey) -> bool:
        """Return True if a share-partition has state."""
        return key in self._by_group.get(key.group_id, ())

    def known(self, group_id: str) -> frozenset[ShareKey]:
        """Return the share-partitions of a group that have state."""
        return frozenset(self._by_group.get(group_id, ()))

    def owners(self, group_id: str | None = None) -> list[PartitionOwner]:
        """Return loaded share-partitions' owners, of one group or of all."""
        if group_id is None:
            return [owner for owner in self._owners.values() if not owner.closed]
        keys = self._by_group.get(group_id, ())  # every loaded share-partition is known
        return [owner for key in keys if (owner := self.get(key)) is not None]

    def all_known(self) -> list[ShareKey]:
        """Return all share-partitions that have state here."""
        return [key for keys in self._by_group.values() for key in keys]

    def take_renewed(self) -> set[ShareKey]:
        """Return and clear the share-partitions whose state was made or replaced since the last call."""
        taken, self._renewed = self._renewed, set()
        return taken

    def groups(self) -> tuple[str, ...]:
        """Return the groups that have state here."""
        return tuple(self._by_group)

    def quota(self, group_id: str) -> Quota | None:
        """Return the group's limits here; None: the group has none, or none of its share-partitions is loaded."""
        return self._quotas.of(group_id)

    @property
    def rate_limited_s(self) -> dict[str, float]:
        """Seconds for which rates have kept records from fetches, by group."""
        return self._quotas.rate_limited_s

    def let_through(self, group_id: str, count: int) -> None:
        """Allow `count` more records of a group with a rate to be handed out here."""
        self._quotas.add(group_id, count)

    def open_gate(self, group_id: str, gate: Gate) -> None:
        """Let a group's breaker decide here by `gate`."""
        self._quotas.open_gate(group_id, gate)

    def _paced(self) -> None:
        if self._pacing is not None and not self._closed:
            self._pacing.begin(self._quotas)

    def release_member(
        self,
        group_id: str,
        member_id: str,
        only: Iterable[tuple[uuid.UUID, int]] | None = None,
        *,
        died: bool = False,
        gone: bool = False,
    ) -> None:
        """Release a member's records, on the named partitions or on all of the group's."""
        keys = self.known(group_id) if only is None else [ShareKey(group_id, *key) for key in only]
        for key in keys:
            owner = self.get(key)
            if owner is not None:
                owner.release_member(member_id, died=died, gone=gone)

    def configure(self, group_id: str) -> None:
        """Apply a group's changed config."""
        config = self._duties.config_of(group_id)
        for owner in self.owners(group_id):
            if owner.config.key_order != config.key_order or owner.placed_otherwise(config):
                owner.stop()  # loaded anew at the next fetch, when its decisions are written
                continue
            owner.configure(config)
            self._quotas.follow(owner)
            owner.waiting.nudge()

    async def drop(self, keys: Iterable[ShareKey]) -> None:
        """Stop owning share-partitions, those being loaded too; queued updates are written first."""
        keys = tuple(keys)
        loading = [task for key in keys if (task := self._loading.get(key)) is not None]
        if loading:
            await asyncio.wait(loading)
        await self._close([owner for key in keys if (owner := self._owners.get(key)) is not None])

    def drop_idle(self, group_id: str) -> None:
        """Drop a group's share-partitions, each as soon as it is loaded and has no acquired records, waiting fetches or
        unwritten updates."""
        self._unused.update(key for key in self._loading if key.group_id == group_id)
        for owner in self.owners(group_id):
            self._unused.add(owner.key)
            if owner.may_leave:
                self._leave(owner)

    def used(self, group_id: str) -> None:
        """Keep a group's share-partitions: it has a session again."""
        self._unused = {key for key in self._unused if key.group_id != group_id}

    def _leave(self, owner: PartitionOwner) -> None:
        if owner.key in self._unused:
            owner.stop()
            self._remove(owner)

    async def forget(self, keys: Iterable[ShareKey]) -> None:
        """Drop share-partitions and forget that they have state."""
        keys = tuple(keys)
        await self.drop(keys)
        for key in keys:
            self._failed.pop(key, None)
            self._renewed.discard(key)
            group = self._by_group.get(key.group_id)
            if group is not None:
                group.pop(key, None)
                if not group:
                    del self._by_group[key.group_id]

    def of_topic(self, topic_id: uuid.UUID) -> list[ShareKey]:
        """Return the share-partitions of all groups that have state on a topic."""
        return [key for keys in self._by_group.values() for key in keys if key.topic_id == topic_id]

    def topic_ids(self) -> frozenset[uuid.UUID]:
        """Return the topics on which any group has state."""
        return frozenset(key.topic_id for keys in self._by_group.values() for key in keys)

    async def _close(self, owners: list[PartitionOwner]) -> None:
        for owner in owners:
            owner.closed = True
        for owner in owners:
            await owner.close()
            self._remove(owner)

    def _remove(self, owner: PartitionOwner) -> None:
        if self._owners.get(owner.key) is owner:
            del self._owners[owner.key]
            self._renewed.add(owner.key)
            self._duties.dropped(owner.key)
        self._unused.discard(owner.key)
        self._quotas.leave(owner)
        at = (owner.log.topic, owner.key.partition)
        same_log = self._by_log.get(at, [])
        if owner in same_log:
            same_log.remove(owner)
        if not same_log:
            self._by_log.pop(at, None)

    async def _load(self, key: ShareKey) -> PartitionOwner:
        old = self._owners.get(key)
        if old is not None:
            await self._close([old])
        topic = self._topics.find(key.topic_id, key.partition)
        await self._duties.prepare(key)
        try:
            owner = await self._make(key, topic)
        except BaseException:
            self._duties.dropped(key)
            raise
        self.know(key)
        self._owners[key] = owner
        self._by_log.setdefault((topic.name, key.partition), []).append(owner)
        owner.start()
        return owner

    async def _make(self, key: ShareKey, topic: Topic) -> PartitionOwner:
        while True:
            config = self._duties.config_of(key.group_id)
            began_s = self._clock.monotonic()
            loaded = await self._loader.load(
                key,
                topic,
                config,
                living=lambda: self._duties.living(key.group_id),
                gone=self._duties.gone(key.group_id),
            )
            self._stats.loads += 1
            self._stats.load_s.add(self._clock.monotonic() - began_s)
            if self._duties.config_of(key.group_id).key_order == config.key_order:
                break  # else the loaded state is of another order, and was never served
        log = PartitionLog(self._storage, topic=topic.name, topic_id=key.topic_id, partition=key.partition)
        order = KeyOrder.parse(config.key_order)
        owner = PartitionOwner(
            key,
            partition=loaded.partition,
            journal=loaded.journal,
            generation=loaded.generation,
            parked=loaded.parked,
            log=log,
            store=self._storage,
            clock=self._clock,
            stats=self._stats,
            config=config,
            durable_acquire=self._durable_acquire,
            on_archiving=self._on_archiving,
            on_idle=self._leave,
            kafka=self._kafka,
            opened=None if order is None else OpenedLog(log, order, self._opened_batches, key),
        )
        owner.configure(self._duties.config_of(key.group_id))
        self._quotas.follow(owner)
        return owner

    def _loaded(self, key: ShareKey, task: asyncio.Task[PartitionOwner]) -> None:
        del self._loading[key], self._loading_from[key]
        if task.cancelled():
            self._unused.discard(key)
            return
        error = task.exception()
        if error is None:
            self._failed.pop(key, None)
            if (owner := task.result()).may_leave:
                self._leave(owner)
            return
        self._unused.discard(key)
        if isinstance(error, NotLed | Refused):
            return  # no error of the share-partition, and it may be led here the next moment
        self._stats.failed_loads += 1
        if not isinstance(error, UnknownTopicId | UnknownTopicOrPartition):
            logger.error("share-partition could not be loaded: %s key=%s", failure(error)[1], key, exc_info=error)
        if isinstance(error, Exception):
            self._failed[key] = (error, self._clock.monotonic() + RETRY_S)

    def _check(self, key: ShareKey) -> None:
        self._damage.check(key.group_id)
        self._duties.check_leader(key)
        self._topics.find(key.topic_id, key.partition)
        if self._closed:
            raise UnknownTopicOrPartition("the server is closing")

    def _cut(self, topic: str, partition: int, end: int) -> None:
        for owner in self._by_log.get((topic, partition), ()):
            owner.guard.cut(end)

    def _appended(self, topic: str, partition: int) -> None:
        for owner in self._by_log.get((topic, partition), ()):
            try:
                owner.appended()
            except (CoreError, LogError):
                logger.exception("share-partition could not follow its log key=%s", owner.key)
