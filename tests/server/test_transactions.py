"""Transactions through the server: what is durable, what time does, what a restart finds."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace

import pytest

from flowshare.core_errors import InvalidConfig
from flowshare.log.base import StorageError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    AddPartitionsToTxnRequest,
    DeleteTopicRequest,
    DescribeProducersRequest,
    DescribeTransactionRequest,
    EndTxnRequest,
    FetchPartition,
    FetchRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    ProduceRequest,
)
from flowshare.server.runtime.coordinator import PUT_OFF_MS
from flowshare.server.settings import Settings
from flowshare.server.transactions.coordinator import BLOCK, PREFIX
from flowshare.transactions.stored import encode_transaction
from flowshare.transactions.transaction import EPOCH_EXHAUSTED, Transaction, TransactionState
from tests.log.producer_contract import produced
from tests.server.world import parked, settle, world

pytestmark = pytest.mark.asyncio
NONE = ErrorCode.NONE


class Writer:
    """A transactional producer, as its client would be."""

    def __init__(self, w, transactional_id="tx") -> None:
        self.w = w
        self.transactional_id = transactional_id
        self.sequences = defaultdict(int)

    async def init(self, **fields):
        asked = InitProducerIdRequest(transactional_id=self.transactional_id, **fields)
        answer = await self.w.admin.send(asked)
        self.producer = answer.producer
        self.sequences.clear()
        return answer.error

    async def add(self, *partitions, topic="t"):
        asked = AddPartitionsToTxnRequest(
            transactional_id=self.transactional_id,
            producer=self.producer,
            partitions=tuple((topic, number) for number in partitions or (0,)),
        )
        return (await self.w.admin.send(asked)).error

    async def write(self, count=1, *, partition=0, topic="t", transactional=True):
        records = produced(
            self.sequences[topic, partition],
            count,
            producer=self.producer.producer_id,
            epoch=self.producer.epoch,
            transactional=transactional,
        )
        asked = ProduceRequest(
            topic=topic, partition=partition, records=records, transactional_id=self.transactional_id
        )
        answer = await self.w.admin.send(asked)
        self.sequences[topic, partition] += count if answer.error is NONE else 0
        return answer.error

    async def end(self, committed=True):
        asked = EndTxnRequest(transactional_id=self.transactional_id, producer=self.producer, committed=committed)
        return (await self.w.admin.send(asked)).error

    async def state(self):
        answer = await self.w.admin.send(DescribeTransactionRequest(transactional_id=self.transactional_id))
        return answer.state or answer.error

    async def open(self, **fields):
        """An open transaction with a record."""
        await self.init(**fields)
        assert await self.add() is NONE
        assert await self.write() is NONE


async def read(w, *, topic="t", committed=True):
    """Offsets from the log's start to where such a reader gets, and the aborted transactions it is told of."""
    asked = FetchRequest(partitions=(FetchPartition(topic, 0, 0),), committed=committed)
    (log,) = (await w.admin.send(asked)).partitions
    return log.last_stable, log.high_watermark, [tuple(entry) for entry in log.aborted]


async def test_a_transaction_is_read_when_it_is_committed_and_not_when_it_is_aborted() -> None:
    async with world() as w:
        await w.topic(partitions=2)
        one = Writer(w)
        await one.init()
        assert await one.add(0, 1) is NONE
        assert [await one.write(2), await one.write(partition=1)] == [NONE, NONE]
        assert await read(w) == (0, 2, [])
        assert await one.end() is NONE
        assert await read(w) == (3, 3, [])
        assert await one.add() is NONE
        assert await one.write() is NONE
        assert await one.end(committed=False) is NONE
        assert await read(w) == (5, 5, [(one.producer.producer_id, 3)])
        assert await one.state() == "CompleteAbort"


async def test_a_batch_outside_an_open_transaction_is_refused() -> None:
    async with world() as w:
        await w.topic(partitions=2)
        one = Writer(w)
        await one.init()
        assert await one.write() is ErrorCode.INVALID_TXN_STATE
        assert await one.add(1) is NONE
        assert await one.write() is ErrorCode.INVALID_TXN_STATE
        assert await one.write(partition=1, transactional=False) is ErrorCode.INVALID_TXN_STATE
        assert await one.write(partition=1) is NONE
        assert await one.end() is NONE
        assert await one.write(partition=1) is ErrorCode.INVALID_TXN_STATE
        unknown = Writer(w, "other")
        unknown.producer = one.producer
        assert await unknown.write() is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await unknown.add() is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await unknown.end() is ErrorCode.INVALID_PRODUCER_ID_MAPPING


async def test_a_second_producer_of_the_id_aborts_and_shuts_out_the_first() -> None:
    async with world() as w:
        await w.topic()
        first, second = Writer(w), Writer(w)
        await first.open()
        assert await second.init() is NONE
        assert second.producer.epoch == first.producer.epoch + 2
        assert await first.write() is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await first.add() is ErrorCode.PRODUCER_FENCED
        assert await first.end() is ErrorCode.PRODUCER_FENCED
        assert await read(w) == (2, 2, [(first.producer.producer_id, 0)])
        assert await first.init(known=first.producer) is ErrorCode.PRODUCER_FENCED


async def test_a_transaction_that_takes_too_long_is_aborted_at_its_time() -> None:
    async with world() as w:
        await w.topic()
        slow, quick = Writer(w, "slow"), Writer(w, "quick")
        await slow.open(timeout_ms=30_000)
        await quick.open(timeout_ms=10_000)
        await w.clock.advance(9.9)
        assert [await slow.state(), await quick.state()] == ["Ongoing", "Ongoing"]
        await w.clock.advance(0.2)
        assert [await slow.state(), await quick.state()] == ["Ongoing", "CompleteAbort"]
        assert await quick.end() is ErrorCode.PRODUCER_FENCED
        await w.clock.advance(20)
        assert await slow.state() == "CompleteAbort"
        assert await slow.write() is ErrorCode.INVALID_PRODUCER_EPOCH
        stable, end, aborted = await read(w)
        assert stable == end == 4
        assert sorted(first for _, first in aborted) == [0, 1]


async def test_an_ended_transaction_is_not_timed_out() -> None:
    async with world() as w:
        await w.topic()
        one = Writer(w)
        await one.open(timeout_ms=10_000)
        await one.end()
        await w.clock.advance(60)
        assert await one.state() == "CompleteCommit"
        assert await one.add() is NONE


async def test_a_timeout_is_held_to_the_servers_longest() -> None:
    async with world() as w:
        one = Writer(w)
        assert await one.init(timeout_ms=900_001) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert await one.init(timeout_ms=0) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert await one.init(timeout_ms=900_000) is NONE


async def test_a_decided_end_is_carried_out_when_the_disk_takes_writes_again() -> None:
    async with world() as w:
        await w.topic()
        one = Writer(w)
        await one.open()
        writes = 0

        async def second_fails() -> None:
            nonlocal writes
            writes += 1
            if writes > 1:
                raise StorageError("injected")

        w.storage.before_write = second_fails
        ending = await parked(one.end())
        assert await one.state() == "PrepareCommit"
        await w.clock.advance(6)
        assert await ending is NONE
        waits = await parked(one.add())
        await w.clock.advance(6)
        assert await waits is ErrorCode.CONCURRENT_TRANSACTIONS
        assert (await read(w))[0] == 0
        w.storage.before_write = None
        await w.clock.advance(2)
        assert await one.state() == "CompleteCommit"
        assert (await read(w))[:2] == (2, 2)


async def test_an_end_in_whose_way_a_bug_is_is_tried_again(caplog) -> None:
    async with world() as w:
        await w.topic()
        one = Writer(w)
        await one.open()
        writes = 0

        async def second_breaks() -> None:
            nonlocal writes
            writes += 1
            if writes == 2:
                raise RuntimeError("injected")

        w.storage.before_write = second_breaks
        ending = await parked(one.end())
        assert await one.state() == "PrepareCommit"
        await w.clock.advance(2)
        assert await ending is NONE
        assert await one.state() == "CompleteCommit"
        assert (await read(w))[:2] == (2, 2)
        assert "RuntimeError: injected" in caplog.text


async def test_an_end_writes_each_marker_once_however_others_fail() -> None:
    async with world() as w:
        await w.topic(partitions=2)
        one = Writer(w)
        await one.init()
        assert await one.add(0, 1) is NONE
        assert await one.write() is await one.write(partition=1) is NONE
        append, slow, failures = w.storage.append_control, asyncio.Event(), [StorageError("injected")]

        async def first_fails_and_second_is_slow(topic, partition, *rest, **more):
            if partition == 1:
                await slow.wait()
            elif failures:
                raise failures.pop()
            return await append(topic, partition, *rest, **more)

        w.storage.append_control = first_fails_and_second_is_slow
        ending = await parked(one.end())
        await w.clock.advance(3)
        slow.set()
        await settle()
        await w.clock.advance(2)
        assert await ending is NONE
        bounds = [w.storage.offsets("t", number).high_watermark for number in (0, 1)]
        assert bounds == [2, 2]


async def test_a_step_that_cannot_be_written_has_not_happened() -> None:
    async with world() as w:
        await w.topic()
        one = Writer(w)
        await one.open()

        async def fail() -> None:
            raise StorageError("injected")

        w.storage.before_write = fail
        # As Kafka: foreign producers ask again after this code, and end after that of the disk.
        assert await one.end() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await one.add(1) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await Writer(w, "new").init() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        w.storage.before_write = None
        assert await one.state() == "Ongoing"
        assert await Writer(w, "new").state() is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert await one.end(committed=False) is NONE


async def test_producer_ids_that_cannot_be_written_are_asked_for_again() -> None:
    async with world() as w:

        async def fail() -> None:
            raise StorageError("injected")

        w.storage.before_write = fail
        assert await Writer(w, None).init() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await Writer(w).init() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        w.storage.before_write = None
        assert await Writer(w).init() is NONE


async def test_an_id_that_expires_while_its_producer_asks_for_it_gets_a_new_producer_id() -> None:
    async with world() as w:
        await w.topic()
        one = Writer(w)
        await one.init()
        first, hold = one.producer, asyncio.Event()
        w.storage.before_write = hold.wait
        await w.clock.advance(604_800.001)  # its expiry is being written
        again = await parked(one.init())
        hold.set()
        assert await again is NONE
        assert one.producer.producer_id > first.producer_id
        assert await one.add() is NONE
        assert await one.write() is NONE
        assert await one.end() is NONE


async def test_an_id_has_a_producer_id_though_many_ask_as_its_epochs_run_out() -> None:
    async with world() as w:
        await w.topic()
        one = Writer(w)
        await one.init()
        known = w.server._transactions.get("tx")
        used_up = encode_transaction(replace(known, epoch=EPOCH_EXHAUSTED - 2))
        await w.storage.write([(PREFIX + b"tx", used_up)])
        await w.restart()
        others = [Writer(w) for _ in range(4)]
        assert await asyncio.gather(*(other.init() for other in others)) == [NONE] * 4
        assert min(other.producer.producer_id for other in others) >= 0
        assert max(other.producer.producer_id for other in others) > one.producer.producer_id


async def test_a_transaction_is_not_aborted_before_its_end_is_read_by_a_process_that_stood_still() -> None:
    async with world() as w:
        await w.topic()
        one = Writer(w)
        await one.open(timeout_ms=10_000)
        w.clock._elapsed_s += 14  # nothing runs meanwhile
        await w.clock.advance(0.001)
        assert await one.end() is NONE
        assert await one.state() == "CompleteCommit"
        await one.open(timeout_ms=10_000)
        w.clock._elapsed_s += 14  # nothing runs meanwhile
        await w.clock.advance(PUT_OFF_MS / 1000 + 0.1)
        assert await one.state() == "CompleteAbort"


async def test_a_step_goes_to_its_end_when_whoever_asked_goes_away() -> None:
    async with world() as w:
        await w.topic()
        one = Writer(w)
        await one.open()
        hold = asyncio.Event()
        w.storage.before_write = hold.wait
        ending = await parked(one.end())
        ending.cancel()
        hold.set()
        await settle()
        assert await one.state() == "CompleteCommit"


async def test_a_restart_finishes_what_was_decided_and_aborts_what_is_too_old() -> None:
    async with world() as w:
        await w.topic()
        decided, old, young = Writer(w, "decided"), Writer(w, "old"), Writer(w, "young")
        for one, timeout_ms in ((decided, 60_000), (old, 10_000), (young, 60_000)):
            await one.open(timeout_ms=timeout_ms)
        now_ms = w.clock.now_ms()
        await w.server.close()
        left = Transaction(
            transactional_id="decided",
            producer_id=decided.producer.producer_id,
            epoch=decided.producer.epoch,
            timeout_ms=60_000,
            state=TransactionState.PREPARE_COMMIT,
            partitions=frozenset({("t", 0), ("gone", 0)}),
            started_ms=now_ms,
            updated_ms=now_ms,
        )
        await w.storage.write([(PREFIX + b"decided", encode_transaction(left))])
        await w.clock.advance(20)
        await w.restart()
        await settle()
        assert await decided.state() == "CompleteCommit"
        assert await old.state() == "CompleteAbort"
        assert await young.state() == "Ongoing"
        assert await old.end() is ErrorCode.PRODUCER_FENCED
        assert await young.write() is NONE
        assert await young.end() is NONE
        assert (await read(w))[2] == [(old.producer.producer_id, 1)]


async def test_a_topic_that_goes_does_not_hold_up_the_end() -> None:
    async with world() as w:
        await w.topic()
        one = Writer(w)
        await one.open()
        await w.admin.send(DeleteTopicRequest(name="t"))
        assert await one.end() is NONE
        assert await one.state() == "CompleteCommit"


async def test_producer_ids_are_never_given_twice() -> None:
    async with world() as w:
        seen = set()
        for _ in range(3):
            for _ in range(BLOCK // 2 + 1):
                seen.add((await w.admin.send(InitProducerIdRequest())).producer.producer_id)
            await w.restart()
        assert len(seen) == 3 * (BLOCK // 2 + 1)


async def test_an_id_that_nobody_uses_is_forgotten() -> None:
    async with world() as w:
        await w.topic()
        one = Writer(w)
        await one.open()
        await one.end()
        await w.clock.advance(7 * 86_400 + 1)
        assert await one.state() is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert not await w.storage.scan(PREFIX)
        assert await one.add() is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await one.init() is NONE


async def test_a_state_that_cannot_be_read_costs_its_own_id_only() -> None:
    async with world() as w:
        await w.topic()
        await w.storage.write([(PREFIX + b"bad", b"garbage")])
        await w.restart()
        assert await Writer(w, "bad").init() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await w.storage.scan(PREFIX) == [(PREFIX + b"bad", b"garbage")]
        assert await Writer(w).init() is NONE


async def test_transactions_are_listed_by_state_producer_and_age() -> None:
    async with world() as w:
        await w.topic()
        one, two = Writer(w, "one"), Writer(w, "two")
        await one.open()
        await two.init()
        await w.clock.advance(5)

        async def listed(**filters):
            answer = await w.admin.send(ListTransactionsRequest(**filters))
            return [entry.transactional_id for entry in answer.transactions], answer.unknown_states

        assert await listed() == (["one", "two"], ())
        assert await listed(states=("Empty", "What")) == (["two"], ("What",))
        assert await listed(producer_ids=(one.producer.producer_id,)) == (["one"], ())
        assert await listed(running_ms=4000) == (["one"], ())
        assert await listed(running_ms=6000) == ([], ())


async def test_the_producers_of_a_partition_are_described() -> None:
    async with world() as w:
        await w.topic()
        one = Writer(w)
        await one.open()
        answer = await w.admin.send(DescribeProducersRequest(topic="t", partition=0))
        (found,) = answer.producers
        assert found[:3] == (*one.producer, 0)
        assert found.open_since == 0
        missing = await w.admin.send(DescribeProducersRequest(topic="none", partition=0))
        assert missing.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_an_offset_that_was_deleted_under_an_open_transaction_is_no_hindrance() -> None:
    async with world() as w:
        await w.topic()
        one = Writer(w)
        await one.open()
        await w.storage.delete_records("t", 0, 1)
        assert await one.end() is NONE
        assert w.storage.offsets("t", 0).last_stable == 2


async def test_settings_of_transactions_have_kafkas_names() -> None:
    parsed = Settings.parse({"transaction.max.timeout.ms": "5000", "producer.id.expiration.ms": "7"})
    assert (parsed.transactions.timeout_max_ms, parsed.transactions.producer_expiration_ms) == (5000, 7)
    assert parsed.transactions.id_expiration_ms == 604_800_000
    with pytest.raises(InvalidConfig, match=r"transaction\.max\.timeout\.ms"):
        Settings.parse({"transaction.max.timeout.ms": "0"})
