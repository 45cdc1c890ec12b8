"""`KafkaLog`: the users' topics on a Kafka, as the `Log` of a server that leads share-partitions on them.

Only *followed* partitions are read; their bounds are known here (`offsets` awaits nothing), are kept up to date by one
parked fetch a broker, and all groups read its records out of memory. See `ends.py` for the logs' ends, `reader.py` for
the rest, `topics.py` for the existing topics.

    follow ─→ syncing ─bounds asked─→ known ─topic gone or made anew, end cut off─→ syncing …
    unfollow, as often as followed ─→ forgotten

Kafka's own tools manage topics; this class only makes dead-letter topics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from flowshare.backoff import QUICK
from flowshare.fleet.log.ends import Ends
from flowshare.fleet.log.followed import Followed, FollowedLogs
from flowshare.fleet.log.lookups import Lookups, check, joined
from flowshare.fleet.log.read_ahead import BufferedRun, Memory
from flowshare.fleet.log.reader import FollowedReader
from flowshare.fleet.log.settings import LogSettings
from flowshare.fleet.log.topics import Topics
from flowshare.log.base import (
    Appended,
    CorruptBatches,
    StorageError,
    Topic,
    UnknownTopic,
)
from flowshare.log.topics import check_name
from flowshare.protocol.batches import DecodeError
from flowshare.protocol.batches import check as check_batches
from flowshare.protocol.messages import CreateTopicRequest, ProduceRequest
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    import uuid

    from flowshare.client.net.cluster import Cluster
    from flowshare.fleet.log.followed import CutListener
    from flowshare.fleet.log.topics import TopicsListener
    from flowshare.log.base import AppendListener, LogOffsets, ReadResult

NO_CONFIGS: Final[Mapping[str, str]] = {}

logger = logging.getLogger(__name__)


class KafkaLog:
    """Reader of the topics of the Kafka behind `cluster`."""

    def __init__(
        self, cluster: Cluster, *, client_id: str = "flowshare-log", settings: LogSettings | None = None
    ) -> None:
        settings = settings or LogSettings()
        self._clock = cluster.clock
        self._syncing: set[asyncio.Task[None]] = set()
        self._lookups = Lookups(cluster, client_id)
        self._topics = Topics(self._lookups, cluster.clock, settings)
        self._topics.on_change(self._topics_changed)
        self._registry = FollowedLogs(Memory(settings), cluster.clock, settings)
        self._ends = Ends(self._registry, self._topics, cluster, client_id=client_id, resync=self._sync)
        self._reader = FollowedReader(self._registry, self._lookups, self._ends, resync=self._synced)

    async def start(self) -> None:
        """Begin to look topics up; start the cluster before."""
        self._topics.start()

    async def close(self) -> None:
        """Stop all reading; the cluster stays open."""
        await cancelled(*self._syncing)
        self._registry.by_place.clear()
        await self._topics.close()
        await self._ends.close()
        await self._reader.close()
        await self._lookups.close()

    # --- topics -------------------------------------------------------------------------------------------------

    def topics(self) -> Mapping[str, Topic]:
        """Return the known topics; a missing name is looked up at once, and from then on."""
        return self._topics

    async def refresh(self, names: Collection[str] = (), ids: Collection[uuid.UUID] = ()) -> None:
        """Look up topics now, by name and by id (neither: all known ones). Raises StorageError."""
        await self._topics.refresh(names, ids)

    async def exists(self, topic_id: uuid.UUID) -> bool:
        """True if a topic with this id exists; the topic is known then, unless another one has replaced it. Raises
        StorageError."""
        return await self._topics.exists(topic_id)

    def on_topics(self, listener: TopicsListener) -> None:
        """Call `listener(names)` when topics appear, grow, go, or get another id."""
        self._topics.on_change(listener)

    async def create_topic(
        self, name: str, *, partitions: int = 1, configs: Mapping[str, str] = NO_CONFIGS, internal: bool = False
    ) -> Topic:
        """Make a dead-letter topic. Raises TopicExists, InvalidTopic, StorageError, LogError."""
        check_name(name, internal=internal)
        request = CreateTopicRequest(name=name, partitions=partitions, configs=dict(configs))
        answer = await self._lookups.send(request, tries=1)
        await self._topics.refresh([name])
        check(answer.error, answer.message, f"making topic {name}")
        topic = self._topics.get(name)
        if topic is None:
            raise StorageError(f"topic {name} was made, but the brokers do not know it yet; try again later")
        return topic

    # --- writing --------------------------------------------------------------------------------------------------

    async def append(self, topic: str, partition: int, records: bytes) -> Appended:
        """Give record batches to the partition's leader; unconfirmed batches may be in the log all the same.

        Raises: UnknownTopic, CorruptBatches, RecordsTooLarge, InvalidRecord, StorageError, LogError.
        """
        try:
            headers = check_batches(records)
        except DecodeError as error:
            raise CorruptBatches(str(error)) from error
        await self._exists(topic, partition)
        answer = await self._lookups.send(ProduceRequest(topic=topic, partition=partition, records=records), tries=1)
        check(answer.error, answer.message, f"writing to {topic}-{partition}")
        count = sum(header.last_offset - header.base_offset + 1 for header in headers)
        return Appended(
            base_offset=answer.base_offset,
            last_offset=answer.base_offset + count - 1,
            log_start=answer.log_start,
            append_time_ms=answer.append_time_ms,
        )

    # --- following ------------------------------------------------------------------------------------------------

    async def follow(self, topic: str, partition: int, *, committed: bool = False) -> None:
        """Know the bounds of a partition from now on, and read ahead at its end; ended by as many `unfollow`.

        committed: the isolation level that is read first. Raises UnknownTopic, StorageError, LogError.
        """
        place = topic, partition
        followed = self._registry.by_place.get(place)
        if followed is None:
            followed = self._registry.by_place[place] = Followed(topic, partition, committed=committed)
        followed.refs += 1
        try:
            if not followed.known:
                await self._synced(followed)
        except BaseException:
            self.unfollow(topic, partition)
            raise

    def unfollow(self, topic: str, partition: int) -> None:
        """Remove one follower of a partition; forget the partition with the last."""
        followed = self._registry.by_place.get((topic, partition))
        if followed is None:
            return
        followed.refs -= 1
        if followed.refs <= 0:
            del self._registry.by_place[topic, partition]
            self._lose(followed)

    def offsets(self, topic: str, partition: int) -> LogOffsets:
        """Return the bounds of a followed partition as known here. Raises UnknownTopic."""
        return self._registry.find(topic, partition).offsets()

    def dense(self, topic: str, partition: int, offset: int, end: int) -> bool:
        """Return False: only records tell which offsets compaction took, and under which leader records were
        written."""
        del topic, partition, offset, end
        return False

    async def bounds(self, topic: str, partition: int) -> LogOffsets:
        """Return the bounds of any partition, asked of its leader. Raises UnknownTopic, StorageError, LogError."""
        await self._exists(topic, partition)
        return await self._lookups.bounds(topic, partition)

    async def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> tuple[int, int] | None:
        """Return the first (offset, timestamp) with timestamp ≥ `timestamp_ms`, or None. Raises UnknownTopic,
        StorageError."""
        await self._exists(topic, partition)
        return await self._lookups.at_time(topic, partition, timestamp_ms)

    async def divergence(self, topic: str, partition: int, epoch: int) -> tuple[int, int]:
        """Return the highest leader epoch up to `epoch` in the log, and the offset behind its last record.

        Records read of `epoch` at that offset or behind are not in the log any more. (−1, −1): the brokers cannot tell.
        Raises: UnknownTopic, StorageError, LogError.
        """
        await self._exists(topic, partition)
        return await self._lookups.divergence(topic, partition, epoch)

    async def read(
        self, topic: str, partition: int, offset: int, *, max_bytes: int, committed: bool = False
    ) -> ReadResult:
        """Return batches of a followed partition from `offset` on, at least one if one exists.

        committed: none past the last stable offset. A read that had to ask the brokers returns their answer, which is
            empty while a new leader knows less of the log than the old one did.
        Raises: UnknownTopic, OffsetOutOfRange, CorruptBatches, StorageError, LogError.
        """
        return await self._reader.read((topic, partition), offset, max_bytes=max_bytes, committed=committed)

    def on_append(self, listener: AppendListener) -> None:
        """Call `listener(topic, partition)` when a followed log has grown, its start has moved, or it was cut."""
        self._registry.append_listeners.append(listener)

    def on_cut(self, listener: CutListener) -> None:
        """Call `listener(topic, partition, end)` when records at a followed log's end were lost with a leader.

        Records read at `end` and behind are not in the log any more, or are other records now.
        """
        self._registry.cut_listeners.append(listener)

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _exists(self, topic: str, partition: int) -> Topic:
        """Return a topic that has this partition. Raises UnknownTopic, StorageError."""
        found = self._topics.get(topic)
        if found is None or partition >= found.partitions:
            await self._topics.refresh([topic])
            found = self._topics.get(topic)
        if found is None:
            raise UnknownTopic(f"Kafka has no topic {topic!r}, or the workers' user may not see it")
        if not 0 <= partition < found.partitions:
            raise UnknownTopic(f"topic {topic!r} has {found.partitions} partitions, none is {partition}")
        return found

    async def _synced(self, followed: Followed) -> None:
        """Fetch the bounds once; concurrent callers share the request. Raises UnknownTopic, StorageError, LogError."""
        await joined(self._sync(followed))

    def _sync(self, followed: Followed) -> asyncio.Task[None]:
        task = followed.syncing
        if task is None:
            task = asyncio.get_running_loop().create_task(self._find(followed), name=f"bounds {followed.place}")
            followed.syncing = task
            self._syncing.add(task)
            task.add_done_callback(lambda done: self._sync_ended(followed, done))
        return task

    def _sync_ended(self, followed: Followed, task: asyncio.Task[None]) -> None:
        followed.syncing = None
        self._syncing.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        logger.info("the bounds of %s-%d are not known: %s", followed.topic, followed.partition, error)
        if self._registry.by_place.get(followed.place) is not followed:
            return
        topic = self._topics.get(followed.topic)
        if isinstance(error, UnknownTopic) and (topic is None or followed.partition >= topic.partitions):
            return  # the partition is followed again when it comes back
        # Also asked again is a leader that does not know a known topic yet.
        followed.failures += 1
        self._clock.call_later(QUICK.after(followed.failures), lambda: self._sync_again(followed))

    def _sync_again(self, followed: Followed) -> None:
        if self._registry.by_place.get(followed.place) is followed:
            self._sync(followed)

    async def _find(self, followed: Followed) -> None:
        topic = await self._exists(followed.topic, followed.partition)
        before = followed.offsets().high_watermark if followed.known else -1
        offsets = await self._lookups.bounds(followed.topic, followed.partition)
        if self._registry.by_place.get(followed.place) is not followed:
            return
        now = self._topics.get(followed.topic)
        if now is None or now.topic_id != topic.topic_id:
            raise StorageError(f"topic {followed.topic} has changed meanwhile; try again")
        followed.failures = 0
        followed.topic_id = topic.topic_id
        self._registry.found(followed, offsets, before=before)
        if not followed.buffers:
            buffer = self._registry.buffer(followed, committed=followed.committed)
            buffer.watch_from(BufferedRun(followed.end(committed=followed.committed)))
        for buffer in followed.buffers.values():
            if buffer.tail is not None:
                buffer.rests_until_s = 0.0
                self._ends.start(buffer)

    def _topics_changed(self, names: frozenset[str]) -> None:
        for name in names:
            topic = self._topics.get(name)
            for followed in self._registry.of_topic(name):
                if topic is None:
                    self._lose(followed)
                elif followed.topic_id != topic.topic_id:
                    self._lose(followed)
                    self._sync(followed)

    def _lose(self, followed: Followed) -> None:
        self._ends.stop(self._registry.drop(followed))
