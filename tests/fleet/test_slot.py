"""One slot from standby to its end, on a Kafka with faults."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.fleet.state.slot import SlotState
from flowshare.log.base import NotLed, StorageDamaged, StorageError
from flowshare.protocol import messages as m
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.errors import ErrorCode
from flowshare.slots.pruning import PruneLimits
from flowshare.slots.records import CHUNK_BYTES, VERSION, WRITE_BYTES_MAX
from flowshare.transactions.coordinator import TransactionConfig
from tests.fleet.slots import TOPIC, content, on_virtual_time, quick, sealed_as


def test_what_is_written_is_confirmed_and_read_by_others():
    async def scenario(fleet):
        slot = await fleet.process("a").slot()
        other = await fleet.process("b").slot(lead=False)

        await slot.write([(b"g/a", b"1"), (b"g/b", b"2")])
        await slot.write([(b"g/b", None)])
        await fleet.clock.sleep(1)

        assert slot.state is SlotState.LED
        assert slot.scan(b"g/") == other.scan(b"g/") == [(b"g/a", b"1")]
        assert (other.claim.owner, other.claim.host, other.epoch) == ("a", "a.example", 1)
        assert other._replay.reader.position == fleet.end()

    on_virtual_time(scenario)


def test_writes_that_wait_go_out_together():
    async def scenario(fleet):
        slot = await fleet.process().slot()
        before = fleet.end()

        await asyncio.gather(*(slot.write([(b"g/%d" % n, b"v")]) for n in range(1000)))

        assert len(content(slot)) == 1000
        assert fleet.end() - before == 1

    on_virtual_time(scenario)


def test_a_write_of_many_parts_is_read_as_one():
    async def scenario(fleet):
        slot = await fleet.process().slot()
        entries = [(b"g/%d" % n, bytes(CHUNK_BYTES // 4)) for n in range(30)]

        await asyncio.gather(slot.write(entries), slot.write([(b"g/0", b"last")]))
        other = await fleet.process("b").slot(lead=False)

        assert content(slot) == content(other) == {**dict(entries), b"g/0": b"last"}

    on_virtual_time(scenario)


def test_the_next_owner_has_all_that_was_confirmed():
    async def scenario(fleet):
        first = await fleet.process("a").slot()
        await first.write([(b"g/a", b"1")])
        await first.hand_over("b")
        assert first.state is SlotState.STANDBY
        with pytest.raises(NotLed):
            await first.write([(b"g/a", b"2")])

        second = await fleet.process("b").slot()
        await second.write([(b"g/b", b"2")])
        await fleet.clock.sleep(1)

        assert content(first) == content(second) == {b"g/a": b"1", b"g/b": b"2"}
        assert fleet.processes[0].lost == []

    on_virtual_time(scenario)


def test_a_hand_over_confirms_what_was_written_before_and_is_seen():
    async def scenario(fleet):
        first = await fleet.process("a").slot()
        watching = await fleet.process("b").slot(lead=False)
        writes = [first.write([(b"g/%d" % n, b"v")]) for n in range(10)]

        await first.hand_over("b")
        await fleet.clock.sleep(1)

        assert all(write.exception() is None for write in writes)
        assert watching.handed_over_to == "b"

    on_virtual_time(scenario)


def test_an_owner_that_was_replaced_confirms_nothing_and_says_so_once():
    async def scenario(fleet):
        process = fleet.process("a")
        first = await process.slot()
        await first.write([(b"g/a", b"1")])
        second = await fleet.process("b").slot()

        with pytest.raises(NotLed):
            await first.write([(b"g/a", b"late")])
        await second.write([(b"g/a", b"2")])
        await fleet.clock.sleep(1)

        assert len(process.lost) == 1
        assert first.state is SlotState.STANDBY
        assert content(first) == content(second) == {b"g/a": b"2"}

    on_virtual_time(scenario)


def test_an_idle_owner_learns_that_it_was_replaced():
    async def scenario(fleet):
        process = fleet.process("a")
        first = await process.slot()
        await fleet.process("b").slot()

        await fleet.clock.sleep(1)

        assert first.state is SlotState.STANDBY
        assert process.lost == ["b (node 2) claimed the slot in epoch 2"]

    on_virtual_time(scenario)


FORGETFUL = TransactionConfig(id_expiration_ms=5_000, producer_expiration_ms=5_000)


@pytest.mark.parametrize("forgets", ["the transactional id", "the producer's epoch"])
def test_an_owner_whose_fence_was_forgotten_is_stopped_by_the_order_of_the_log(forgets):
    async def scenario(fleet):
        process, next_one = fleet.process("a"), fleet.process("b")
        first = await process.slot()
        second = await next_one.slot(lead=False)
        await process.tails.close()  # it is frozen
        if forgets == "the transactional id":
            await fleet.clock.sleep(20)
        await second.lead(next_one.owner)
        if forgets == "the producer's epoch":
            await fleet.clock.sleep(20)
        before = fleet.end()

        with pytest.raises(NotLed, match=r"b \(node 2\) claimed the slot in epoch 2"):
            await first.write([(b"g/a", b"late")])

        assert fleet.end() == before + 1  # the broker took it
        assert len(process.lost) == 1
        if forgets == "the producer's epoch":
            # What the broker took is now the newest that it knows of this producer: the owner claims again.
            with pytest.raises(NotLed, match="OUT_OF_ORDER"):
                await second.write([(b"g/a", b"1")])
            await second.lead(next_one.owner)
        await second.write([(b"g/a", b"2")])
        assert content(second) == {b"g/a": b"2"}

    on_virtual_time(scenario, transactions=FORGETFUL)


def test_the_slot_can_be_claimed_again_after_it_was_lost():
    async def scenario(fleet):
        process = fleet.process("a")
        first = await process.slot()
        await fleet.process("b").slot()
        await fleet.clock.sleep(1)

        await first.lead(process.owner)
        await first.write([(b"g/a", b"again")])

        assert first.epoch == 3

    on_virtual_time(scenario)


def test_of_two_that_claim_at_once_one_leads():
    async def scenario(fleet):
        slots = [await fleet.process(name).slot(lead=False) for name in "abc"]

        await asyncio.gather(
            *(slot.lead(process.owner) for slot, process in zip(slots, fleet.processes, strict=True)),
            return_exceptions=True,
        )
        await fleet.clock.sleep(2)

        assert [slot.state for slot in slots].count(SlotState.LED) == 1

    on_virtual_time(scenario)


# --- faults -------------------------------------------------------------------------------------------------------


def test_a_write_whose_answer_is_lost_is_sent_again_and_counts_once():
    async def scenario(fleet):
        slot = await fleet.process().slot()
        before = fleet.end()
        fleet.kafka.drop_answers(m.ProduceRequest)

        await slot.write([(b"g/a", b"1")])
        await slot.write([(b"g/a", b"2")])

        assert content(slot) == {b"g/a": b"2"}
        assert fleet.end() == before + 2

    on_virtual_time(scenario)


def test_a_pipeline_that_breaks_is_sent_again_in_its_order():
    async def scenario(fleet):
        process = fleet.process()
        slot = await process.slot()
        entries = [(b"g/%d" % n, bytes(CHUNK_BYTES // 2)) for n in range(12)]
        fleet.kafka.hold(m.ProduceRequest)
        writes = [slot.write([entry]) for entry in entries]
        await fleet.clock.sleep(0.1)
        await fleet.kafka.cut()
        fleet.kafka.release(m.ProduceRequest)
        fleet.kafka.drop_answers(m.ProduceRequest, 2)

        await asyncio.gather(*writes)
        other = await fleet.process("b").slot(lead=False)

        assert content(slot) == content(other) == dict(entries)
        assert process.lost == []

    on_virtual_time(scenario)


@pytest.mark.parametrize("error", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_a_refusal_that_passes_is_waited_for(error):
    async def scenario(fleet):
        slot = await fleet.process().slot()
        fleet.kafka.refuse(m.ProduceRequest, error, 3)

        await slot.write([(b"g/a", b"1")])

        assert content(slot) == {b"g/a": b"1"}

    on_virtual_time(scenario)


def test_a_refusal_that_does_not_pass_ends_the_ownership():
    async def scenario(fleet):
        process = fleet.process()
        slot = await process.slot()
        fleet.kafka.refuse(m.ProduceRequest, ErrorCode.TOPIC_AUTHORIZATION_FAILED)

        with pytest.raises(NotLed, match="ask for the right to use the topic"):
            await slot.write([(b"g/a", b"1")])

        assert len(process.lost) == 1

    on_virtual_time(scenario)


def test_a_duplicate_whose_place_is_forgotten_is_looked_for():
    async def scenario(fleet):
        slot = await fleet.process().slot()
        fleet.kafka.refuse_after(m.ProduceRequest, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)

        await slot.write([(b"g/a", b"1")])

        assert content(slot) == {b"g/a": b"1"}

    on_virtual_time(scenario)


def test_a_write_that_is_not_confirmed_in_time_gives_the_slot_up():
    async def scenario(fleet):
        process = fleet.process()
        slot = await process.slot(settings=quick())
        fleet.kafka.hold(m.ProduceRequest)
        started_s = fleet.clock.monotonic()

        with pytest.raises(NotLed, match="not confirmed for 5 s"):
            await slot.write([(b"g/a", b"1")])

        assert fleet.clock.monotonic() - started_s == pytest.approx(5)
        assert slot.state is SlotState.STANDBY
        fleet.kafka.release(m.ProduceRequest)

    on_virtual_time(scenario)


def test_a_claim_that_cannot_be_written_is_refused_and_can_be_tried_again():
    async def scenario(fleet):
        process = fleet.process()
        slot = await process.slot(lead=False, settings=quick())
        fleet.kafka.refuse(m.ProduceRequest, ErrorCode.NOT_ENOUGH_REPLICAS, 1000)
        with pytest.raises(StorageError, match="not confirmed for 5 s"):
            await slot.lead(process.owner)
        assert slot.state is SlotState.STANDBY
        assert process.lost == []

        fleet.kafka.refuse_no_more(m.ProduceRequest)
        await slot.lead(process.owner)

        assert slot.state is SlotState.LED

    on_virtual_time(scenario)


def test_a_topic_that_is_not_there_is_an_error_at_once():
    async def scenario(fleet):
        with pytest.raises(StorageError):
            await fleet.process().slot(7, settings=quick())

    on_virtual_time(scenario)


FOREIGN = [(b"somebody's", b"record"), (None, b"{}"), (b"\5\1", b"x" * 40), (b"\1\x09", b"y" * 40)]
"""Of no form, without key, of a form without the checksum, of a newer form without it."""


def foreign():
    """A batch of records that no flowshare wrote."""
    builder = BatchBuilder()
    for key, value in FOREIGN:
        builder.add(key, value, timestamp_ms=0)
    return builder.build()


def test_foreign_records_in_the_topic_are_passed_over_and_told_of(caplog):
    async def scenario(fleet):
        slot = await fleet.process("a").slot()
        await slot.write([(b"g/a", b"1")])
        await fleet.kafka.storage.append(TOPIC, 0, foreign())
        await fleet.clock.sleep(1)
        await slot.write([(b"g/b", b"2")])
        other = await fleet.process("b").slot(lead=False)
        await fleet.kafka.storage.append(TOPIC, 0, foreign())
        await slot.hand_over("b")
        await other.lead(fleet.processes[1].owner)
        await other.write([(b"g/c", b"3")])
        third = await fleet.process("c").slot(lead=False)
        await fleet.clock.sleep(1)

        assert content(slot) == content(other) == content(third) == {b"g/a": b"1", b"g/b": b"2", b"g/c": b"3"}
        assert [process.lost for process in fleet.processes] == [[], [], []]
        assert f"4 records of {TOPIC}-0 are passed over" in caplog.text
        assert "the first at offset 2 (it has not the form of a slot's record)" in caplog.text

    on_virtual_time(scenario)


def test_a_slot_whose_topic_begins_and_ends_with_foreign_records_can_be_claimed():
    async def scenario(fleet):
        await fleet.kafka.storage.append(TOPIC, 0, foreign())
        slot = await fleet.process("a").slot()
        await slot.write([(b"g/a", b"1")])
        await fleet.kafka.storage.append(TOPIC, 0, foreign())
        await slot.close()

        again = await fleet.process("b").slot()

        assert (again.state, content(again)) == (SlotState.LED, {b"g/a": b"1"})

    on_virtual_time(scenario)


def test_what_a_newer_flowshare_wrote_stops_the_slot_and_says_where():
    async def scenario(fleet):
        process = fleet.process()
        slot = await process.slot()
        builder = BatchBuilder()
        builder.add(*sealed_as(VERSION + 1), timestamp_ms=0)
        await fleet.kafka.storage.append(TOPIC, 0, builder.build())
        await fleet.clock.sleep(1)

        assert slot.state is SlotState.BROKEN
        assert "at offset 1" in slot.trouble
        assert len(process.lost) == 1
        with pytest.raises(StorageError, match="at offset 1"):
            await slot.lead(process.owner)
        with pytest.raises(StorageDamaged):
            await fleet.process("b").slot()

    on_virtual_time(scenario)


def test_too_much_that_waits_and_too_long_a_write_are_refused():
    async def scenario(fleet):
        slot = await fleet.process().slot(settings=quick(queue_bytes=1000))
        fleet.kafka.hold(m.ProduceRequest)
        waiting = slot.write([(b"g/a", bytes(900))])
        with pytest.raises(StorageError, match="wait to be written"):
            slot.write([(b"g/a", bytes(900))])
        with pytest.raises(StorageError, match="longer than"):
            slot.write([(b"g/a", bytes(WRITE_BYTES_MAX))])
        fleet.kafka.release(m.ProduceRequest)

        await waiting
        await slot.write([(b"g/a", bytes(900))])

    on_virtual_time(scenario)


def test_a_writer_that_gives_up_waiting_disturbs_no_other():
    async def scenario(fleet):
        slot = await fleet.process().slot()
        fleet.kafka.hold(m.ProduceRequest)
        first = slot.write([(b"g/a", b"1")])
        second = slot.write([(b"g/b", b"1")])
        await fleet.clock.sleep(0.01)
        first.cancel()
        fleet.kafka.release(m.ProduceRequest)

        await second

        assert content(slot) == {b"g/a": b"1", b"g/b": b"1"}

    on_virtual_time(scenario)


# --- the lease ----------------------------------------------------------------------------------------------------


def test_without_the_lease_answers_wait_until_it_is_back():
    async def scenario(fleet):
        process = fleet.process()
        slot = await process.slot()
        process.leased = False
        write = slot.write([(b"g/a", b"1")])
        await fleet.clock.sleep(3)
        assert not write.done()

        process.leased = True
        await write

    on_virtual_time(scenario)


def test_answers_that_wait_for_the_lease_fail_when_the_slot_is_lost():
    async def scenario(fleet):
        process = fleet.process()
        slot = await process.slot()
        process.leased = False
        write = slot.write([(b"g/a", b"1")])
        await fleet.clock.sleep(1)
        await fleet.process("b").slot()
        await fleet.clock.sleep(1)

        assert isinstance(write.exception(), NotLed)

    on_virtual_time(scenario)


def test_an_owner_without_the_lease_hears_of_its_successor_while_a_write_waits_in_its_queue():
    async def scenario(fleet):
        process = fleet.process()
        slot = await process.slot()
        process.leased = False
        held = slot.write([(b"g/a", b"1")])
        await fleet.clock.sleep(1)
        queued = slot.write([(b"g/b", b"1")])
        await fleet.clock.sleep(1)
        await fleet.process("b").slot()
        await fleet.clock.sleep(1)

        assert isinstance(held.exception(), NotLed)
        assert isinstance(queued.exception(), NotLed)
        assert len(process.lost) == 1

    on_virtual_time(scenario)


def test_an_owner_whose_new_claim_waits_for_the_lease_hears_of_its_successor_while_a_write_waits():
    async def scenario(fleet):
        process = fleet.process()
        slot = await process.slot(settings=quick(idle_s=10.0))
        await fleet.clock.sleep(11)
        process.leased = False
        write = slot.write([(b"g/a", b"1")])
        await fleet.clock.sleep(1)
        assert slot.epoch == 2
        await fleet.process("b").slot()
        await fleet.clock.sleep(1)

        assert isinstance(write.exception(), NotLed)
        assert len(process.lost) == 1

    on_virtual_time(scenario)


# --- tending ------------------------------------------------------------------------------------------------------


def test_a_claim_is_renewed_when_it_is_old_and_writes_go_on():
    async def scenario(fleet):
        slot = await fleet.process().slot(settings=quick(renew_s=60.0))
        await slot.write([(b"g/a", b"1")])

        await fleet.clock.sleep(62)
        assert slot.epoch == 2
        await slot.write([(b"g/a", b"2")])

        assert content(slot) == {b"g/a": b"2"}

    on_virtual_time(scenario)


def test_the_first_write_after_a_long_idleness_comes_after_a_new_claim():
    async def scenario(fleet):
        slot = await fleet.process().slot()
        await fleet.clock.sleep(601)
        assert slot.epoch == 1

        await asyncio.gather(*(slot.write([(b"g/%d" % n, b"1")]) for n in range(10)))

        assert slot.epoch == 2
        assert len(content(slot)) == 10

    on_virtual_time(scenario)


def test_the_log_is_pruned_and_says_the_same():
    async def scenario(fleet):
        limits = PruneLimits(log_bytes=20_000, growth=3, step_bytes=500)
        process = fleet.process()
        slot = await process.slot(settings=quick(prune=limits))
        for n in range(20):
            await slot.write([(b"g/cold%d" % n, bytes(100))])
        for n in range(600):
            await slot.write([(b"g/hot%d" % (n % 7), b"%d" % n)])
            if n % 20 == 0:
                await fleet.clock.sleep(0.5)
        other = await fleet.process("b").slot(lead=False)

        assert fleet.kafka.storage.offsets(TOPIC, 0).log_start > 300
        assert content(other) == content(slot)
        assert len(content(slot)) == 27
        assert process.lost == []

    on_virtual_time(scenario)


def test_without_the_right_to_delete_records_the_log_is_left_alone(caplog):
    async def scenario(fleet):
        slot = await fleet.process().slot(settings=quick(prune=PruneLimits(log_bytes=2_000)))
        fleet.kafka.refuse(m.DeleteRecordsRequest, ErrorCode.TOPIC_AUTHORIZATION_FAILED, 100)
        for n in range(100):
            await slot.write([(b"g/a", b"%d" % n)])
            await fleet.clock.sleep(0.2)

        assert fleet.kafka.storage.offsets(TOPIC, 0).log_start == 0
        assert fleet.kafka.asked[m.DeleteRecordsRequest] == 1

    on_virtual_time(scenario)
    assert "allow this worker to delete records" in caplog.text


@pytest.mark.parametrize("trouble", ["a refusal that passes", "no answer"])
def test_a_log_that_could_not_be_cut_for_a_while_is_cut_later(trouble):
    async def scenario(fleet):
        slot = await fleet.process().slot(settings=quick(prune=PruneLimits(log_bytes=2_000)))
        if trouble == "no answer":
            fleet.kafka.hold(m.DeleteRecordsRequest)
        else:
            fleet.kafka.refuse(m.DeleteRecordsRequest, ErrorCode.REQUEST_TIMED_OUT, 1000)
        for n in range(100):
            await slot.write([(b"g/a", b"%d" % n)])
        await fleet.clock.sleep(10)
        before = fleet.kafka.storage.offsets(TOPIC, 0).log_start

        fleet.kafka.refuse_no_more(m.DeleteRecordsRequest)
        if trouble == "no answer":
            fleet.kafka.release(m.DeleteRecordsRequest)
        await fleet.clock.sleep(10)

        assert before == 0
        assert fleet.kafka.storage.offsets(TOPIC, 0).log_start > 50

    on_virtual_time(scenario)


def test_a_follower_that_fell_behind_what_was_pruned_reads_again():
    async def scenario(fleet):
        slot = await fleet.process("a").slot(settings=quick(prune=PruneLimits(log_bytes=2_000)))
        late = fleet.process("b")
        behind = await late.slot(lead=False)
        await late.tails.close()  # it stands still
        for n in range(100):
            await slot.write([(b"g/%d" % (n % 3), b"%d" % n)])
            await fleet.clock.sleep(0.2)
        assert behind._replay.reader.position < fleet.kafka.storage.offsets(TOPIC, 0).log_start

        late.tails.follow(0, late.tails._followers[0])
        await fleet.clock.sleep(5)

        assert content(behind) == content(slot)
        await behind.lead(late.owner)

    on_virtual_time(scenario)


def test_an_answer_for_a_position_that_was_passed_long_ago_disturbs_nobody():
    async def scenario(fleet):
        process = fleet.process("a")
        slot = await process.slot(settings=quick(prune=PruneLimits(log_bytes=2_000)))
        await fleet.clock.sleep(1)
        fleet.kafka.hold(m.FetchRequest)  # the tail waits at the offset behind the claim
        await fleet.clock.sleep(1)
        for n in range(60):
            await slot.write([(b"g/%d" % (n % 3), b"%d" % n)])
            await fleet.clock.sleep(0.2)
        assert fleet.kafka.storage.offsets(TOPIC, 0).log_start > 1
        before = content(slot)

        fleet.kafka.release(m.FetchRequest)
        await fleet.clock.sleep(1)

        assert content(slot) == before
        assert slot.state is SlotState.LED
        assert process.lost == []

    on_virtual_time(scenario)


def test_a_follower_whose_place_was_pruned_can_claim_at_once():
    async def scenario(fleet):
        slot = await fleet.process("a").slot(settings=quick(prune=PruneLimits(log_bytes=2_000)))
        late = fleet.process("b")
        behind = await late.slot(lead=False)
        await late.tails.close()  # it stands still
        for n in range(100):
            await slot.write([(b"g/%d" % (n % 3), b"%d" % n)])
            await fleet.clock.sleep(0.2)

        await behind.lead(late.owner)

        assert content(behind) == content(slot)

    on_virtual_time(scenario)
