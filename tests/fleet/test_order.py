"""Groups with an order by key on a fleet: records in turn over leaders, and what adding partitions does to it."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.client.errors import ServerError
from flowshare.client.session.share_session import Plan
from flowshare.protocol.batches import BatchBuilder, decode_all
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.private import REPLAY_HEADER
from flowshare.share.parking import Mark
from flowshare.share.types import AcknowledgeType, AckRange, AcquireMode
from tests.fleet.test_worker import accept, virtually
from tests.fleet.world import EARLIEST, Fleet

BY_KEY = {**EARLIEST, "share.key.order": "key"}
PARKS = {**BY_KEY, "share.key.after.dead.letter": "park"}
RELEASE = bytes([AcknowledgeType.RELEASE])
ACCEPT = bytes([AcknowledgeType.ACCEPT])
REJECT = bytes([AcknowledgeType.REJECT])
HEADS = Plan(100, 100, 0.5, 1 << 20, AcquireMode.BATCH_OPTIMIZED, heads=100)


async def produce(fleet: Fleet, keys: str) -> None:
    builder = BatchBuilder()
    for number, key in enumerate(keys):
        builder.add(key.encode(), b"%d" % number, [], timestamp_ms=1_000)
    await fleet.kafka.storage.append("orders", 0, builder.build())


def test_heads_are_handed_out_in_turn_over_a_leader_that_dies():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            await fleet.topic("orders")
            await fleet.configure(**BY_KEY)
            await produce(fleet, "abacabda")
            member = fleet.member("orders")
            await member.start()
            handled: dict[bytes, list[int]] = {}
            rounds = 0
            async with asyncio.timeout(600):
                while sum(map(len, handled.values())) < 8:
                    fetched = await member.fetch(records_max=100, max_wait_s=0.5)
                    records = [record for one in fetched for record in decode_all(one.records)]
                    assert len({record.key for record in records}) == len(records)  # heads only
                    rounds += bool(records)
                    if rounds == 1 and records:
                        [one] = fetched
                        acks = [AckRange(run.first, run.last, RELEASE) for run in one.acquired]
                        await member.acknowledge({one.tp: acks}, generation=one.generation)
                        await fleet.leader("orders", 0).kill()
                        await fleet.settled()
                        rounds += 1
                        continue
                    for record in records:
                        handled.setdefault(record.key, []).append(record.offset)
                    await accept(member, fetched)

            assert handled == {b"a": [0, 2, 4, 7], b"b": [1, 5], b"c": [3], b"d": [6]}

    virtually(scenario)


async def parking(fleet: Fleet, keys: str, *topics: str):
    """A member of a group that parks, with records of these keys before it."""
    for topic in ("orders", *topics):
        await fleet.topic(topic)
    await fleet.configure(**PARKS)
    await produce(fleet, keys)
    member = fleet.member("orders", *topics)
    await member.start()
    return member


async def fetched(member):
    """Return the member's next fetched records."""
    async with asyncio.timeout(60):
        while True:
            member.ask(HEADS)
            for one in await member.fetched():
                if one.acquired:
                    return one


async def acknowledged(member, held, batch: AckRange, clock) -> None:
    """Acknowledge part of what was fetched, until a leader has taken it."""
    async with asyncio.timeout(60):
        while True:
            results = await member.acknowledge({held.tp: [batch]}, generation=held.generation)
            if results and all(one.error is ErrorCode.NONE for one in results):
                return
            await clock.sleep(1)


async def settle_next(member, *, fails: set[int] = frozenset()) -> dict[int, bool]:
    """Settle the records of the next fetch; return offset -> True if the record follows a parked key. Those records and
    `fails` become dead letters."""
    member.ask(HEADS)
    brought: dict[int, bool] = {}
    for one in await member.fetched():
        following = {offset for offset, _ in one.following}
        offsets = [offset for run in one.acquired for offset in range(run.first, run.last + 1)]
        brought.update((offset, offset in following) for offset in offsets)
        types = {offset: REJECT if offset in following | fails else ACCEPT for offset in offsets}
        acks = [AckRange(offset, offset, kind) for offset, kind in types.items()]
        for result in await member.acknowledge({one.tp: acks}, generation=one.generation):
            assert result.error is ErrorCode.NONE, result
    return brought


async def settle_all(member, count: int, *, fails: set[int] = frozenset()) -> dict[int, bool]:
    """As `settle_next`, until there were so many."""
    brought: dict[int, bool] = {}
    async with asyncio.timeout(120):
        while len(brought) < count:
            brought |= await settle_next(member, fails=fails)
    return brought


def test_keys_stay_parked_through_a_rolling_upgrade_and_a_replay_ends_behind_it():
    async def scenario(clock):
        async with Fleet(clock, workers=3) as fleet:
            member = await parking(fleet, "aabab")
            first = await settle_all(member, 5, fails={0})
            assert {offset for offset, follows in first.items() if follows} == {1, 3}

            admin = fleet.admin()
            leaders = set()
            for machine in list(fleet.machines):
                leaders.add(fleet.leader("orders", 0).number)
                await fleet.add()
                await machine.stop()
                await fleet.settled()
                [told] = (await admin.parked_keys("g")).keys
                assert (told.key, told.parked.first) == (b"a", 0)
                await produce(fleet, "ab")
                more = await settle_all(member, 2)
                assert sorted(more.values()) == [False, True]
            leaders.add(fleet.leader("orders", 0).number)
            assert len(leaders) > 1

            told = await admin.change_parked_key("g", "replay", "orders", 0, b"a")
            assert told is not None
            letters = [0, 1, 3, *(offset for offset in range(5, 11) if offset % 2)]
            builder = BatchBuilder()
            for at, original in enumerate(letters):
                after = ([-1, *letters])[at]
                mark = Mark(told.parked.version, original, original, after).encode("g", told.topic_id, 0)
                builder.add(b"a", b"again %d" % at, [(REPLAY_HEADER, mark)], timestamp_ms=1_000)
            await fleet.kafka.storage.append("orders", 0, builder.build())
            again = await settle_all(member, len(letters))
            assert list(again) == sorted(again)
            assert not any(again.values())
            assert (await admin.parked_keys("g")).keys == ()
            await admin.close()

    virtually(scenario)


def test_many_long_keys_that_are_parked_at_once_are_stored(monkeypatch):
    monkeypatch.setattr("flowshare.fleet.state.writing.WRITE_BYTES_MAX", 1 << 20)

    async def scenario(clock):
        async with Fleet(clock, workers=1) as fleet:
            await fleet.topic("orders")
            await fleet.configure(**PARKS)
            for number in range(75):
                builder = BatchBuilder()
                builder.add(b"%03d" % number + b"k" * 16_000, b"v", [], timestamp_ms=1_000)
                await fleet.kafka.storage.append("orders", 0, builder.build())
            member = fleet.member("orders")
            await member.start()
            held = []
            acks: list[AckRange] = []
            async with asyncio.timeout(100):
                while sum(ack.last - ack.first + 1 for ack in acks) < 75:
                    member.ask(HEADS)
                    held += await member.fetched()
                    acks = [AckRange(run.first, run.last, REJECT) for one in held for run in one.acquired]
            await member.acknowledge({held[0].tp: acks}, generation=held[0].generation)

            admin = fleet.admin()
            assert len((await admin.parked_keys("g")).keys) == 75
            assert fleet.machines[0].worker._service.stats.failed_state_writes == 0
            await admin.close()

    virtually(scenario)


def test_parked_keys_of_a_topic_that_workers_do_not_know_yet_are_told():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            member = await parking(fleet, "aab")
            await settle_all(member, 3, fails={0})
            await member.close(timeout_s=1.0)
            for machine in fleet.machines:
                machine.worker._log._topics._known.clear()

            admin = fleet.admin()
            assert [one.key for one in (await admin.parked_keys("g")).keys] == [b"a"]
            await admin.close()

    virtually(scenario)


@pytest.mark.parametrize("moved", ["before it is let go on", "after that"])
def test_what_only_followed_a_parked_key_does_not_park_it_again_whoever_leads_by_then(moved: str):
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            member = await parking(fleet, "aa")
            await settle_all(member, 1, fails={0})
            held = await fetched(member)
            assert held.following == ((1, 0),)
            admin = fleet.admin()
            for step in ("move", "unpark") if moved == "before it is let go on" else ("unpark", "move"):
                if step == "move":
                    await fleet.leader("orders", 0).stop()
                    await fleet.settled()
                    await clock.sleep(3)
                else:
                    assert await admin.change_parked_key("g", "unpark", "orders", 0, b"a") is not None
            await acknowledged(member, held, AckRange(1, 1, REJECT, unrun=True), clock)
            await clock.sleep(5)

            assert (await admin.parked_keys("g")).keys == ()
            await admin.close()

    virtually(scenario)


def test_a_deleted_topic_hides_no_parked_keys_of_others():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            member = await parking(fleet, "aab", "old")
            await settle_all(member, 3, fails={0})
            await member.close(timeout_s=1.0)
            await fleet.kafka.storage.delete_topic("old")
            await clock.sleep(60)

            admin = fleet.admin()
            assert [one.key for one in (await admin.parked_keys("g")).keys] == [b"a"]
            assert await admin.change_parked_key("g", "unpark", "orders", 0, b"a") is not None
            await admin.alter_group_configs("g", {"share.key.order": "header:x"})
            await admin.close()

    virtually(scenario)


def test_a_topic_that_grows_is_warned_of_once_where_a_group_reads_it_in_order(caplog):
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            await fleet.topic("orders")
            await fleet.configure(**BY_KEY)
            await fleet.configure("free", **EARLIEST)
            for group in ("g", "free"):
                member = fleet.member("orders", group=group)
                await member.start()
                await member.fetch(records_max=1, max_wait_s=5)
            await fleet.kafka.storage.create_partitions("orders", 3)
            await clock.sleep(60)

    virtually(scenario)

    [told] = [record.getMessage() for record in caplog.records if "in the order of keys" in record.getMessage()]
    assert "topic orders has 3 partitions now (1 before), and group g reads it" in told


def test_the_order_of_a_fleets_group_does_not_change_while_it_has_members():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            await fleet.topic("orders")
            await fleet.configure(**BY_KEY)
            await fleet.member("orders").start()

            admin = fleet.admin()
            for other in ("header:customer", ""):
                with pytest.raises(ServerError, match="stop all its workers") as caught:
                    await admin.alter_group_configs("g", {"share.key.order": other})
                assert caught.value.code is ErrorCode.NON_EMPTY_GROUP
            await admin.close()

    virtually(scenario)


def pairs(*told: tuple[str, str]) -> bytes:
    """A batch of keys and values."""
    builder = BatchBuilder()
    for key, value in told:
        builder.add(key.encode(), value.encode(), [], timestamp_ms=1)
    return builder.build()


def test_a_log_that_is_cut_where_the_window_ends_is_read_anew_from_there():
    async def scenario(clock):
        async with Fleet(clock, workers=1) as fleet:
            await fleet.topic("orders")
            await fleet.configure(**BY_KEY, **{"share.partition.max.window": "100"})
            log = fleet.kafka.storage
            for first, last in ((0, 100), (100, 105), (105, 115)):
                await log.append("orders", 0, pairs(*((f"k{at}", f"old {at}") for at in range(first, last))))
            member = fleet.member("orders")
            await member.start()
            held = []
            while sum(len(decode_all(one.records)) for one in held) < 100:
                held += await member.fetch(records_max=100, max_wait_s=0.5)
            await fleet.kafka.lose("orders", 0, 100)
            for first, last in ((100, 108), (108, 116)):
                await log.append("orders", 0, pairs(*((f"n{at}", f"new {at}") for at in range(first, last))))
            await clock.sleep(3)
            await accept(member, held)
            got: dict[int, bytes] = {}
            async with asyncio.timeout(60):
                while len(got) < 16:
                    for one in await member.fetch(records_max=5, max_wait_s=0.5):
                        got.update((record.offset, record.value) for record in decode_all(one.records))
                        await accept(member, [one])

            assert got == {at: b"new %d" % at for at in range(100, 116)}

    virtually(scenario)


def test_what_was_picked_is_not_handed_out_from_a_log_that_may_have_been_cut_since():
    async def scenario(clock):
        async with Fleet(clock, workers=1) as fleet:
            await fleet.topic("orders")
            await fleet.configure(**BY_KEY)
            log = fleet.kafka.storage
            await log.append("orders", 0, pairs(("X", "x0")))
            await log.append("orders", 0, pairs(("Y", "old y1")))
            members = [fleet.member("orders", member_id=name) for name in ("m1", "m2")]
            await members[0].start()
            [first] = await members[0].fetch(records_max=1, max_wait_s=1.0)
            assert [run.first for run in first.acquired] == [0]
            partitions = fleet.machines[0].worker._service.partitions
            reads = fleet.kafka.epochs.fetch

            async def hears_late(send, request):
                if any(part.topic == "orders" for part in request.partitions) and request.max_wait_ms != 100:
                    await clock.sleep(3)  # what waits at the log's end
                return await reads(send, request)

            fleet.kafka.epochs.fetch = hears_late
            await fleet.kafka.lose("orders", 0, 1)
            await log.append("orders", 0, pairs(("X", "new x1")))
            for key in partitions._owners:
                partitions._opened_batches.forget(key)
            drop_read_ahead(fleet.machines[0].worker)
            await members[1].start()
            for _ in range(6):
                assert await members[1].fetch(records_max=1, max_wait_s=1.0) == []
            await accept(members[0], [first])
            async with asyncio.timeout(60):
                while not (found := await members[1].fetch(records_max=1, max_wait_s=1.0)):
                    pass
            assert [record.value for one in found for record in decode_all(one.records)] == [b"new x1"]

    virtually(scenario)


def drop_read_ahead(worker) -> None:
    """Nothing of the topics' logs is in memory any more, as when others need the room."""
    registry = worker._log._registry
    for follower in registry.by_place.values():
        for buffer in follower.buffers.values():
            for run_ in (buffer.tail, *buffer.cold):
                while run_ is not None and (size := run_.drop(given_only=False)):
                    registry.memory.size -= size
