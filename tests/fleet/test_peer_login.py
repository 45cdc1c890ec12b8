"""Workers prove to each other who they are: who is only told of the fleet, listens in or repeats gets nowhere."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import orjson
import pytest

from flowshare.client.errors import ConnectionLost, NotConnected, ServerError
from flowshare.fleet import peer_login
from flowshare.fleet.directory import Directory, WorkerAddress
from flowshare.fleet.groups.calls import LEAVING
from flowshare.fleet.groups.facts import FACTS, HAS
from flowshare.fleet.groups.leaders import GONE, REPLACE
from flowshare.fleet.groups.settings import SET
from flowshare.fleet.peer_login import GREET, KEPT_S, KeyPair, KnownKeys, PeerDoor, greet, mark_of
from flowshare.fleet.state.topic import slot_group
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import DescribeGroupRequest
from flowshare.server.runtime.failures import Refused, failure
from flowshare.slots import membership
from flowshare.slots.consumer_protocol import decode_assignment, decode_subscription
from flowshare.slots.membership import SlotMap
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.world import EARLIEST, Fleet, Peer


def virtually(scenario):
    """Run a scenario that takes a clock on virtual time."""
    return run(scenario(LoopTimeClock()))


def pair(number: int) -> KeyPair:
    """Keys of a worker."""
    return KeyPair(random.Random(number).randbytes)


def agreed(*pairs: KeyPair, generation: int = 1) -> SlotMap:
    """A map of these workers, whose node ids are 1, 2, …"""
    return SlotMap(
        generation=generation,
        topic="t",
        slots=1,
        owners={0: 1},
        nodes={number: ("h", 9_000 + number) for number, _ in enumerate(pairs, 1)},
        keys={number: one.mark for number, one in enumerate(pairs, 1)},
    )


class Callee:
    """A worker as those see it who call it. `described`: what Kafka tells of its slot group."""

    def __init__(self, clock, keys: KeyPair, slot_map: SlotMap | None = None) -> None:
        self.keys = keys
        self.directory = Directory(1, WorkerAddress(1, "h", 9_001))
        self.described: SlotMap | None = None
        self.looks = 0
        self.known = KnownKeys(self.directory, clock, self._describe)
        if slot_map is not None:
            self.directory.agreed(slot_map)
        self.door = PeerDoor(keys, self.known, self.directory)

    async def _describe(self) -> SlotMap | None:
        self.looks += 1
        return self.described


class Wire:
    """A line to a worker. `seen`: the requests on it; `change`: what somebody between makes of a request or answer."""

    def __init__(self, callee: Callee) -> None:
        self.callee = callee
        self.peer = SimpleNamespace(extra={})
        self.seen: list[dict] = []
        self.change = lambda body: body
        self.closed = False

    async def call(self, name, **fields):
        body = self.change(orjson.loads(orjson.dumps({"call": name, **fields})))
        self.seen.append(body)
        return self.change(await self.answer(body))

    async def answer(self, body):
        """Return the worker's answer to a request, which echoes the request. Raises: ServerError."""
        call = SimpleNamespace(request=body, peer=self.peer)
        try:
            if body["call"] == GREET:
                return await self.callee.door.greet(call)
            opened = self.callee.door.open(call)
        except Refused as refused:
            raise ServerError(*failure(refused)) from None
        return opened.answered({"echo": opened.body})

    async def close(self):
        self.closed = True


async def line(wire: Wire, caller: KeyPair, *, callee: KeyPair | None = None, generation: int = 1):
    """A line of `caller` over the wire."""
    keys = wire.callee.keys if callee is None else callee
    return await greet(wire, caller, keys.mark, generation=generation, about="worker 1")


# --- who is only told of the fleet ----------------------------------------------------------------------------------


async def told_of(fleet) -> dict:
    """All that DescribeGroups tells of the slot group's members, as one call's fields."""
    kafka = fleet.kafka.cluster()
    fleet._clusters.append(kafka)
    answer = await kafka.connect("stranger").send(DescribeGroupRequest(group_id=slot_group(fleet.name)))
    fields = {}
    for one in answer.members:
        for data in (decode_subscription(one.metadata).user_data, decode_assignment(one.assignment).user_data):
            fields |= membership._unpacked(data)
    return fields


CALLS = {
    FACTS: {"group_id": "g"},
    GONE: {"group_id": "g", "member_id": "m", "version": [1, 1], "died": False},
    REPLACE: {"states": []},
    SET: {"changes": {}, "validate_only": True, "first": False},
    LEAVING: {},
}


def test_what_kafka_tells_of_the_slot_group_lets_nobody_call_its_workers():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            await fleet.configure("g", **EARLIEST)
            told = await told_of(fleet)
            machine = fleet.coordinator("g")
            assert told["generation"] == machine.worker.directory.map.generation
            stranger = Peer(fleet, machine, WorkerAddress(0, *machine.address))
            for name, fields in CALLS.items():
                with pytest.raises(ServerError, match="for the workers of this fleet only") as refused:
                    await stranger.call(name, **told, **fields)
                assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    virtually(scenario)


def test_with_the_public_half_of_another_worker_nobody_gets_further_than_the_greeting():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            one, two = (machine.worker for machine in fleet.machines)
            stranger = Peer(fleet, fleet.machines[0], WorkerAddress(0, *fleet.machines[0].address))
            stolen = pair(7)
            stolen.public = two._pair.public
            made = await greet(stranger, stolen, one._pair.mark, generation=1, about="it")
            for name, fields in CALLS.items():
                with pytest.raises(ServerError, match="for the workers of this fleet only"):
                    await made.call(name, **fields)

    virtually(scenario)


def test_whether_a_fleet_has_a_group_is_told_to_other_fleets_and_nothing_else():
    async def scenario(clock):
        async with Fleet(clock, workers=1) as fleet:
            (machine,) = fleet.machines
            await fleet.topic("orders")
            member = fleet.member("orders", group="g")
            await member.start()
            stranger = Peer(fleet, machine, WorkerAddress(0, *machine.address))

            assert await stranger.call(HAS, group_id="g") == {"exists": True}
            assert await stranger.call(HAS, group_id="h") == {"exists": False}
            stranger.peer.may = lambda *_: False
            with pytest.raises(ServerError, match="describing group g is not allowed"):
                await stranger.call(HAS, group_id="g")
            with pytest.raises(ServerError, match="is no worker here"):
                await stranger.call(GREET)

    virtually(scenario)


# --- who listens in -------------------------------------------------------------------------------------------------


def test_workers_of_one_map_hear_each_other():
    async def scenario(clock):
        wire = Wire(Callee(clock, pair(1), agreed(pair(1), pair(2))))
        made = await line(wire, pair(2))

        assert await made.call("x", a=[1, "ü"]) == {"echo": {"a": [1, "ü"]}}
        assert await made.call("x") == {"echo": {}}
        await made.close()
        assert wire.closed

    virtually(scenario)


def test_a_call_that_was_listened_to_is_good_for_nothing_again():
    async def scenario(clock):
        callee = Callee(clock, pair(1), agreed(pair(1), pair(2)))
        wire, other = Wire(callee), Wire(callee)
        await (await line(wire, pair(2))).call("x")
        greeting, call = wire.seen

        for again in (wire, other):
            with pytest.raises(ServerError, match="workers of this fleet only"):
                await again.answer(call)
        await other.answer(greeting)
        with pytest.raises(ServerError, match="workers of this fleet only"):
            await other.answer(call)

    virtually(scenario)


@pytest.mark.parametrize("changed", [{"call": "y"}, {"text": "{}"}, {"number": 2}, {"mac": ""}, {"mac": None}])
def test_a_call_that_was_changed_on_its_way_is_refused(changed):
    async def scenario(clock):
        wire = Wire(Callee(clock, pair(1), agreed(pair(1), pair(2))))
        made = await line(wire, pair(2))
        wire.change = lambda body: body | changed if "call" in body else body
        with pytest.raises(ServerError, match="workers of this fleet only"):
            await made.call("x", a=1)

    virtually(scenario)


@pytest.mark.parametrize("answer", [{}, {"text": "{}"}, {"text": "{}", "mac": "00"}])
def test_an_answer_of_somebody_else_ends_the_line(answer):
    async def scenario(clock):
        wire = Wire(Callee(clock, pair(1), agreed(pair(1), pair(2))))
        made = await line(wire, pair(2))
        wire.change = lambda body: body if "call" in body else answer
        with pytest.raises(ConnectionLost, match="is not that worker"):
            await made.call("x")

    virtually(scenario)


def test_a_call_to_one_worker_is_good_at_no_other():
    async def scenario(clock):
        everybody = agreed(pair(1), pair(2), pair(3))
        wire = Wire(Callee(clock, pair(1), everybody))
        with pytest.raises(ServerError, match="another worker listened here before"):
            await line(wire, pair(2), callee=pair(3))
        wire.change = lambda body: body | {"to": pair(1).mark} if body.get("call") == GREET else body
        with pytest.raises(NotConnected, match="what greets there is not that worker"):
            await line(wire, pair(2), callee=pair(3))
        turned = {"to": pair(1).mark, "key": pair(3).public}
        wire.change = lambda body: {name: turned.get(name, value) for name, value in body.items()}
        made = await line(wire, pair(2), callee=pair(3))
        with pytest.raises(ServerError, match="workers of this fleet only"):
            await made.call("x")

    virtually(scenario)


def test_calls_that_overtake_each_other_are_all_taken_once():
    session = peer_login._CallSession("a", b"")

    assert [session.takes(number) for number in (3, 1, 2, 2, 3, 4 + peer_login.WINDOW, 4, 5)] == [
        True, True, True, False, False, True, False, True,
    ]  # fmt: skip


@pytest.mark.parametrize("bad", ["", "00" * 32, "zz", "ab" * 31, "ü"])
def test_a_public_half_that_is_none_lets_nobody_in(bad):
    async def scenario(clock):
        known = agreed(pair(1))
        known.keys[2] = mark_of(bad)
        wire = Wire(Callee(clock, pair(1), known))
        mine = pair(2)
        mine.public = bad
        with pytest.raises(ServerError, match="workers of this fleet only"):
            await line(wire, mine)
        with pytest.raises(NotConnected, match="does not greet as a worker does"):
            await greet(SimpleNamespace(call=greets), pair(1), mark_of(bad), generation=1, about="worker 2")

    async def greets(*_, **__):
        return {"key": bad, "nonce": "00"}

    virtually(scenario)


@pytest.mark.parametrize(
    "fields", [{}, {"nonce": "00"}, {"from": 1}, {"nonce": None}, {"generation": "1"}, {"generation": True}, {"to": []}]
)
def test_a_greeting_without_sense_is_refused_in_words(fields):
    async def scenario(clock):
        wire = Wire(Callee(clock, pair(1), agreed(pair(1), pair(2))))
        good = {"from": pair(2).public, "to": pair(1).mark, "generation": 1, "nonce": "00" * 16} if fields else {}
        with pytest.raises(ServerError, match="needs from, to, generation and nonce"):
            await wire.answer({"call": GREET, **good, **fields})

    virtually(scenario)


# --- maps that differ -----------------------------------------------------------------------------------------------


def test_a_caller_that_only_the_next_map_has_is_heard_as_soon_as_that_comes():
    async def scenario(clock):
        callee = Callee(clock, pair(1), agreed(pair(1)))
        coming = asyncio.create_task(line(Wire(callee), pair(2), generation=2))
        await clock.sleep(0.5)
        assert not coming.done()
        callee.directory.agreed(agreed(pair(1), pair(2), generation=2))

        assert await (await coming).call("x") == {"echo": {}}
        await callee.known.close()

    virtually(scenario)


def test_a_worker_that_left_hears_those_that_came_later_for_its_slots():
    """It gets no map any more, but Kafka tells it as it tells anybody."""

    async def scenario(clock):
        callee = Callee(clock, pair(1), agreed(pair(1)))
        callee.described = agreed(pair(2), generation=2)

        assert await (await line(Wire(callee), pair(2), generation=2)).call("x") == {"echo": {}}
        assert callee.known.of(1) == pair(2).mark
        await callee.known.close()

    virtually(scenario)


def test_strangers_that_claim_a_newer_map_are_refused_and_kafka_is_asked_a_few_times_only():
    async def scenario(clock):
        callee = Callee(clock, pair(1), agreed(pair(1)))
        many = [line(Wire(callee), pair(2), generation=2**31) for _ in range(2 * peer_login.GREETINGS_MAX)]
        answers = await asyncio.gather(*many, return_exceptions=True)

        assert {one.code for one in answers} == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        assert callee.looks <= peer_login.GREET_S / peer_login.PAUSE_S + 1
        await callee.known.close()

    virtually(scenario)


def test_who_left_is_heard_until_what_it_gives_away_is_taken():
    async def scenario(clock):
        callee = Callee(clock, pair(1), agreed(pair(1), pair(2)))
        made = await line(Wire(callee), pair(2))
        callee.directory.agreed(agreed(pair(1), generation=2))

        assert await made.call("x") == {"echo": {}}
        assert callee.known.of(2) == pair(2).mark
        await clock.sleep(KEPT_S)
        with pytest.raises(ServerError, match="workers of this fleet only"):
            await made.call("x")
        with pytest.raises(ServerError, match="workers of this fleet only"):
            await line(Wire(callee), pair(2))
        assert callee.known.of(2) is None

    virtually(scenario)


def test_a_worker_that_knows_no_map_yet_asks_to_be_called_again():
    async def scenario(clock):
        wire = Wire(Callee(clock, pair(1)))
        with pytest.raises(ServerError, match="joining its fleet; try again") as refused:
            await line(wire, pair(2))
        assert refused.value.retriable

    virtually(scenario)


def test_a_worker_that_was_given_up_calls_again_as_one_that_is_not_reached():
    """It is no matter of rights: it joins again, and what it asks for can be asked again."""

    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            one, two = (machine.worker for machine in fleet.machines)
            assert await one._peers.call(two.node_id, LEAVING) == {}
            known = two._known
            present, known._present, known._former = known._present, frozenset(), {}

            with pytest.raises(NotConnected, match="knows that this one was given up; it joins its fleet again"):
                await one._peers.call(two.node_id, LEAVING)
            known._present = present
            assert await one._peers.call(two.node_id, LEAVING) == {}

    virtually(scenario)
