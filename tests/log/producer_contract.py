"""Contract of every storage for idempotent producers and transactions."""

from __future__ import annotations

import asyncio
from typing import final

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from flowshare.core_errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequence,
)
from flowshare.log.base import CorruptBatches, ProducerRefused, Storage
from flowshare.protocol.batches import batch_headers, decode_all
from flowshare.share.types import LogBatch
from tests.log.contract import NOW_MS, StorageContract, batch


def produced(
    sequence: int,
    count: int = 1,
    *,
    producer: int = 1,
    epoch: int = 0,
    transactional: bool = False,
    value: bytes = b"v",
) -> bytes:
    """A producer's batch, as clients build it."""
    builder = DefaultRecordBatchBuilder(2, 0, transactional, producer, epoch, sequence, 1 << 20)
    for number in range(count):
        builder.append(number, NOW_MS, b"k", value, [])
    return bytes(builder.build())


def in_transaction(sequence: int, count: int = 1, *, producer: int = 1, epoch: int = 0) -> bytes:
    """A transactional producer's batch."""
    return produced(sequence, count, producer=producer, epoch=epoch, transactional=True)


async def refused(storage: Storage, records: bytes) -> type[Exception]:
    """The reason for which a batch is refused; nothing of it stays."""
    before = storage.offsets("t", 0)
    with pytest.raises(ProducerRefused) as caught:
        await storage.append("t", 0, records)
    assert storage.offsets("t", 0) == before
    return type(caught.value.reason)


class ProducerContract(StorageContract):
    """Subclasses give `storage`."""

    @final
    def test_a_batch_that_comes_again_is_answered_with_the_place_it_has(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")
            firsts = [await storage.append("t", 0, produced(sequence, 2)) for sequence in (0, 2, 4, 6, 8)]

            again = [await storage.append("t", 0, produced(sequence, 2)) for sequence in (0, 2, 4, 6, 8)]

            assert [done.base_offset for done in again] == [done.base_offset for done in firsts]
            assert [done.last_offset for done in again] == [done.last_offset for done in firsts]
            assert storage.offsets("t", 0).high_watermark == 10
            assert await refused(storage, produced(0, 1)) is OutOfOrderSequence

        run(body)

    @final
    def test_a_batch_that_comes_again_while_the_first_is_written_is_answered_the_same(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")

            done = await asyncio.gather(*(storage.append("t", 0, produced(0, 3)) for _ in range(10)))

            assert {(appended.base_offset, appended.last_offset) for appended in done} == {(0, 2)}
            assert storage.offsets("t", 0).high_watermark == 3

        run(body)

    @final
    def test_a_gap_in_the_sequence_and_an_old_epoch_are_refused(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")
            await storage.append("t", 0, produced(0, 2, epoch=1))

            assert await refused(storage, produced(3, epoch=1)) is OutOfOrderSequence
            assert await refused(storage, produced(2, epoch=0)) is InvalidProducerEpoch
            assert await refused(storage, produced(2, epoch=2)) is OutOfOrderSequence
            assert (await storage.append("t", 0, produced(2, epoch=1))).base_offset == 2
            assert (await storage.append("t", 0, produced(0, epoch=2))).base_offset == 3

        run(body)

    @final
    def test_an_unknown_producer_may_start_anywhere_and_the_sequence_turns(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")

            await storage.append("t", 0, produced(2**31 - 2, 3))
            assert (await storage.append("t", 0, produced(1))).base_offset == 3
            assert await refused(storage, produced(3)) is OutOfOrderSequence

        run(body)

    @final
    @pytest.mark.parametrize(
        "records",
        [
            produced(0) + produced(1),
            batch() + produced(0),
            produced(-1),
            produced(0, epoch=-1),
            produced(0, producer=-1, transactional=True),
        ],
    )
    def test_a_batch_that_contradicts_itself_about_its_producer_is_refused(self, run, records):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")
            with pytest.raises(CorruptBatches):
                await storage.append("t", 0, records)

        run(body)

    @final
    def test_producers_of_different_partitions_know_nothing_of_each_other(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t", partitions=2)
            for partition in (0, 1):
                assert (await storage.append("t", partition, produced(0))).base_offset == 0
            assert set(storage.producers("t", 0)) == {1}

        run(body)

    @final
    def test_a_producer_is_forgotten_when_it_was_idle_too_long(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")
            storage.producer_expiry_ms = 1000
            await storage.append("t", 0, produced(0))
            self.clock.now += 1000

            assert (await storage.append("t", 0, produced(50))).base_offset == 1
            assert storage.producers("t", 0)[1].last_sequence == 50

        run(body)

    @final
    def test_a_producer_is_not_forgotten_because_the_clock_is_set(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")
            storage.producer_expiry_ms = 1000
            await storage.append("t", 0, produced(0))
            self.clock.set_ms = 2 * 86_400_000

            assert await refused(storage, produced(50)) is OutOfOrderSequence
            assert (await storage.append("t", 0, produced(1))).base_offset == 1

        run(body)

    @final
    def test_producers_stay_known_when_their_records_are_deleted(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")
            await storage.append("t", 0, produced(0, 2))
            await storage.delete_records("t", 0, -1)

            assert (await storage.append("t", 0, produced(0, 2))).base_offset == 0
            assert await refused(storage, produced(5)) is OutOfOrderSequence

        run(body)

    @final
    def test_a_batch_is_only_taken_when_its_admission_says_so(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")

            def refuse() -> None:
                raise InvalidTxnState("no")

            with pytest.raises(ProducerRefused, match="no"):
                await storage.append("t", 0, in_transaction(0), admit=refuse)
            assert storage.offsets("t", 0).high_watermark == 0
            assert not storage.producers("t", 0)

        run(body)

    @final
    def test_open_transactions_hold_back_readers_of_committed_records(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")
            await storage.append("t", 0, batch(2))
            await storage.append("t", 0, in_transaction(0, 3, producer=1))
            await storage.append("t", 0, in_transaction(0, 1, producer=2))

            offsets = storage.offsets("t", 0)
            read = await storage.read("t", 0, 0, max_bytes=1 << 20, committed=True)
            assert (offsets.last_stable, offsets.high_watermark) == (2, 6)
            assert read.batches == (LogBatch(0, 1),)
            for offset in (2, 4, 6):
                assert not (await storage.read("t", 0, offset, max_bytes=1, committed=True)).batches
            assert len((await storage.read("t", 0, 0, max_bytes=1 << 20)).batches) == 3

            await storage.append_control("t", 0, 1, 0, committed=True)
            assert storage.offsets("t", 0).last_stable == 5
            await storage.append_control("t", 0, 2, 0, committed=True)
            assert storage.offsets("t", 0).last_stable == storage.offsets("t", 0).high_watermark == 8

        run(body)

    @final
    def test_readers_of_committed_records_are_told_which_batches_were_aborted(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")
            await storage.append("t", 0, in_transaction(0, 2, producer=1))
            await storage.append("t", 0, in_transaction(0, 2, producer=2))
            await storage.append("t", 0, batch(1))
            await storage.append("t", 0, in_transaction(2, 1, producer=1))
            await storage.append_control("t", 0, 2, 0, committed=True)
            await storage.append_control("t", 0, 1, 0, committed=False)
            await storage.append("t", 0, in_transaction(3, 1, producer=1))
            await storage.append_control("t", 0, 1, 0, committed=True)

            read = await storage.read("t", 0, 0, max_bytes=1 << 20, committed=True)
            assert read.aborted == (LogBatch(0, 1), LogBatch(5, 5))
            assert (await storage.read("t", 0, 2, max_bytes=1 << 20, committed=True)).aborted == (LogBatch(5, 5),)
            assert not (await storage.read("t", 0, 0, max_bytes=1 << 20)).aborted
            assert not (await storage.read("t", 0, 6, max_bytes=1 << 20, committed=True)).aborted

        run(body)

    @final
    def test_a_marker_is_a_control_batch_that_clients_understand(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")
            await storage.append("t", 0, in_transaction(0, producer=7, epoch=3))
            done = [await storage.append_control("t", 0, 7, 3, committed=committed) for committed in (True, False)]

            read = await storage.read("t", 0, 1, max_bytes=1 << 20)
            headers = batch_headers(read.records)
            assert [appended.base_offset for appended in done] == [1, 2]
            assert all(header.is_control and header.is_transactional for header in headers)
            assert {(header.producer_id, header.producer_epoch, header.base_sequence) for header in headers} == {
                (7, 3, -1)
            }
            keys = []
            for header in headers:
                found = DefaultRecordBatch(read.records[header.position : header.position + header.size])
                assert found.validate_crc()
                (record,) = list(found)
                keys.append(record.key)
            assert keys == [b"\0\0\0\1", b"\0\0\0\0"]
            assert decode_all(read.records) == []

        run(body)

    @final
    def test_a_marker_shuts_out_older_epochs_and_starts_sequences_anew(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")
            await storage.append("t", 0, in_transaction(0, 5))
            await storage.append_control("t", 0, 1, 1, committed=False)

            assert await refused(storage, in_transaction(5)) is InvalidProducerEpoch
            with pytest.raises(ProducerRefused):
                await storage.append_control("t", 0, 1, 0, committed=True)
            assert (await storage.append("t", 0, in_transaction(0, epoch=1))).base_offset == 6

        run(body)

    @final
    def test_within_a_transaction_only_its_own_batches_are_taken_from_the_producer(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")
            await storage.append("t", 0, in_transaction(0))

            assert await refused(storage, produced(1)) is InvalidTxnState

        run(body)

    @final
    def test_deleting_records_forgets_aborted_transactions_and_moves_the_last_stable_offset(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")
            await storage.append("t", 0, in_transaction(0, 3))
            await storage.append_control("t", 0, 1, 0, committed=False)
            await storage.append("t", 0, in_transaction(3, 3))
            await storage.delete_records("t", 0, 5)

            assert storage.offsets("t", 0).last_stable == 5
            await storage.append_control("t", 0, 1, 0, committed=False)
            assert storage.offsets("t", 0).last_stable == 8
            read = await storage.read("t", 0, 5, max_bytes=1 << 20, committed=True)
            assert read.aborted == (LogBatch(4, 6),)

        run(body)

    @final
    def test_a_deleted_topic_takes_its_producers_with_it(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")
            await storage.append("t", 0, in_transaction(0))
            await storage.delete_topic("t")
            await storage.create_topic("t")

            assert not storage.producers("t", 0)
            assert storage.offsets("t", 0).last_stable == 0

        run(body)
