"""Groups with an order by key at a server: what a fetch brings, what it is read from, when the order may change."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from flowshare.log.base import CorruptBatches, StorageError
from flowshare.protocol import thinning
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.decoding import decode_all
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    AlterShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest,
    HeldRanges,
    ShareResumeRequest,
    TopicPartition,
)
from flowshare.protocol.messages.browse import ShareChangesRequest
from flowshare.server.share import opened_log
from flowshare.server.share.loader import Loader
from flowshare.server.share.opened_log import OPENED_BYTES, OpenedBatches, OpenedLog, Thinned
from flowshare.server.share.partitions import Partitions
from flowshare.share.config import ServerConfig
from flowshare.share.types import AckRange
from flowshare.testing.clock import settle
from tests.server.test_transactions import Writer
from tests.server.world import EARLIEST, accept, parked, ranges, reject, release, world

pytestmark = pytest.mark.asyncio

BY_KEY = {**EARLIEST, "share.key.order": "key"}


def keyed(keys: str, *, headers: str = "", codec: str = "none") -> bytes:
    """A batch with a record for each letter: its key ("-": none), or the value of its header `h`; values count up."""
    builder = BatchBuilder(compression=codec)
    for number, letter in enumerate(keys):
        header = [("h", headers[number].encode())] if headers and headers[number] != "-" else []
        key = None if letter == "-" else letter.encode()
        assert builder.add(key, str(number).encode(), header, timestamp_ms=1_000)
    return builder.build()


def values(answer) -> list[str]:
    """Values of the records in an answer."""
    return [record.value.decode() for part in answer.partitions for record in decode_all(part.records)]


def taken(answer) -> list[tuple[int, int, int]]:
    return [tuple(part) for partition in answer.partitions for part in partition.acquired]


async def test_a_fetch_brings_the_first_record_of_each_key_and_no_bytes_of_others() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("aabab-"))
        answer = await w.member("m").fetch(at)

    assert ranges(answer) == [(0, 0, 1), (2, 2, 1), (5, 5, 1)]
    assert values(answer) == ["0", "2", "5"]


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "zstd", "snappy"])
async def test_batches_are_thinned_whatever_their_compression(codec: str) -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("aab", codec=codec))
        answer = await w.member("m").fetch(at)

    assert values(answer) == ["0", "2"]


async def test_records_are_ordered_by_a_header() -> None:
    async with world(configs={**EARLIEST, "share.key.order": "header:h"}) as w:
        at = await w.log(keyed("abcd", headers="xx-y"))
        answer = await w.member("m").fetch(at)

    assert values(answer) == ["0", "2", "3"]


async def test_a_fetch_that_waits_is_woken_by_the_settling_of_a_head() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("aaa"))
        m, n = w.member("m"), w.member("n")
        await m.fetch(at)
        assert taken(await n.fetch(at)) == []
        waiting = await parked(n.fetch(max_wait_ms=60_000))
        await m.acknowledge({at: [accept(0)]})

        assert ranges(await waiting) == [(1, 1, 1)]


async def test_a_fetch_of_a_member_that_holds_a_key_does_not_overtake_who_waits_and_holds_none() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("abab"))
        m, n = w.member("m"), w.member("n")
        await m.fetch(at)
        waiting = await parked(n.fetch(at, max_wait_ms=60_000))
        settled = asyncio.ensure_future(m.acknowledge({at: [accept(0)]}))
        ahead = asyncio.ensure_future(m.fetch(max_wait_ms=60_000))

        assert ranges(await waiting) == [(2, 2, 1)]
        await settled
        assert not ahead.done()
        await m.acknowledge({at: [accept(1)]})
        assert ranges(await ahead) == [(3, 3, 1)]


async def test_of_those_that_wait_who_holds_nothing_is_served_first() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("abab"))
        m, n, o = (w.member(name) for name in "mno")
        await m.fetch(at, max_records=1)
        await n.fetch(at, max_records=1)
        ahead = await parked(m.fetch(max_wait_ms=60_000))
        waiting = await parked(o.fetch(at, max_wait_ms=60_000))
        await n.acknowledge({at: [accept(1)]})

        assert ranges(await waiting) == [(3, 3, 1)]
        assert not ahead.done()
        await m.acknowledge({at: [accept(0)]})
        assert ranges(await ahead) == [(2, 2, 1)]


async def test_a_key_each_is_left_for_those_that_wait_and_the_rest_is_had_at_once() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("a"))
        m, n, o = (w.member(name) for name in "mno")
        await m.fetch(at)
        waiting = [await parked(one.fetch(at, max_wait_ms=60_000, max_records=5)) for one in (n, o)]
        appended = asyncio.ensure_future(w.produce(keyed("bcdef")))
        for _ in range(100):
            await asyncio.sleep(0)
            if appended.done():
                break
        got = [[offset for first, last, _ in ranges(await one) for offset in range(first, last + 1)] for one in waiting]

    assert sorted(offset for some in got for offset in some) == [1, 2, 3, 4, 5]
    assert all(got)


async def test_a_member_that_can_is_given_chains_of_the_keys_that_it_begins() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("abacaa"))
        answer = await w.member("m").fetch(at, heads=2, chain=3)

    assert ranges(answer) == [(0, 2, 1), (4, 4, 1)]
    assert values(answer) == ["0", "1", "2", "4"]


async def test_a_chain_is_acknowledged_in_order_or_refused() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("aaa"))
        m = w.member("m")
        await m.fetch(at, heads=1, chain=3)
        early = await m.acknowledge({at: [accept(1)]})
        right = await m.acknowledge({at: [accept(0, 1)]})

    assert early.partitions[0].error is ErrorCode.INVALID_RECORD_STATE
    assert right.partitions[0].error is ErrorCode.NONE


async def test_a_write_that_fails_takes_what_was_decided_behind_it_along() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("aab"))
        m = w.member("m")
        await m.fetch(at, heads=1, chain=2)
        gate = w.storage

        async def fail(*_: object) -> None:
            raise StorageError("no space left")

        gate.before_write = fail
        first = await m.acknowledge({at: [accept(0)]})
        gate.before_write = None
        second = await m.acknowledge({at: [accept(1)]})

    assert first.partitions[0].error is ErrorCode.KAFKA_STORAGE_ERROR
    assert second.partitions[0].error is ErrorCode.INVALID_RECORD_STATE


async def test_a_rejected_head_lets_its_key_go_on_and_a_released_one_does_not() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("aabb"))
        m = w.member("m")
        await m.fetch(at)
        answer = await m.fetch(acks={at: [reject(0), release(2)]})

    assert ranges(answer) == [(1, 1, 1), (2, 2, 2)]


async def test_a_lost_connection_frees_no_head_before_its_lock_lapses() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("aab"))
        m, n = w.member("m"), w.member("n")
        await m.fetch(at)
        await m.connection.close()
        await settle()
        before = taken(await n.fetch(at))
        await w.clock.advance(31)

        assert (before, ranges(await n.fetch())) == ([], [(0, 0, 2), (2, 2, 2)])


@pytest.mark.parametrize("ended", [True, False])
async def test_the_heads_of_a_member_are_free_as_soon_as_its_process_is_known_to_have_ended(
    ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowshare.processes.runs", {(7, 70): not ended}.__getitem__)
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("aab"))
        m, n = w.member("m", own=True), w.member("n", own=True)
        for member in (m, n):
            await member.heartbeat("t", epoch=0)
        await m.fetch(at)
        m.connection.process = (7, 70)
        await m.connection.close()
        await w.clock.advance(0.2)
        soon = taken(await n.fetch(at))
        await w.clock.advance(5)
        later = taken(await n.fetch(at))

    assert (soon, later) == (([(0, 0, 2), (2, 2, 2)], []) if ended else ([], []))


async def test_a_session_that_is_closed_gives_its_heads_back_at_once() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("aab"))
        m, n = w.member("m"), w.member("n")
        await m.fetch(at)
        await m.acknowledge({}, epoch=-1)

        assert ranges(await n.fetch(at)) == [(0, 0, 2), (2, 2, 2)]


@pytest.mark.parametrize("how", ["restart", "die"])
async def test_a_new_leader_learns_the_keys_again_and_hands_out_nothing_out_of_turn(how: str) -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("aabcb"))
        m = w.member("m")
        await m.fetch(at)
        await m.acknowledge({at: [accept(2)]})
        await getattr(w, how)()
        first = taken(await w.member("n").fetch(at))
        await w.clock.advance(31)
        later = taken(await w.member("o").fetch(at))

    assert (first, later) == ([(4, 4, 1)], [(0, 0, 2), (3, 4, 2)])


@pytest.mark.parametrize("how", ["restart", "die"])
async def test_a_new_leader_hands_out_what_came_back_however_few_keys_are_asked_for(how: str) -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("abcd"))
        m = w.member("m")
        await m.fetch(at)
        await m.acknowledge({at: [release(0, 3)]})
        await getattr(w, how)()
        found = [taken(await w.member(name).fetch(at, heads=1)) for name in "abcd"]

    assert found == [[(0, 0, 2)], [(1, 1, 2)], [(2, 2, 2)], [(3, 3, 2)]]


def fences(answer) -> list[tuple[int, int]]:
    """Of each record in an answer."""
    found = []
    for part in answer.partitions:
        generation, serial = part.fence
        first = part.acquired[0].first
        found += [(generation, serial + at - first) for low, high, _ in part.acquired for at in range(low, high + 1)]
    return found


@pytest.mark.parametrize("how", ["restart", "die"])
async def test_fences_rise_with_every_delivery_and_every_leader(how: str) -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("aabcb"))
        m = w.member("m")
        told = fences(await m.fetch(at))
        await m.acknowledge({at: [accept(0), release(2, 2)]})
        told += fences(await m.fetch(at))
        await m.acknowledge({at: [release(0, 4)]}, epoch=-1)
        await getattr(w, how)()
        await w.clock.advance(31)
        told += fences(await w.member("n").fetch(at))

    assert len(told) == 8
    assert told == sorted(set(told))


async def test_fences_rise_over_a_reset_even_when_the_clock_is_set_back() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("a"))
        m = w.member("m")
        before = fences(await m.fetch(at))
        await m.acknowledge({}, epoch=-1)
        w.clock.set_wall(-86_400)
        await w.admin.send(AlterShareGroupOffsetsRequest(group_id="g", offsets={("t", 0): 0}))
        after = fences(await w.member("n").fetch(at))

    assert before < after


async def test_a_fetch_says_how_long_it_had_waited_when_its_locks_began() -> None:
    """A member that stood still reads the answer late; its locks are as old as they are."""
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("a"))
        m = w.member("m")
        at_once = await m.fetch(at)
        waiting = await parked(m.fetch(max_wait_ms=60_000))
        await w.clock.advance(2)
        await w.produce(keyed("b"))
        waited = await waiting

    assert [part.locked_after_ms for part in at_once.partitions] == [0]
    assert [part.locked_after_ms for part in waited.partitions] == [2_000]


async def test_acknowledgements_of_deliveries_that_are_no_more_are_refused_and_the_others_hold() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("abcd"))
        m = w.member("m")
        await m.fetch(at)
        await m.acknowledge({at: [release(1, 1)]})
        again = ranges(await w.member("n").fetch(at))
        said = [AckRange(one, one, b"\x01", attempt=1) for one in range(3)]
        (told,) = (await m.acknowledge({at: said})).partitions
        (rode,) = (await m.fetch(acks={at: [AckRange(one, one, b"\x01", attempt=1) for one in (1, 3)]})).partitions
        await m.acknowledge({}, epoch=-1)
        left = ranges(await w.member("o").fetch(at))

    assert again == [(1, 1, 2)]
    assert (told.error, told.refused) == (ErrorCode.NONE, ((1, 1),))
    assert told.message is not None
    assert "another member" in told.message
    assert (rode.ack_error, rode.ack_refused) == (ErrorCode.NONE, ((1, 1),))
    assert left == []


async def test_a_group_without_an_order_has_no_fence() -> None:
    async with world(configs=EARLIEST) as w:
        at = await w.log(keyed("a"))
        answer = await w.member("m").fetch(at)

    assert [(part.fence, part.locked_after_ms) for part in answer.partitions] == [(None, None)]


async def test_what_members_in_the_process_of_a_server_that_died_held_is_free_at_once() -> None:
    """Their handlers ended with it: nothing is waited for. One that lives elsewhere may still be at work."""
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("ab"))
        inside, outside = w.member("inside"), w.member("outside")
        inside.connection = w.server.connect(client_id="inside")
        for member in (inside, outside):
            await member.heartbeat("t", epoch=0)
            await member.fetch(at, heads=1)
        await w.die()
        n = w.member("n")
        first = taken(await n.fetch(at))
        await n.acknowledge({at: [accept(0)]})
        await w.clock.advance(31)
        later = taken(await n.fetch(at))

    assert (first, later) == ([(0, 0, 2)], [(1, 1, 2)])


async def test_what_an_answer_has_no_room_for_goes_back_and_costs_no_delivery() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("ab"))
        await w.produce(keyed("cd"))
        m = w.member("m")
        first = await m.fetch(at, max_bytes=80)
        second = await m.fetch()

    assert (ranges(first), ranges(second)) == ([(0, 1, 1)], [(2, 3, 1)])


async def test_a_group_with_an_order_gives_no_ranges_without_their_records() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("ab"))
        answer = await w.member("m").fetch(at, max_bytes=0)

    (partition,) = answer.partitions
    assert partition.error is ErrorCode.INVALID_REQUEST
    assert "share.key.order" in partition.message


async def test_the_order_does_not_change_while_records_are_held_or_members_are_there() -> None:
    async with world() as w:
        at, m = await w.held(keyed("aa"), joined=True)
        held = await w.configure({"share.key.order": "key"})
        await m.acknowledge({at: [release(0, 1)]}, epoch=-1)
        joined = await w.configure({"share.key.order": "key"})
        same = await w.configure({"share.key.order": ""})
        await m.heartbeat(epoch=-1)
        free = await w.configure({"share.key.order": "key"})
        answer = await w.member("n").fetch(at)

    assert [one.error for one in (held, joined)] == [ErrorCode.NON_EMPTY_GROUP] * 2
    assert "stop all its workers" in held.message
    assert [one.error for one in (same, free)] == [ErrorCode.NONE] * 2
    assert ranges(answer) == [(0, 0, 2)]


async def test_nobody_joins_a_group_while_its_order_changes() -> None:
    async with world() as w:
        at = await w.log(keyed("aa"))
        write, confirmed = w.storage.write, asyncio.Event()

        async def slow(writes) -> None:  # the first write, that of the settings
            del w.storage.write
            await confirmed.wait()
            await write(writes)

        w.storage.write = slow
        changing = await parked(w.configure({"share.key.order": "key"}))
        early = await w.member("m").heartbeat("t")
        confirmed.set()
        changed = await changing
        m = w.member("m")
        later = await m.heartbeat("t")
        answer = await m.fetch(at)

    assert (early.error, changed.error, later.error) == (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NONE,
        ErrorCode.NONE,
    )
    assert "share.key.order" in early.message
    assert ranges(answer) == [(0, 0, 1)]


async def test_members_join_again_when_a_group_s_order_could_not_be_changed() -> None:
    async with world() as w:
        _, m = await w.held(keyed("aa"))
        refused = await w.configure({"share.key.order": "key"})
        joined = await m.heartbeat("t")

    assert (refused.error, joined.error) == (ErrorCode.NON_EMPTY_GROUP, ErrorCode.NONE)


async def test_the_offsets_of_a_group_tell_of_what_waits_and_for_what() -> None:
    async with world(configs=BY_KEY) as w:
        _, m = await w.held(keyed("aabaa"), joined=True)
        (told,) = (await w.admin.send(DescribeShareGroupOffsetsRequest(group_id="g"))).partitions

    assert (told.in_flight, told.blocked) == (2, 3)
    assert [tuple(one) for one in told.stuck] == [(0, 3, "HELD", 1, m.member_id)]


async def test_who_watches_learns_which_keys_are_stuck_though_nothing_else_changes_any_more() -> None:
    """Which they are is found out every two seconds only, so that it is known later than how many records wait."""
    async with world(configs=BY_KEY) as w:
        at, m = await w.held(keyed("aab"), joined=True)
        first = await w.admin.send(ShareChangesRequest())
        await w.produce(keyed("aaa"))
        await m.fetch(at)
        await w.clock.advance(1.0)
        soon = await w.admin.send(ShareChangesRequest(server=first.server, since=first.version))
        await w.clock.advance(2.0)
        later = await w.admin.send(ShareChangesRequest(server=first.server, since=soon.version))

    assert [row.blocked for row in soon.rows] == [4]
    assert [[(one.offset, one.blocked) for one in row.stuck] for row in later.rows] == [[(0, 4)]]


async def test_a_window_that_is_nearly_full_is_told_with_the_offsets_that_hold_it_open(caplog) -> None:
    async with world(configs={**BY_KEY, "share.partition.max.window": "100"}) as w:
        at = await w.log(keyed("a" * 30))
        m = w.member("m")
        await m.fetch(at)
        for _ in range(7):
            await w.clock.advance(3)
            await w.produce(keyed("a" * 9 + "b"))
            await m.fetch(at)

    told = [record.message for record in caplog.records if "of the window" in record.message]
    assert len(told) == 1
    assert "Most wait for the offsets 0 (" in told[0]
    assert "held" in told[0]


async def test_what_retention_takes_away_holds_up_nothing() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("aab"))
        await w.produce(keyed("ab"))
        await w.storage.delete_records("t", 0, 3)
        answer = await w.member("m").fetch(at)

    assert ranges(answer) == [(3, 4, 1)]


async def test_what_could_not_be_read_is_free_again_and_costs_no_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise StorageError("a sector is gone")

    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("aab"))
        with monkeypatch.context() as broken:
            broken.setattr(OpenedLog, "records", fail)
            failed = await w.member("m").fetch(at)
        answer = await w.member("n").fetch(at)

    assert failed.partitions[0].error is ErrorCode.KAFKA_STORAGE_ERROR
    assert ranges(answer) == [(0, 0, 1), (2, 2, 1)]


async def test_what_is_read_for_a_member_that_is_gone_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, gate, read = asyncio.Event(), asyncio.Event(), OpenedLog.records

    async def wait(*args: object, **more: object) -> Thinned:
        reading.set()
        await gate.wait()
        return await read(*args, **more)  # type: ignore[arg-type]

    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("aab"))
        m = w.member("m")
        with monkeypatch.context() as slow:
            slow.setattr(OpenedLog, "records", wait)
            fetching = asyncio.ensure_future(m.fetch(at, max_wait_ms=60_000))
            await reading.wait()
            await m.connection.close()
            gate.set()
            await asyncio.wait([fetching])
        answer = await w.member("n").fetch(at)

    assert ranges(answer) == [(0, 0, 1), (2, 2, 1)]


async def test_a_head_leaves_when_what_came_before_it_is_durable_though_acquires_need_not_be() -> None:
    gate = asyncio.Event()

    async def hold(*_: object) -> None:
        await gate.wait()

    async with world(config=ServerConfig.embedded({"share.acquire.durable": "false"}), configs=BY_KEY) as w:
        at = await w.log(keyed("ab"))
        m = w.member("m")
        await m.fetch(at, max_records=1)
        w.storage.before_write = hold
        waiting = await parked(m.fetch())
        gate.set()

        assert ranges(await waiting) == [(1, 1, 1)]


# --- picked, and not confirmed ------------------------------------------------------------------------------------


def owner_of(w, partition=0):
    return next(one for one in w.server.share.partitions.owners() if one.key.partition == partition)


async def test_a_record_that_is_being_read_when_its_members_session_ends_counts_no_delivery(monkeypatch) -> None:
    """It was never seen: at the limit of deliveries it would be finished without its last one."""
    gate, real = asyncio.Event(), OpenedLog.records

    async def slow(self, *args, **more):
        await gate.wait()
        return await real(self, *args, **more)

    async with world(configs={**BY_KEY, "share.delivery.count.limit": "2"}) as w:
        at = await w.log(keyed("ab"))
        m = w.member("m")
        await m.fetch(at)
        await m.acknowledge({at: [release(0, 1)]})
        monkeypatch.setattr(OpenedLog, "records", slow)
        reading = asyncio.ensure_future(m.fetch(max_wait_ms=1_000))
        await settle()
        await m.acknowledge({}, epoch=-1)
        gate.set()

        assert taken(await reading) == []
        assert ranges(await w.member("n").fetch(at)) == [(0, 1, 2)]


async def test_a_fetch_reads_on_for_the_keys_that_it_wants_and_no_further(monkeypatch) -> None:
    reads, real = [], OpenedLog.keys

    async def keys(self, *args, **more):
        reads.append(args)
        return await real(self, *args, **more)

    def batch() -> bytes:
        builder = BatchBuilder()
        for number in range(500):
            builder.add(b"ab"[number % 2 :][:1], b"x" * 1_000, [], timestamp_ms=1_000)
        return builder.build()

    async with world(configs=BY_KEY) as w:
        at = await w.log(batch())
        for _ in range(5):
            await w.produce(batch())
        monkeypatch.setattr(OpenedLog, "keys", keys)
        m = w.member("m")
        first = await m.fetch(at, heads=2, max_records=2)
        await m.acknowledge({at: [accept(0, 1)]})
        second = await m.fetch(heads=2, max_records=2)

    assert (ranges(first), ranges(second)) == ([(0, 1, 1)], [(2, 3, 1)])
    assert len(reads) <= 1


async def test_members_that_wait_are_woken_together_when_there_is_a_key_for_each() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("x"))
        await w.member("h").fetch(at)
        waiting = [await parked(w.member(f"m{n}").fetch(at, max_wait_ms=60_000, max_records=1)) for n in range(20)]
        writes: list[int] = []

        async def count() -> None:
            writes.append(sum(one.done() for one in waiting))

        w.storage.before_write = count
        await w.produce(keyed("abcdefghijklmnopqrst"))
        await settle()

        assert all(one.done() for one in waiting)
        assert len(writes) <= 4


async def test_who_is_first_by_the_groups_limit_gets_the_key_though_another_holds_nothing_there() -> None:
    async with world(configs={**BY_KEY, "share.max.in.flight": "5"}) as w:
        t0, t1 = await w.logs(keyed("ab"), keyed("defghi"))
        r, p = w.member("r"), w.member("p")
        await r.fetch(t0, max_records=1, heads=1)
        await p.fetch(t1, max_records=4, heads=4)
        first = await parked(r.fetch(max_wait_ms=60_000, max_records=1, heads=1))
        other = await parked(p.fetch(t0, max_wait_ms=60_000, max_records=1, heads=1))
        await p.acknowledge({t1: [accept(0)]})
        await settle()

        assert first.done()
        assert not other.done()


async def test_a_fetch_that_waits_for_a_write_elsewhere_keeps_no_key_from_who_waits_here() -> None:
    gate = asyncio.Event()

    class Slow:
        async def write(self, writes):
            await gate.wait()
            return await w.storage.write(writes)

    async with world(configs=BY_KEY) as w:
        t0, t1 = await w.logs(keyed("x"), keyed("y"))
        h, m, p = (w.member(name) for name in "hmp")
        await h.fetch(t0, t1)
        both = await parked(m.fetch(t0, t1, max_wait_ms=60_000, heads=1))
        one = await parked(p.fetch(t0, max_wait_ms=60_000, heads=1))
        owner_of(w, 1)._writer._store = Slow()
        await w.produce(keyed("b"), partition=1)
        await settle()
        await w.produce(keyed("a"), partition=0)
        await settle()

        assert one.done()
        gate.set()
        assert taken(await both) == [(1, 1, 1)]


async def test_what_is_on_its_way_to_the_store_when_the_connection_ends_is_free_when_it_is_there() -> None:
    gate = asyncio.Event()

    async def hold() -> None:
        await gate.wait()

    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("ab"))
        await w.member("h").fetch(at, max_records=1)
        m = w.member("m", own=True)
        w.storage.before_write = hold
        lost = asyncio.ensure_future(m.fetch(at))
        await settle()
        await m.connection.close()
        gate.set()
        with pytest.raises(ConnectionError):
            await lost
        await settle()

        assert ranges(await w.member("n").fetch(at)) == [(1, 1, 1)]


async def test_a_load_that_fails_leaves_none_of_the_others_in_line(monkeypatch) -> None:
    gate, real = asyncio.Event(), Partitions._load

    async def load(self, key):
        if key.partition == 1:
            raise RuntimeError("a fault")
        await gate.wait()
        return await real(self, key)

    async with world(configs=BY_KEY) as w:
        t0, t1 = await w.logs(keyed("ab"), keyed("c"))
        monkeypatch.setattr(Partitions, "_load", load)
        failing = asyncio.ensure_future(w.member("m").fetch(t0, t1, max_wait_ms=60_000))
        await settle()
        gate.set()
        with pytest.raises(ConnectionError):
            await failing
        r = w.member("r")

        assert ranges(await r.fetch(t0, heads=1, max_records=1)) == [(0, 0, 1)]
        assert ranges(await r.fetch(heads=1, max_records=1)) == [(1, 1, 1)]


async def test_who_leaves_a_key_to_one_that_waits_wakes_it() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("ab"))
        m = w.member("m")
        await m.fetch(at, max_records=1)
        partition = owner_of(w).partition
        picked = partition.pick("x", records_max=1, now_ms=w.clock.steady_ms())
        waiting = await parked(w.member("n").fetch(at, max_wait_ms=60_000))
        partition.put_back(picked)  # and nobody is told
        assert taken(await m.fetch()) == []
        await settle()

        assert ranges(await waiting) == [(1, 1, 1)]


async def test_records_of_batches_that_were_not_kept_are_delivered_all_the_same() -> None:
    """Tiny batches with much in them: one read brings more than is kept of what was opened."""
    async with world(configs=BY_KEY) as w:
        at = await w.log(large(0))
        for number in range(1, 40):
            await w.produce(large(number))
        m = w.member("m")
        await m.fetch(at, max_records=1)
        w.server.share.partitions.owners("g")[0]._ordered._opened._batches = OpenedBatches(1 << 20)
        owner = w.server.share.partitions.owners("g")[0]
        got = taken(await m.fetch(max_records=500, max_bytes=16 << 20, heads=500))
        while len(got) < 39 and (more := taken(await m.fetch(max_records=500, max_bytes=16 << 20, heads=500))):
            got += more

    assert sum(last - first + 1 for first, last, _ in got) == 39
    assert owner.partition.start_offset == 0


def large(number: int) -> bytes:
    """A batch of a hundred bytes whose record has half a megabyte."""
    builder = BatchBuilder(compression="gzip", size_max=1 << 20)
    builder.add(b"k%d" % number, bytes(500_000), [], timestamp_ms=1_000)
    return builder.build()


async def test_learning_keys_opens_so_many_bytes_at_once_however_well_they_are_compressed() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(large(0))
        for number in range(1, 100):
            await w.produce(large(number))
        await w.member("m").fetch(at, max_records=1)
        opened = w.server.share.partitions.owners("g")[0]._ordered._opened
        batches, _ = await opened.keys(0)

    assert 1 <= len(batches) * 500_000 <= OPENED_BYTES + 500_000


async def test_a_batch_of_very_many_records_is_opened_once_and_its_keys_are_learnt_a_part_at_a_time(
    monkeypatch,
) -> None:
    monkeypatch.setattr(opened_log, "PLACE_RECORDS", 4)
    monkeypatch.setattr(thinning, "STEP_RECORDS", 3)
    monkeypatch.setattr(opened_log, "STEP_RECORDS", 3)
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("ab"))
        await w.produce(keyed("aabbccddeef"))
        await w.produce(keyed("gg"))
        m = w.member("m")
        await m.fetch(at, max_records=1)
        opened = w.server.share.partitions.owners("g")[0]._ordered._opened
        opened.forget()
        rounds, begun = 0, asyncio.ensure_future(opened.keys(3))
        while not begun.done():
            await asyncio.sleep(0)
            rounds += 1
        learnt, offset = [], 2
        while offset < 15:
            batches, _ = await opened.keys(offset)
            assert batches[0].first == offset
            assert sum(len(one.offsets) for one in batches) <= 6
            learnt += [at for one in batches for at in one.offsets]
            offset = batches[-1].last + 1
        handed = taken(await m.fetch(at, heads=500))

    assert rounds > 8  # four to read it, four to find where its records lie, four for their keys
    assert learnt == list(range(2, 15))
    assert [(first, last) for first, last, _ in handed] == [(1, 1), (6, 6), (8, 8), (10, 10), (12, 13)]


async def test_what_is_still_being_read_for_a_member_that_comes_back_goes_to_one_other_only(monkeypatch) -> None:
    gate, slow = asyncio.Event(), [True]
    read = OpenedLog.records

    async def records(self, *args, **fields):
        if slow:
            slow.clear()
            await gate.wait()
        return await read(self, *args, **fields)

    monkeypatch.setattr(OpenedLog, "records", records)
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("a"))
        m, n, o = (w.member(name, own=True) for name in "mno")
        for one in (m, n, o):
            await one.heartbeat("t", epoch=0)
        lost = await parked(m.fetch(at, max_wait_ms=60_000, heads=5))
        closing = asyncio.ensure_future(m.connection.close())
        await settle()
        m.reconnect()
        writes = asyncio.Event()
        w.storage.before_write = writes.wait
        told = HeldRanges(*at, ())
        await m.connection.send(ShareResumeRequest(group_id="g", member_id="m", partitions=(told,)))
        gate.set()
        await settle()
        fetches = [asyncio.ensure_future(one.fetch(at, max_wait_ms=60_000, heads=5)) for one in (n, o)]
        await settle()
        w.storage.before_write = None
        writes.set()
        await settle()
        got = [ranges(fetch.result()) for fetch in fetches if fetch.done()]
        await closing
        for fetch in (lost, *fetches):
            fetch.cancel()
        await asyncio.gather(lost, *fetches, return_exceptions=True)

    assert got == [[(0, 0, 1)]]


async def test_a_fetch_that_waits_for_the_load_of_another_partition_keeps_no_key_from_others(monkeypatch) -> None:
    gate = asyncio.Event()
    load = Loader.load

    async def slowly(self, key, topic, *args, **fields):
        if topic.name == "u":
            await gate.wait()
        return await load(self, key, topic, *args, **fields)

    monkeypatch.setattr(Loader, "load", slowly)
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("ab"))
        other = TopicPartition(await w.topic("u"), 0)
        m, n = w.member("m"), w.member("n")
        assert taken(await m.fetch(at, max_records=1)) == [(0, 0, 1)]
        loading = await parked(n.fetch(at, other, max_wait_ms=60_000))
        assert taken(await m.fetch(max_records=1)) == [(1, 1, 1)]
        gate.set()
        await settle()
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)


@pytest.mark.parametrize("ends", ["connection", "session"])
async def test_who_ends_while_its_acknowledgements_are_written_is_given_nothing(ends: str) -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("aab"))
        m, n = w.member("m"), w.member("n")
        await m.fetch(at, max_records=1)
        gate = asyncio.Event()
        w.storage.before_write = gate.wait
        fetch = await parked(m.fetch(acks={at: [accept(0)]}))
        closing = asyncio.ensure_future(m.connection.close() if ends == "connection" else m.acknowledge({}, epoch=-1))
        await settle()
        w.storage.before_write = None
        gate.set()
        await asyncio.gather(closing, fetch, return_exceptions=ends == "connection")
        assert taken(await n.fetch(at)) == [(1, 2, 1)]


async def test_what_cannot_be_read_for_a_while_is_not_taken_for_gone() -> None:
    """So a log of Kafka's answers whose new leader knows less than the old one did."""
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("a"))
        for key in "bcd":
            await w.produce(keyed(key))
        m = w.member("m")
        assert taken(await m.fetch(at, max_records=1)) == [(0, 0, 1)]
        owner = w.server.share.partitions.owners("g")[0]
        owner._ordered._opened.forget()
        read = w.storage.read

        async def less(topic, partition, offset, **fields):
            found = await read(topic, partition, offset, **fields)
            return replace(found, pieces=[], batches=()) if offset else found

        w.storage.read = less
        assert taken(await m.fetch(heads=10)) == []
        assert taken(await m.fetch(heads=10)) == []
        w.storage.read = read
        assert taken(await m.fetch(heads=10)) == [(1, 3, 1)]
        assert owner.partition.start_offset == 0


async def test_keys_are_learnt_anew_when_other_records_count() -> None:
    async with world(configs=BY_KEY) as w:
        topic = await w.topic()
        at = TopicPartition(topic, 0)
        await w.produce(keyed("a"))
        writer = Writer(w)
        await writer.init()
        await writer.add(0)
        await writer.write(3)
        assert taken(await w.member("m").fetch(at, max_records=1)) == [(0, 0, 1)]
        assert (await w.configure({"share.isolation.level": "read_committed"})).error is ErrorCode.NONE
        await settle()
        n = w.member("n")
        assert taken(await n.fetch(at)) == []
        await writer.end(committed=True)
        await settle()
        assert [first for first, _, _ in taken(await n.fetch(at))][:1] == [1]


async def test_what_is_free_is_handed_out_though_the_log_behind_it_cannot_be_read() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("ab"))
        await w.produce(keyed("cd"))
        read = w.storage.read

        async def damaged(topic, partition, offset, **fields):
            if offset >= 2:
                raise CorruptBatches("the batch at offset 2 is damaged")
            return await read(topic, partition, offset, **{**fields, "max_bytes": 1})

        w.storage.read = damaged
        m = w.member("m")
        assert taken(await m.fetch(at)) == [(0, 1, 1)]
        (part,) = (await m.fetch()).partitions
        assert part.error is ErrorCode.CORRUPT_MESSAGE


async def test_what_was_picked_up_to_a_place_that_cannot_be_read_is_handed_out() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("ab"))
        await w.produce(keyed("cd"))
        m = w.member("m")
        assert taken(await m.fetch(at, max_records=1)) == [(0, 0, 1)]
        owner = w.server.share.partitions.owners("g")[0]
        await m.fetch(max_records=1)
        await m.acknowledge({at: [release(1)]})
        owner._ordered._opened.forget()
        read = w.storage.read

        async def damaged(topic, partition, offset, **fields):
            if offset >= 2:
                raise CorruptBatches("the batch at offset 2 is damaged")
            return await read(topic, partition, offset, **{**fields, "max_bytes": 1})

        w.storage.read = damaged
        assert taken(await m.fetch(heads=10)) == [(1, 1, 2)]
        w.storage.read = read
        assert taken(await m.fetch(heads=10)) == [(2, 3, 1)]


async def test_a_fetch_that_reads_one_partition_keeps_no_key_of_another_from_others() -> None:
    async with world(configs=BY_KEY) as w:
        first, second = await w.logs(keyed("a"), keyed("xy"))
        m, n = w.member("m"), w.member("n")
        assert taken(await m.fetch(second, max_records=1)) == [(0, 0, 1)]
        gate = asyncio.Event()
        read = w.storage.read

        async def slowly(topic, partition, offset, **fields):
            if partition == 0:
                await gate.wait()
            return await read(topic, partition, offset, **fields)

        w.storage.read = slowly
        reading = await parked(n.fetch(first, second, max_wait_ms=500))
        assert taken(await m.fetch()) == [(1, 1, 1)]
        gate.set()
        assert taken(await reading) == [(0, 0, 1)]


async def test_a_fenced_member_keeps_its_keys_for_the_locks_time() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("aa"))
        m, n = w.member("m", own=True), w.member("n", own=True)
        await m.heartbeat("t", epoch=0)
        first = m.member_epoch
        for name in ("n", "o"):
            await w.member(name).heartbeat("t", epoch=0)
            await w.clock.advance(2)
            await m.heartbeat()
        assert taken(await m.fetch(at)) == [(0, 0, 1)]
        late = await m.heartbeat(epoch=first)
        assert late.error is ErrorCode.FENCED_MEMBER_EPOCH
        assert taken(await n.fetch(at)) == []
        await w.clock.advance(31)
        assert taken(await n.fetch()) == [(0, 0, 2)]


async def test_placing_a_long_backlog_of_one_key_gives_others_their_turn() -> None:
    async with world(configs=BY_KEY) as w:
        builder = BatchBuilder(size_max=2 << 20)
        for _ in range(1_000):
            builder.add(b"hot", bytes(900), timestamp_ms=1_000)
        at = await w.log(builder.build())
        for _ in range(9):
            await w.produce(builder.build())
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        running = asyncio.ensure_future(others())
        await w.member("m").fetch(at, heads=10)
        running.cancel()

    assert turns >= 12


async def test_who_found_nothing_at_one_partition_is_woken_at_the_others() -> None:
    async with world(configs=BY_KEY) as w:
        topic = await w.topic(partitions=2)
        first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
        m, n = w.member("m"), w.member("n")
        await w.produce(keyed("a"))
        assert taken(await m.fetch(first, second)) == [(0, 0, 1)]
        waiting = await parked(n.fetch(first, second, max_wait_ms=60_000))
        await w.produce(keyed("a"))
        await settle()
        await w.produce(keyed("b"), partition=1)
        assert taken(await waiting) == [(0, 0, 1)]


async def test_a_fenced_member_without_an_order_gives_back_all_and_is_not_taken_for_dead() -> None:
    async with world() as w:
        at, m = await w.log(20), w.member("m")
        await m.heartbeat("t")
        await m.fetch(at)
        await m.acknowledge({at: [release(0, 19)]})
        await m.fetch(at)
        assert (await m.heartbeat("t", epoch=m.member_epoch + 7)).error is ErrorCode.FENCED_MEMBER_EPOCH
        n = w.member("n")
        await n.heartbeat("t")
        assert taken(await n.fetch(at)) == [(0, 19, 3)]
        assert (await m.fetch()).error is ErrorCode.NONE
