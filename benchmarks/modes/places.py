"""Where trials take place: one Kafka for all arms that use one, a fresh embedded path for each trial of the others."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

import flowshare as fs
from benchmarks import arena, common
from benchmarks.modes.arms import WORKERS, Arm
from benchmarks.modes.judge import quantile
from benchmarks.modes.members import Place, Running, forks, tie
from benchmarks.modes.work import key_of, number_of, value_of
from flowshare.client.producer.producer import Message
from flowshare.dev import broker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PARTITIONS: Final = 4
SETTINGS: Final = {
    "group.min.session.timeout.ms": "1000",
    "group.share.min.session.timeout.ms": "1000",
    "group.share.session.timeout.ms": "3000",
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "500",
    "group.share.max.record.lock.duration.ms": "60000",
    "log.segment.bytes": str(1 << 30),
}
SLOTS: Final = 4
SHARED: Final = ("__consumer_offsets", "__share_group_state", "__transaction_state")
"""Topics of Kafka's own in which groups of all kinds keep what they finished."""
FLUSH_S: Final = 30
WARM_TOPIC, WARM_SENDS = "warm", 20
"""A sender's first records on an embedded path are late; these are nobody's."""
READY_S: Final = 20
LATE_S: Final = 0.05
"""From when a sender is ready to its first record."""

_numbers = itertools.count(1)


class Broken(Exception):
    """A trial that came to nothing, in a sentence."""


class Site(Protocol):
    """Interface of the place where a trial runs."""

    def open(self, arm: Arm, *, lease_s: float, retry_s: float) -> Place:
        """New topics and a new group."""

    def fill(self, place: Place, records: int, keys: int) -> None:
        """Records 0, 1, … before anybody reads."""

    def send(self, place: Place, rate: float, first: int, records: int, keys: int) -> Sending:
        """Records one by one, so many a second, from another process."""

    def bytes_kept(self, place: Place) -> int:
        """Bytes of logs but those of the records themselves."""

    def outputs(self, place: Place) -> Counter[int]:
        """How often each record is in the sink, as a reader of committed records sees it."""

    def close(self, place: Place) -> None:
        """Delete what was made."""


class Sending:
    """A sender. due: when record `number` is due."""

    def __init__(self, process: Any, told: Any, start: float, rate: float, first: int, records: int) -> None:
        self._process = Running(process)
        self._told = told
        self._start, self._rate, self._first = start, rate, first
        self.records = range(first, first + records)

    def due(self, record: int) -> float:
        """By the monotonic clock."""
        return self._start + (record - self._first) / self._rate

    @property
    def over(self) -> float:
        """When the last one is due."""
        return self.due(self.records[-1])

    def lateness(self) -> float:
        """Seconds that the sender itself was late, 99 of 100 records at most. Waits until all are sent."""
        if not self._told.poll(FLUSH_S):
            raise Broken(f"a sender did not end in {FLUSH_S} s")
        late: float = self._told.recv()
        return late

    def stop(self) -> None:
        """End it, if it has not ended."""
        self._process.kill()


def _sending(target: Any, rate: float, first: int, records: int, *more: Any) -> Sending:
    ours, theirs = forks().Pipe()
    process = forks().Process(target=target, args=(theirs, rate, first, records, *more), daemon=True)
    process.start()
    if not ours.poll(READY_S):
        raise Broken(f"a sender was not ready in {READY_S} s")
    ours.recv()
    start = time.monotonic() + LATE_S
    ours.send(start)
    return Sending(process, ours, start, rate, first, records)


def _told(parent: Any) -> float:
    """In a sender that is ready: when to begin."""
    tie()
    parent.send("ready")
    start: float = parent.recv()
    return start


def _pause(due: float) -> float:
    return due - time.monotonic()


# --- Kafka --------------------------------------------------------------------------------------------------------


class Kafka:
    """One broker for all."""

    def __init__(self, running: broker.DevBroker) -> None:
        self.server = arena.Server("kafka", running.bootstrap)
        self.version = running.version
        assert running.data is not None
        self._data = running.data

    def open(self, arm: Arm, *, lease_s: float, retry_s: float) -> Place:
        """Topics, and a fleet's name where there is one."""
        name = f"m{next(_numbers)}"
        bootstrap = self.server.bootstrap
        more = f"&fleet={name}&slots={SLOTS}" if arm.query == WORKERS else ""
        url = f"kafka://{bootstrap}?{arm.query}{more}" if arm.query else f"kafka://{bootstrap}"
        group = self.server.group() if arm.query == "share=native" else f"{name}-group"
        place = Place(url=url, bootstrap=bootstrap, topic=name, group=group, lease_s=lease_s, retry_s=retry_s)
        self.server.topic(name, PARTITIONS)
        if arm.queue:
            self.server.topic(place.markers, PARTITIONS, {"message.timestamp.type": "LogAppendTime"})
        if arm.sends:
            self.server.topic(place.sink, PARTITIONS)
        return place

    def fill(self, place: Place, records: int, keys: int) -> None:
        """In batches of about 1,000."""
        producer = Producer(
            {**_producing(place), "linger.ms": 50, "batch.num.messages": 1000, "queue.buffering.max.messages": 500_000}
        )
        for record in range(records):
            producer.produce(place.topic, value_of(record), key=key_of(record, keys))
            if not record % 1000:
                producer.poll(0)
        if producer.flush(FLUSH_S):
            raise Broken(f"the broker did not take the records in {FLUSH_S} s")

    def send(self, place: Place, rate: float, first: int, records: int, keys: int) -> Sending:
        """By librdkafka, linger 0, acks=all."""
        return _sending(_send_to_kafka, rate, first, records, place, keys)

    def bytes_kept(self, place: Place) -> int:
        """Of all topics but the records' and the outputs': markers, offsets, share state, a fleet's slots, ledgers."""
        mine = {place.markers, f"__flowshare_state.{place.topic}", *SHARED}
        found = 0
        for folder in self._data.glob("*/*"):
            if folder.name.rpartition("-")[0] in mine:
                found += sum(file.stat().st_size for file in folder.glob("*.log"))
        return found

    def outputs(self, place: Place) -> Counter[int]:
        """By a consumer of committed records."""
        settings = {"bootstrap.servers": place.bootstrap, "group.id": f"{place.group}-look", "log_level": 0}
        consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True})
        consumer.assign([TopicPartition(place.sink, one, 0) for one in range(PARTITIONS)])
        found: Counter[int] = Counter()
        ended: set[int] = set()
        deadline_s = time.monotonic() + FLUSH_S
        while len(ended) < PARTITIONS and time.monotonic() < deadline_s:
            for message in consumer.consume(1000, 0.1):
                if message.error() is None:
                    found[number_of(message.value())] += 1
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
        consumer.close()
        return found

    def close(self, place: Place) -> None:
        """Topics are deleted in the background; a fleet's state too."""
        admin = self.server._admin
        there = admin.list_topics(timeout=FLUSH_S).topics
        own = (place.topic, place.markers, place.sink, f"__flowshare_state.{place.topic}")
        gone = [one for one in there if one in own or one.startswith((f"{place.topic}__", f"{place.group}."))]
        if gone:
            admin.delete_topics(gone)


def _producing(place: Place) -> dict[str, Any]:
    known = {"bootstrap.servers": place.bootstrap, "partitioner": "murmur2_random", "log_level": 0}
    return {**known, "acks": "all", "enable.idempotence": True}  # without it a batch that is sent again loses its place


def _send_to_kafka(parent: Any, rate: float, first: int, records: int, place: Place, keys: int) -> None:
    producer = Producer({**_producing(place), "linger.ms": 0})
    producer.list_topics(place.topic, timeout=READY_S)
    start = _told(parent)
    late: list[float] = []
    for number in range(records):
        while (left := _pause(start + number / rate)) > 0:
            producer.poll(0)
            time.sleep(min(left, 0.01))
        late.append(-left)
        producer.produce(place.topic, value_of(first + number), key=key_of(first + number, keys))
        producer.poll(0)
    producer.flush(FLUSH_S)
    parent.send(_lateness(late))


@contextmanager
def kafka() -> Iterator[Kafka]:
    """A Kafka of its own with one node, gone afterwards."""
    with broker.running(broker.Wanted(settings=SETTINGS, jvm=arena.BROKER_JVM)) as running:
        yield Kafka(running)


# --- embedded paths -----------------------------------------------------------------------------------------------


class Embedded:
    """Paths of a temporary directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, arm: Arm, *, lease_s: float, retry_s: float) -> Place:
        """A path with a topic, closed again."""
        path = Path(tempfile.mkdtemp(prefix="path-", dir=self._folder), "log")
        place = Place(
            url=f"embedded://{path}", bootstrap="", topic="values", group="bench", lease_s=lease_s, retry_s=retry_s
        )
        if arm.sends:
            common.fill(place.url, place.sink, [], partitions=PARTITIONS)
        return place

    def fill(self, place: Place, records: int, keys: int) -> None:
        """In batches of about 1,000, and the topic before."""
        messages = (Message(value_of(record), key=key_of(record, keys)) for record in range(records))
        common.fill(place.url, place.topic, messages, partitions=PARTITIONS)

    def send(self, place: Place, rate: float, first: int, records: int, keys: int) -> Sending:
        """By flowshare's producer, which asks the process that leads the path."""
        return _sending(_send_to_path, rate, first, records, place, keys)

    def bytes_kept(self, place: Place) -> int:
        """Of the write-ahead log, which has the records that were sent as well."""
        path = Path(place.url.removeprefix("embedded://"))
        return sum(file.stat().st_size for file in path.glob("**/*.log"))

    def outputs(self, place: Place) -> Counter[int]:
        """By a share group of its own, in a process of its own."""
        receiving, sending = forks().Pipe(duplex=False)
        process = forks().Process(target=_read_path, args=(place, sending), daemon=True)
        process.start()
        found = receiving.recv() if receiving.poll(FLUSH_S) else []
        Running(process).kill()
        return Counter(found)

    def close(self, place: Place) -> None:
        """Gone."""
        shutil.rmtree(Path(place.url.removeprefix("embedded://")).parent, ignore_errors=True)


def _send_to_path(parent: Any, rate: float, first: int, records: int, place: Place, keys: int) -> None:
    async def main() -> None:
        async with fs.Broker(place.url) as opened:
            producer = fs.Producer(opened)
            await fs.ShareAdmin(opened).create_topic(WARM_TOPIC, exist_ok=True)
            for number in range(WARM_SENDS):
                await producer.send(WARM_TOPIC, value_of(number))
            start = _told(parent)
            late: list[float] = []
            sends = []
            for number in range(records):
                if (left := _pause(start + number / rate)) > 0:
                    await asyncio.sleep(left)
                late.append(-_pause(start + number / rate))
                record = first + number
                sends.append(producer.send_nowait(place.topic, value_of(record), key=key_of(record, keys)))
            await asyncio.gather(*sends)
            parent.send(_lateness(late))
            await asyncio.Event().wait()  # it might be the one that leads: it goes when it is told

    asyncio.run(main())


def _lateness(late: Sequence[float]) -> float:
    """Of 99 of 100 records behind the first fifth, which is warm-up."""
    return quantile(sorted(late[len(late) // 5 :]), 0.99)


def _read_path(place: Place, told: Any) -> None:
    tie()

    async def main() -> list[int]:
        found: list[int] = []
        async with fs.Broker(place.url) as opened:
            await fs.ShareAdmin(opened).alter_group_configs("look", {"share.auto.offset.reset": "earliest"})
            consumer = fs.ShareConsumer(opened, [place.sink], group_id="look")
            quiet = 0
            while quiet < 3:
                records: Sequence[Any] = await consumer.poll(0.3)
                found += [number_of(one.value) for one in records]
                quiet = 0 if records else quiet + 1
        return found

    told.send(asyncio.run(main()))


@contextmanager
def paths() -> Iterator[Embedded]:
    """A place for embedded paths, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="flowshare-modes-", ignore_cleanup_errors=True) as folder:
        yield Embedded(Path(folder))
