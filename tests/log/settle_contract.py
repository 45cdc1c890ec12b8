"""Contract of every storage that settles: records of several partitions and state in one step, all or none."""

from __future__ import annotations

import asyncio
import uuid
from typing import final

import pytest

from flowshare.log.base import (
    CheckedOutput,
    CorruptBatches,
    InvalidRecord,
    InvalidTimestamp,
    LogError,
    Output,
    OutputRefused,
    RecordsTooLarge,
    Storage,
    UnknownTopic,
)
from flowshare.protocol.batches import BatchBuilder, decode_all, marker
from flowshare.share.types import LogBatch
from tests.log.compaction_contract import CompactionContract
from tests.log.contract import NOW_MS, batch
from tests.log.producer_contract import in_transaction, produced
from tests.log.test_inspection import saying


def to(storage: Storage, topic: str, partition: int, records: bytes) -> Output:
    """An output for the topic as it is now."""
    return Output(topic, storage.topics()[topic].topic_id, partition, records)


async def values(storage: Storage, topic: str, partition: int = 0) -> list[bytes]:
    """Values of all that readers of committed records get, each at the offset that it should have."""
    found = list[bytes]()
    while (offset := len(found)) < storage.offsets(topic, partition).last_stable:
        read = await storage.read(topic, partition, offset, max_bytes=1 << 20, committed=True)
        records = decode_all(read.records)
        assert [record.offset for record in records] == list(range(offset, offset + len(records)))
        found += [record.value for record in records]
    return found


async def refused(storage: Storage, outputs: list[Output | CheckedOutput]) -> dict[int, type[LogError]]:
    """Which outputs a settle refuses, and why; nothing of it is there."""
    topics = [(topic.name, number) for topic in storage.topics().values() for number in range(topic.partitions)]
    before = [storage.offsets(*place) for place in topics]
    with pytest.raises(OutputRefused) as caught:
        await storage.settle(outputs, [(b"k", b"v")])
    assert [storage.offsets(*place) for place in topics] == before
    assert await storage.scan(b"") == []
    return {index: type(error) for index, error in caught.value.places.items()}


class SettleContract(CompactionContract):
    """Subclasses give `storage`."""

    @final
    def test_outputs_and_state_are_there_together_for_readers_of_committed_records_too(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t", partitions=2)
            await storage.create_topic("u")
            await storage.append("t", 1, batch(2, value=b"before"))
            await storage.write([(b"s/old", b"v")])

            await storage.settle(
                [
                    to(storage, "t", 1, batch(2, value=b"a", compression="gzip") + batch(1, value=b"b")),
                    to(storage, "u", 0, batch(1, value=b"c")),
                ],
                [(b"s/old", None), (b"s/new", b"x"), (b"s/new", b"y")],
            )

            assert await values(storage, "t", 1) == [b"before"] * 2 + [b"a"] * 2 + [b"b"]
            assert await values(storage, "u") == [b"c"]
            assert await storage.scan(b"s/") == [(b"s/new", b"y")]
            assert storage.offsets("t", 1).last_stable == storage.offsets("t", 1).high_watermark == 5
            assert (await storage.append("t", 1, batch(1))).base_offset == 5

        run(body)

    @final
    def test_several_outputs_for_a_partition_follow_each_other_in_their_order(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t", partitions=2)

            places = ((0, b"a"), (1, b"b"), (0, b"c"), (0, b"d"), (1, b"e"))
            await storage.settle([to(storage, "t", n, batch(2, value=value)) for n, value in places], [])

            assert await values(storage, "t", 0) == [b"a", b"a", b"c", b"c", b"d", b"d"]
            assert await values(storage, "t", 1) == [b"b", b"b", b"e", b"e"]
            read = await storage.read("t", 0, 0, max_bytes=1 << 20)
            assert read.batches == (LogBatch(0, 1), LogBatch(2, 3), LogBatch(4, 5))

        run(body)

    @final
    def test_settles_and_appends_keep_the_order_of_their_calls(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")

            def call(number: int):
                records, entry = batch(1, value=b"%d" % number), (b"last", b"%d" % number)
                if number % 3 == 0:
                    return storage.append("t", 0, records)
                return storage.settle([to(storage, "t", 0, records)] * 2, [entry])

            await asyncio.gather(*(call(number) for number in range(30)))

            expected = [number for number in range(30) for _ in range(2 if number % 3 else 1)]
            assert [int(value) for value in await values(storage, "t")] == expected
            assert await storage.scan(b"last") == [(b"last", b"29")]

        run(body)

    @final
    def test_a_settle_of_state_only_and_one_of_nothing_are_done(self, run):
        async def body(storage: Storage) -> None:
            await storage.settle([], [(b"k", b"v")])
            await storage.settle([], [])
            assert await storage.scan(b"") == [(b"k", b"v")]

        run(body)

    @final
    def test_every_output_that_is_refused_is_named_with_its_reason_and_nothing_is_written(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t", configs={"max.message.bytes": "500"})
            await storage.create_topic("keyed", configs={"cleanup.policy": "compact"})
            keyless = BatchBuilder()
            keyless.add(None, b"v", timestamp_ms=NOW_MS)
            wrong = bytearray(batch(2))
            wrong[30] ^= 1
            good, late = to(storage, "t", 0, batch(1)), batch(1, timestamp_ms=NOW_MS + 10**9)
            outputs: list[Output | CheckedOutput] = [
                good,
                Output("nope", uuid.uuid4(), 0, batch(1)),
                good._replace(topic_id=uuid.uuid4()),
                good._replace(partition=1),
                to(storage, "keyed", 0, batch(1)),
                good._replace(records=b""),
                good._replace(records=bytes(wrong)),
                good._replace(records=batch(1, value=bytes(600))),
                to(storage, "keyed", 0, keyless.build()),
                good._replace(records=late),
                good,
            ]

            assert await refused(storage, outputs) == {
                1: UnknownTopic,
                2: UnknownTopic,
                3: UnknownTopic,
                5: CorruptBatches,
                6: CorruptBatches,
                7: RecordsTooLarge,
                8: InvalidRecord,
                9: InvalidTimestamp,
            }
            await storage.settle([outputs[index] for index in (0, 4, 10)], [])
            assert len(await values(storage, "t")) == 2

        run(body)

    @final
    @pytest.mark.parametrize(
        "records",
        [
            produced(0),
            in_transaction(0),
            batch(1) + produced(0),
            marker(1, 0, committed=True, timestamp_ms=NOW_MS),
        ],
        ids=["idempotent", "transactional", "second batch", "marker"],
    )
    def test_an_output_with_a_producer_or_of_a_transaction_is_refused(self, run, records):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")
            assert await refused(storage, [to(storage, "t", 0, records)]) == {0: CorruptBatches}

        run(body)

    @final
    def test_what_came_over_a_socket_is_read_before_its_header_is_believed(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")
            lying = to(storage, "t", 0, saying(1000))
            with pytest.raises(OutputRefused) as caught:
                await storage.checked([to(storage, "t", 0, batch(1)), lying, lying], source="somebody")
            assert {index: type(error) for index, error in caught.value.places.items()} == {
                1: InvalidRecord,
                2: InvalidRecord,
            }
            outputs = [to(storage, "t", 0, batch(40, compression="zstd")), to(storage, "t", 0, batch(1, value=b"w"))]
            await storage.settle(await storage.checked(outputs, source="somebody"), [])
            assert await values(storage, "t") == [b"v"] * 40 + [b"w"]

        run(body)

    @final
    def test_a_topic_that_was_made_anew_takes_no_output_that_was_checked_for_the_one_before(self, run):
        async def body(storage: Storage) -> None:
            for name in ("kept", "t", "gone"):
                await storage.create_topic(name)
            places = (("kept", b"a"), ("t", b"b"), ("gone", b"c"), ("kept", b"d"))
            outputs = await storage.checked([to(storage, name, 0, batch(value=value)) for name, value in places])
            await storage.delete_topic("t")
            await storage.create_topic("t")
            await storage.delete_topic("gone")

            assert await refused(storage, [*outputs]) == {1: UnknownTopic, 2: UnknownTopic}
            await storage.settle([outputs[0], outputs[3]], [(b"k", b"v")])
            assert await values(storage, "kept") == [b"a", b"d"]
            assert await values(storage, "t") == []

        run(body)

    @final
    def test_outputs_are_stamped_by_topics_that_stamp(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("stamped", configs={"message.timestamp.type": "LogAppendTime"})
            await storage.create_topic("t")
            outputs = [to(storage, name, 0, batch(2, timestamp_ms=5)) for name in ("stamped", "t", "stamped")]
            self.clock.now = NOW_MS + 77
            await storage.settle(outputs, [])

            async def times(name: str) -> list[int]:
                read = await storage.read(name, 0, 0, max_bytes=1 << 20)
                return [record.timestamp_ms for record in decode_all(read.records)]

            assert await times("stamped") == [NOW_MS + 77] * 4
            assert await times("t") == [5, 6]
            assert await storage.offset_for_timestamp("stamped", 0, NOW_MS) == (0, NOW_MS + 77)

        run(body)

    @final
    def test_listeners_hear_once_of_each_partition_that_was_written_when_all_of_it_holds(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t", partitions=3)
            heard = []

            def listen(topic: str, number: int) -> None:
                ends = [storage.offsets("t", n).high_watermark for n in range(3)]
                heard.append((topic, number, ends))

            storage.on_append(listen)
            await storage.settle([to(storage, "t", number, batch(1)) for number in (2, 0, 2)], [(b"k", b"v")])
            await storage.settle([], [(b"k", b"w")])

            assert heard == [("t", 2, [1, 0, 2]), ("t", 0, [1, 0, 2])]

        run(body)
