"""Cooperative groups of a fleet: their state lies in the group's slot, whose worker answers their members."""

from __future__ import annotations

import pytest

from flowshare.client.cooperative.consumer import CooperativeConsumer
from flowshare.client.errors import ServerError
from flowshare.client.settings import CooperativeSettings
from flowshare.cooperative.types import KeyRange
from flowshare.ops.reading import partitions
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.cooperative import GroupOffset, StartEntry, stable_metadata
from flowshare.slots.placement import group_slot
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.kafka import FakeKafka
from tests.fleet.world import Fleet, batch
from tests.server.cooperative.world import LEASE_MS, LOWER, NONE, SWEEP, UPPER, WHOLE, Member

NOTHING = GroupOffset(-1)


async def members(fleet, *names, records: int = 100, topic: str = "orders", group: str = "g"):
    """Members on connections of their own, and a topic with records."""
    if topic not in fleet.kafka.storage.topics():
        await fleet.topic(topic)
        await fleet.kafka.storage.append(topic, 0, batch(*(b"v",) * records))
    topic_id = fleet.kafka.storage.topics()[topic].topic_id
    found = []
    for name in names:
        connection = fleet.connection(name)
        await connection.cluster.start()
        made = Member(again(connection), name, topic_id, group=group)
        made.connection = connection
        found.append(made)
    return found


def again(connection):
    """Sends once more what a connection was lost with, as members do."""

    async def send(request):
        try:
            return await connection.send(request)
        except OSError:
            return await connection.send(request)

    return send


async def told(fleet, *, group: str = "g"):
    """Return the only partition's state, as tools are told it; None: there is none."""
    (looks,) = await members(fleet, "look")
    answer = await looks.send(m.CooperativeOffsetsRequest(group_id=group, ranges_from=0))
    await looks.connection.close()
    assert answer.error is NONE, answer.message
    return answer.partitions[0] if answer.partitions else None


def stored(fleet) -> dict[int, list[bytes]]:
    """Keys of cooperative state by slot."""
    led = [slot for machine in fleet.living for slot in machine.worker._slot_manager.led.items()]
    return {number: keys for number, slot in led if (keys := [key for key, _ in slot.scan(b"k/")])}


def scenario(play, *, workers: int = 3, slots: int = 4):
    async def all_of_it(clock):
        async with Fleet(clock, workers=workers, slots=slots) as fleet:
            await play(fleet)

    run(all_of_it(LoopTimeClock()))


def test_members_share_a_partition_and_commit_at_the_groups_worker():
    async def play(fleet):
        a, b = await members(fleet, "a", "b")
        await a.hold(LOWER, committed=NOTHING)
        await b.hold(UPPER, committed=NOTHING)
        await a.commit((0, 5))
        assert await b.commit((5, 9), (20, 30)) == (9, 1, 30)

        part = await told(fleet)
        assert (part.stable, [tuple(one) for one in part.ranges.pairs()]) == (9, [(20, 30)])
        assert list(stored(fleet)) == [group_slot("g", fleet.slots)]
        for one in (a, b):
            await one.connection.close()

    scenario(play)


def test_a_worker_that_does_not_coordinate_the_group_says_so():
    async def play(fleet):
        (a,) = await members(fleet, "a")
        other = next(machine for machine in fleet.machines if machine is not fleet.coordinator("g"))
        a.send = other.serve("a").send

        answer = await a.asks({0: WHOLE}, committed=NOTHING)

        assert answer.error is ErrorCode.NOT_COORDINATOR
        assert stored(fleet) == {}
        await a.connection.close()

    scenario(play)


def test_the_next_worker_goes_on_with_claims_and_commits():
    async def play(fleet):
        a, b = await members(fleet, "a", "b")
        await a.hold(LOWER, committed=NOTHING, lease_ms=120_000)
        await a.commit((0, 5), (7, 9))
        await fleet.coordinator("g").kill()
        await fleet.settled()

        blocked = await b.hold(WHOLE, committed=NOTHING)
        assert [tuple(one[:2]) for one in blocked.held] == list(UPPER)
        assert blocked.ranges.pairs() == [(7, 9)]
        assert await a.commit((5, 7)) == (9, 0, 9)
        for one in (a, b):
            await one.connection.close()

    scenario(play)


def test_a_worker_that_leaves_in_order_hands_the_group_over():
    async def play(fleet):
        (a,) = await members(fleet, "a")
        held = (await a.hold(WHOLE, committed=NOTHING, lease_ms=120_000)).held
        await a.commit((0, 5))
        await fleet.coordinator("g").stop()
        await fleet.settled()

        assert (await a.hold(WHOLE, lease_ms=120_000)).held == held
        assert await a.commit((5, 7)) == (7, 0, 7)
        await a.connection.close()

    scenario(play)


def test_where_a_group_begins_its_members_say():
    async def play(fleet):
        a, b, c = await members(fleet, "a", "b", "c")
        b.group, c.group = "h", "i"

        unsaid = (await a.asks({0: WHOLE})).partitions[0]
        first = await a.hold(WHOLE, committed=NOTHING, auto_offset_reset="latest")
        ordinary = await b.hold(WHOLE, committed=GroupOffset(40, ""))
        ours = await c.hold(WHOLE, committed=GroupOffset(50, stable_metadata(3, c.topic_id)))

        assert unsaid.error is ErrorCode.INVALID_REQUEST
        assert (first.stable, ordinary.stable, ours.stable) == (100, 40, 50)
        for one in (a, b, c):
            await one.connection.close()

    scenario(play)


def test_an_administrators_reset_is_followed_when_nobody_holds_anything():
    async def play(fleet):
        (a,) = await members(fleet, "a")
        await a.hold(WHOLE, committed=NOTHING)
        await a.commit((0, 50))
        ours = GroupOffset(30, stable_metadata(a.epochs[0], a.topic_id))  # as it was a moment ago
        kept = await a.hold(WHOLE, committed=GroupOffset(20, ""))
        await a.leaves()
        old = await a.hold(WHOLE, committed=ours)
        await a.leaves()
        reset = await a.hold(WHOLE, committed=GroupOffset(20, ""))

        assert (kept.stable, old.stable, reset.stable) == (50, 50, 20)
        assert reset.reset_epoch > old.reset_epoch
        await a.connection.close()

    scenario(play, workers=1)


def test_a_group_that_was_deleted_at_the_brokers_begins_clean():
    async def play(fleet):
        (a,) = await members(fleet, "a")
        await a.hold(WHOLE, committed=NOTHING)
        await a.commit((0, 50), (60, 70))
        await a.leaves()
        never_told = await a.hold(WHOLE, committed=NOTHING)
        await a.hold(WHOLE, committed=GroupOffset(50, stable_metadata(a.epochs[0], a.topic_id)))
        await a.leaves()
        await fleet.clock.sleep(1.0)

        anew = await a.hold(WHOLE, committed=NOTHING)

        assert never_told.stable == 50
        assert (anew.stable, anew.count, anew.reset_epoch > never_told.reset_epoch) == (0, 0, True)
        await a.connection.close()

    scenario(play, workers=1)


@pytest.mark.parametrize("how", ["deleted", "expired"])
@pytest.mark.parametrize("lives_s", [0.0, 3.0], ids=["a short life", "a longer life"])
@pytest.mark.parametrize("lives", [1, 2], ids=["one member", "two members"])
def test_24_what_members_committed_of_a_group_that_is_gone_does_not_come_back_with_its_name(how, lives_s, lives):
    async def all_of_it(clock):
        fleet = Fleet(clock)
        fleet.kafka = FakeKafka(clock, classic=SWEEP)
        async with fleet:
            await fleet.topic("orders")
            await fleet.kafka.storage.append("orders", 0, batch(*(b"v",) * 30))
            assert await handled(fleet, "a", 30, but=(5, 11), lives_s=lives_s) == list(range(30))
            if lives > 1:
                assert await handled(fleet, "b", 2, but=(5, 11), lives_s=lives_s) == [5, 11]

            if how == "expired":
                await clock.sleep(90.0)
            else:
                broker = fleet.kafka.server.connect(client_id="admin")
                (answer,) = (await broker.send(m.DeleteGroupsRequest(group_ids=("g",)))).groups
                assert answer.error is NONE

            assert await handled(fleet, "c", 30) == list(range(30))

    run(all_of_it(LoopTimeClock()))


async def handled(fleet, name, count, *, but=(), lives_s=0.0):
    """Offsets that come to a consumer, which commits them with the exception of some, and leaves in order."""

    async def connect():
        connection = fleet.connection(name)
        await connection.cluster.start()
        return connection

    settings = CooperativeSettings(session_timeout=6.0)
    consumer = CooperativeConsumer(connect, group_id="g", clock=fleet.clock, settings=settings, member_id=name)
    consumer.subscribe(["orders"])
    async with consumer:
        found = []
        for _ in range(20):
            if len(found) >= count:
                break
            for record in await consumer.poll(2.0):
                found.append(record.offset)
                if record.offset not in but:
                    consumer.commit(record)
        await consumer.commit_sync()
        await fleet.clock.sleep(lives_s)
    return sorted(found)


def test_the_next_worker_knows_what_members_had_begun():
    async def play(fleet):
        a, b = await members(fleet, "a", "b")
        await a.hold(WHOLE, committed=NOTHING)
        first, end, epoch = a.held[0][0]
        starts = StartEntry(KeyRange(first, end), epoch, ((4, 2),), 5_000)
        assert (await a.commits(starts)).fenced == ()
        await fleet.coordinator("g").kill()
        await fleet.settled()
        await b.asks({0: WHOLE}, committed=NOTHING)
        await fleet.clock.sleep(1.5 * LEASE_MS / 1000)

        told = await b.hold(WHOLE, committed=NOTHING)
        assert tuple(tuple(one) for one in told.starts) == ((4, 2),)
        assert [one.before for one in told.reaches] == [5_000]
        for one in (a, b):
            await one.connection.close()

    scenario(play)


def test_a_share_group_cannot_be_cooperative():
    async def play(fleet):
        (a,) = await members(fleet, "a")
        share = fleet.member()
        await share.start()

        assert (await a.asks({0: WHOLE}, committed=NOTHING)).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        await a.connection.close()

    scenario(play, workers=1)


def test_a_lease_ends_at_the_worker():
    async def play(fleet):
        a, b = await members(fleet, "a", "b")
        await a.hold(WHOLE, committed=NOTHING)
        zombie = a.entry((0, 5))
        await fleet.clock.sleep(LEASE_MS / 1000 + 0.5)
        await b.hold(WHOLE, committed=NOTHING)

        assert (await a.commits(zombie)).fenced == (0,)
        for one in (a, b):
            await one.connection.close()

    scenario(play, workers=1)


def test_tools_list_reset_and_delete_the_groups_of_a_fleet():
    async def play(fleet):
        (a,) = await members(fleet, "a")
        await a.hold(WHOLE, committed=NOTHING)
        await a.commit((0, 5), (7, 9))
        admin = fleet.admin()
        assert await admin.cooperative.names() == ["g"]
        (row,) = await partitions(admin, {"g": "cooperative"}, fleet.clock.now_ms())
        assert (row.group, row.start_offset, row.backlog, row.committed_ranges) == ("g", 5, 93, 1)
        with pytest.raises(ServerError, match="stop the group's workers and try again"):
            await admin.cooperative.reset("g", to="latest")

        await a.leaves()
        (move,) = await admin.cooperative.reset("g", to=3)
        assert (move.before, move.after, move.lag) == (5, 3, 97)
        part = await told(fleet)
        assert (part.stable, part.count) == (3, 0)
        (offset,) = await admin.committed_offsets("g")
        assert (offset.offset, offset.metadata) == (3, stable_metadata(part.reset_epoch, part.topic_id)), (
            "Kafka's tools show it, too"
        )

        await admin.cooperative.delete("g")
        assert stored(fleet) == {}
        assert await admin.committed_offsets("g") == []
        assert await admin.cooperative.names() == []
        await admin.close()
        await a.connection.close()

    scenario(play)
