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
from flowshare.fleet.messages import (
    AlterFleetSettings,
    FactsRequest,
    GreetRequest,
    GreetResponse,
    HasGroupRequest,
    MemberGone,
    ProvenCall,
    ReplaceStates,
    WhoRequest,
    WhoResponse,
    WorkerLeaving,
)
from flowshare.fleet.peer_login import KEPT_S, KeyPair, KnownKeys, PeerDoor, greet, mark_of
from flowshare.fleet.state.topic import slot_group
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.messages import DescribeGroupRequest, Response
from flowshare.protocol.private import read, write
from flowshare.server.runtime.failures import Refused, refusal
from flowshare.slots import membership
from flowshare.slots.consumer_protocol import decode_assignment, decode_subscription
from flowshare.slots.membership import SlotMap
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.world import EARLIEST, Fleet, Peer

ANSWERED = WhoResponse(node_id=7)


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

    async def send(self, request):
        asked = self.change(orjson.loads(write(request)))
        self.seen.append(asked)
        told = self.change(orjson.loads(write(await self.answer(asked))))
        return read(request.own.response, orjson.dumps(told))

    async def answer(self, asked):
        """Return the worker's answer to a request: it says that it is the worker 7."""
        call = SimpleNamespace(peer=self.peer)
        kind = GreetRequest if asked["call"] == "fleet_greet" else ProvenCall
        try:
            request = read(kind, orjson.dumps(asked))
            if kind is GreetRequest:
                return await self.callee.door.greet(call, request)
            return self.callee.door.open(call, request).answered(WhoResponse(node_id=7))
        except Refused as refused:
            return refusal(Response, refused)

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


CALLS = (
    FactsRequest(group_id="g"),
    MemberGone(group_id="g", member_id="m", version=(1, 1), died=False),
    ReplaceStates(states=()),
    AlterFleetSettings(changes={}, validate_only=True),
    WorkerLeaving(),
)


def test_what_kafka_tells_of_the_slot_group_lets_nobody_call_its_workers():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            await fleet.configure("g", **EARLIEST)
            told = await told_of(fleet)
            machine = fleet.coordinator("g")
            assert told["generation"] == machine.worker.directory.map.generation
            stranger = Peer(fleet, machine, WorkerAddress(0, *machine.address))
            for request in CALLS:
                for mac in ("", told["key"]):
                    call = ProvenCall(name=request.own.name, number=1, text=write(request).decode(), mac=mac)
                    refused = await stranger.send(call)
                    assert refused.error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                    assert "for the workers of this fleet only" in refused.message
                assert (await stranger.send(request)).error is ErrorCode.UNSUPPORTED_VERSION

    virtually(scenario)


def test_with_the_public_half_of_another_worker_nobody_gets_further_than_the_greeting():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            one, two = (machine.worker for machine in fleet.machines)
            stranger = Peer(fleet, fleet.machines[0], WorkerAddress(0, *fleet.machines[0].address))
            stolen = pair(7)
            stolen.public = two._pair.public
            made = await greet(stranger, stolen, one._pair.mark, generation=1, about="it")
            for request in CALLS:
                with pytest.raises(ServerError, match="for the workers of this fleet only"):
                    await made.call(request)

    virtually(scenario)


def test_a_worker_that_fails_at_a_call_says_so_and_the_line_goes_on(caplog):
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            one, two = fleet.machines
            place = WorkerAddress(0, *two.address)
            made = await greet(
                Peer(fleet, one, place), one.worker._pair, two.worker._pair.mark, generation=1, about="2"
            )
            answers = two.worker.calls._answers
            works = answers[WorkerLeaving]
            for error in (ValueError, TypeError, AttributeError, KeyError):
                answers[WorkerLeaving] = fails(error)
                with pytest.raises(ServerError, match=f"the call failed here .*{error.__name__}.*oh"):
                    await made.call(WorkerLeaving())
            answers[WorkerLeaving] = works
            assert (await made.call(WorkerLeaving())).error is ErrorCode.NONE

    def fails(error):
        async def handler(_):
            raise error("oh")

        return handler

    virtually(scenario)
    assert caplog.text.count("Traceback") == 4


def test_whether_a_fleet_has_a_group_is_told_to_other_fleets_and_nothing_else():
    async def scenario(clock):
        async with Fleet(clock, workers=1) as fleet:
            (machine,) = fleet.machines
            await fleet.topic("orders")
            member = fleet.member("orders", group="g")
            await member.start()
            stranger = Peer(fleet, machine, WorkerAddress(0, *machine.address))

            assert (await stranger.send(HasGroupRequest(group_id="g"))).exists
            assert not (await stranger.send(HasGroupRequest(group_id="h"))).exists
            stranger.peer.may = lambda *_: False
            stranger.peer.need = denied
            refused = await stranger.send(HasGroupRequest(group_id="g"))
            assert refused.error is ErrorCode.GROUP_AUTHORIZATION_FAILED
            refused = await stranger.send(GreetRequest(caller="", callee="", generation=1, nonce="0" * 32))
            assert "is no worker here" in refused.message

    def denied(*right):
        raise Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, str(right))

    virtually(scenario)


# --- who listens in -------------------------------------------------------------------------------------------------


def test_workers_of_one_map_hear_each_other():
    async def scenario(clock):
        wire = Wire(Callee(clock, pair(1), agreed(pair(1), pair(2))))
        made = await line(wire, pair(2))

        assert await made.call(WhoRequest()) == ANSWERED
        assert await made.call(WhoRequest()) == ANSWERED
        await made.close()
        assert wire.closed

    virtually(scenario)


def test_a_call_that_was_listened_to_is_good_for_nothing_again():
    async def scenario(clock):
        callee = Callee(clock, pair(1), agreed(pair(1), pair(2)))
        wire, other = Wire(callee), Wire(callee)
        await (await line(wire, pair(2))).call(WhoRequest())
        greeting, call = wire.seen

        for again in (wire, other):
            assert (await again.answer(call)).message == peer_login.STRANGER
        assert (await other.answer(greeting)).key
        assert (await other.answer(call)).message == peer_login.STRANGER

    virtually(scenario)


@pytest.mark.parametrize("changed", [{"name": "y"}, {"text": "[]"}, {"number": 2}, {"mac": ""}])
def test_a_call_that_was_changed_on_its_way_is_refused(changed):
    async def scenario(clock):
        wire = Wire(Callee(clock, pair(1), agreed(pair(1), pair(2))))
        made = await line(wire, pair(2))
        wire.change = lambda body: body | changed if "call" in body else body
        with pytest.raises(ServerError, match="workers of this fleet only"):
            await made.call(WhoRequest())

    virtually(scenario)


@pytest.mark.parametrize("answer", [{}, {"text": "{}"}, {"text": "{}", "mac": "00"}, {"text": "{}", "mac": "ü"}])
def test_an_answer_of_somebody_else_ends_the_line(answer):
    async def scenario(clock):
        wire = Wire(Callee(clock, pair(1), agreed(pair(1), pair(2))))
        made = await line(wire, pair(2))
        wire.change = lambda body: body if "call" in body else answer
        with pytest.raises(ConnectionLost, match="is not that worker"):
            await made.call(WhoRequest())

    virtually(scenario)


def test_an_answer_of_another_release_that_cannot_be_read_ends_the_line():
    async def scenario(clock):
        wire = Wire(Callee(clock, pair(1), agreed(pair(1), pair(2))))
        made = await line(wire, pair(2))
        wire.answer = lambda asked: odd(wire, asked)
        with pytest.raises(ConnectionLost, match="worker 1: the answer to fleet_who makes no sense here"):
            await made.call(WhoRequest())

    async def odd(wire, asked):
        opened = wire.callee.door.open(SimpleNamespace(peer=wire.peer), read(ProvenCall, orjson.dumps(asked)))
        return opened.answered(WhoResponse(node_id="seven"))

    virtually(scenario)


def test_a_call_to_one_worker_is_good_at_no_other():
    async def scenario(clock):
        everybody = agreed(pair(1), pair(2), pair(3))
        wire = Wire(Callee(clock, pair(1), everybody))
        with pytest.raises(ServerError, match="another worker listened here before"):
            await line(wire, pair(2), callee=pair(3))
        wire.change = lambda body: body | {"callee": pair(1).mark} if body.get("call") == "fleet_greet" else body
        with pytest.raises(NotConnected, match="what greets there is not that worker"):
            await line(wire, pair(2), callee=pair(3))
        turned = {"callee": pair(1).mark, "key": pair(3).public}
        wire.change = lambda body: {name: turned.get(name, value) for name, value in body.items()}
        made = await line(wire, pair(2), callee=pair(3))
        with pytest.raises(ServerError, match="workers of this fleet only"):
            await made.call(WhoRequest())

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
            await greet(SimpleNamespace(send=greets), pair(1), mark_of(bad), generation=1, about="worker 2")

    async def greets(*_, **__):
        return GreetResponse(key=bad, nonce="00")

    virtually(scenario)


@pytest.mark.parametrize(
    "fields",
    [{"nonce": "00"}, {"caller": 1}, {"nonce": None}, {"generation": "1"}, {"generation": True}, {"callee": []}],
)
def test_a_greeting_without_sense_is_refused(fields):
    good = {"caller": pair(2).public, "callee": pair(1).mark, "generation": 1, "nonce": "00" * 16}

    assert read(GreetRequest, orjson.dumps(good))
    with pytest.raises(DecodeError, match="GreetRequest cannot be read"):
        read(GreetRequest, orjson.dumps(good | fields))


# --- maps that differ -----------------------------------------------------------------------------------------------


def test_a_caller_that_only_the_next_map_has_is_heard_as_soon_as_that_comes():
    async def scenario(clock):
        callee = Callee(clock, pair(1), agreed(pair(1)))
        coming = asyncio.create_task(line(Wire(callee), pair(2), generation=2))
        await clock.sleep(0.5)
        assert not coming.done()
        callee.directory.agreed(agreed(pair(1), pair(2), generation=2))

        assert await (await coming).call(WhoRequest()) == ANSWERED
        await callee.known.close()

    virtually(scenario)


def test_a_worker_that_left_hears_those_that_came_later_for_its_slots():
    """It gets no map any more, but Kafka tells it as it tells anybody."""

    async def scenario(clock):
        callee = Callee(clock, pair(1), agreed(pair(1)))
        callee.described = agreed(pair(2), generation=2)

        assert await (await line(Wire(callee), pair(2), generation=2)).call(WhoRequest()) == ANSWERED
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

        assert await made.call(WhoRequest()) == ANSWERED
        assert callee.known.of(2) == pair(2).mark
        await clock.sleep(KEPT_S)
        with pytest.raises(ServerError, match="workers of this fleet only"):
            await made.call(WhoRequest())
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
            assert await one._peers.call(two.node_id, WorkerLeaving()) == Response()
            known = two._known
            present, known._present, known._former = known._present, frozenset(), {}

            with pytest.raises(NotConnected, match="knows that this one was given up; it joins its fleet again"):
                await one._peers.call(two.node_id, WorkerLeaving())
            known._present = present
            assert await one._peers.call(two.node_id, WorkerLeaving()) == Response()

    virtually(scenario)
