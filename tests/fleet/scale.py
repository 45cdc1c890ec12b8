"""Large fleets on virtual time: the real slot groups, keepers, directories and calls, over slots' logs that are memory.

`SlotFleet` has no share groups; `GroupRun` is one share group's real core under the heartbeats of all its members.
Both count what would travel.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from types import SimpleNamespace
from uuid import UUID

from flowshare.client.errors import NotConnected
from flowshare.fleet import slot_group
from flowshare.fleet.directory import Claimed, Directory, WorkerAddress
from flowshare.fleet.messages import GreetRequest, HandOver, ProvenCall, SlotClaimed
from flowshare.fleet.peer_login import KeyPair, KnownKeys, PeerDoor
from flowshare.fleet.peers import Peers
from flowshare.fleet.slot_group import SlotGroup
from flowshare.fleet.slot_manager import SlotManager
from flowshare.groups.types import ClassicConfig
from flowshare.protocol import messages as m
from flowshare.protocol.private import read, write
from flowshare.server.runtime.failures import Refused, refusal
from flowshare.server.share.returning_members import own_interval_ms
from flowshare.share.config import GroupConfig
from flowshare.share.group import ShareGroup, TopicInfo
from flowshare.slots.membership import SlotGroupMember
from flowshare.slots.placement import share_slot
from flowshare.slots.planning import assembled
from flowshare.slots.records import Claim
from tests.fleet.kafka import FakeKafka

TOPIC = "__flowshare_state.shop"
REPLAY_S = 0.05
"""How long reading a slot's log takes here."""
CALL_S = 0.001
HEAD_BYTES = 100
"""Bytes of a request and its answer beside the parts that are counted."""
MEMBER_BYTES = 150
"""Bytes of a described or joined member beside metadata and assignment."""


class CountingKafka(FakeKafka):
    """A Kafka that counts the bytes of its coordinator, both ways."""

    def __init__(self, clock):
        super().__init__(clock, classic=ClassicConfig(size_max=10_000))
        self.bytes = Counter()

    async def carry_out(self, connection, request):
        answer = await super().carry_out(connection, request)
        size = HEAD_BYTES
        match request:
            case m.JoinGroupRequest():
                size += sum(len(one.metadata) for one in request.protocols)
                size += sum(MEMBER_BYTES + len(one.metadata) for one in answer.members)
            case m.SyncGroupRequest():
                size += sum(MEMBER_BYTES + len(given) for _, given in request.assignments) + len(answer.assignment)
            case m.DescribeGroupRequest():
                size += sum(MEMBER_BYTES + len(one.metadata) + len(one.assignment) for one in answer.members)
        self.bytes[type(request).__name__.removesuffix("Request")] += size
        return answer


class OneReading:
    """`described`, but what a thousand workers read of the same round is put together once."""

    def __init__(self):
        self._key = self._map = None

    async def __call__(self, kafka, group_id):
        answer = await kafka.send(m.DescribeGroupRequest(group_id=group_id))
        key = hash(tuple(one.assignment for one in answer.members))
        if key != self._key:
            self._key = key
            self._map = assembled(
                SlotGroupMember(one.member_id, one.metadata, one.assignment) for one in answer.members
            )
        return self._map


class SlotLog:
    """The part of one slot's log that all workers can read."""

    def __init__(self):
        self.epoch = 0
        self.claim = None
        self.handed_over_to = None
        self.owner = None


class MemorySlot:
    """A `ManagedSlot` of one worker."""

    def __init__(self, log, clock, lost):
        self.log = log
        self.clock = clock
        self.lost = lost
        self.claimed = None

    @property
    def epoch(self):
        return self.log.epoch if self.claimed is None else self.claimed

    @property
    def claim(self):
        return self.log.claim

    @property
    def handed_over_to(self):
        return self.log.handed_over_to

    async def standby(self):
        await self.clock.sleep(REPLAY_S)

    async def lead(self, owner):
        await self.clock.sleep(CALL_S)
        log, before = self.log, self.log.owner
        log.epoch += 1
        log.claim = Claim(
            epoch=log.epoch,
            node_id=owner.node_id,
            owner=owner.instance,
            host=owner.host,
            port=owner.port,
            time_ms=0,
        )
        log.handed_over_to, log.owner, self.claimed = None, self, log.epoch
        if before is not None:
            before.lost()

    def scan(self, prefix):
        del prefix
        return []

    async def hand_over(self, to):
        self.log.handed_over_to, self.log.owner = to, None

    def recheck(self):
        pass

    async def close(self):
        pass


async def nothing(*_):
    """Nobody lives in these slots."""


class Worker:
    """One worker: its membership, its view, its slots and its lines to the others."""

    def __init__(self, fleet, number):
        self.fleet = fleet
        self.number = number
        self.dead = False
        self.place = WorkerAddress(1_000 + number, f"shop-{number}.workers.default.svc.cluster.local", 9092)
        self.cluster = fleet.kafka.cluster()
        self.directory = Directory(fleet.slots, self.place)
        self.pair = KeyPair(random.Random(number).randbytes)
        self.known = KnownKeys(self.directory, fleet.clock, lambda: slot_group.described(self.group._kafka, TOPIC))
        self.door = PeerDoor(self.pair, self.known, self.directory)
        self.peers = Peers(self.directory, self._dial, fleet.clock, pair=self.pair, known=self.known)
        self.slot_manager = SlotManager(
            directory=self.directory,
            peers=self.peers,
            make_slot=lambda slot, lost: MemorySlot(fleet.logs[slot], fleet.clock, lost),
            take_up=nothing,
            lay_down=nothing,
            sure=lambda: self.group.sure,
            instance=str(number),
            clock=fleet.clock,
        )
        self.group = SlotGroup(
            self.cluster,
            topic=TOPIC,
            slots=fleet.slots,
            instance=str(UUID(int=number)),
            node_id=self.place.node_id,
            claims=self.slot_manager.claims,
            on_map=self.directory.agreed,
            on_doubt=self.slot_manager.doubted,
            key=self.pair.mark,
            clock=fleet.clock,
        )

    async def start(self):
        await self.cluster.start()
        await self.group.start(self.place.host, self.place.port, limit_s=300.0)

    async def leave(self):
        await self.group.leave()
        await self.slot_manager.close(wait_s=3.0)
        self.dead = True

    async def kill(self):
        """As kill -9."""
        self.dead = True
        await self.group._stop()
        await self.group._kafka.close()

    async def close(self):
        if not self.dead:
            await self.slot_manager.close()
        await self.peers.close()
        await self.known.close()
        await self.group.close()
        await self.cluster.close()

    async def _dial(self, place):
        return PeerLine(self, self.fleet.at(place))


class PeerLine:
    """A line from one worker to another."""

    def __init__(self, caller, callee):
        self.caller = caller
        self.callee = callee
        self.peer = SimpleNamespace(extra={})

    async def send(self, request):
        await self.caller.fleet.clock.sleep(CALL_S)
        callee = self.callee
        if callee.dead or self.caller.dead:
            raise NotConnected(f"worker {callee.number} is dead")
        fleet, call = callee.fleet, SimpleNamespace(peer=self.peer)
        fleet.calls[request.name if isinstance(request, ProvenCall) else request.own.name] += 1
        fleet.call_bytes += len(write(request)) + HEAD_BYTES
        try:
            if isinstance(request, GreetRequest):
                return await callee.door.greet(call, request)
            opened = callee.door.open(call, request)
        except Refused as refused:
            return refusal(request.own.response, refused)
        if opened.name == HandOver.own.name:
            asked = read(HandOver, opened.text)
            await callee.slot_manager.hand_over(asked.slot, asked.to)
        elif opened.name == SlotClaimed.own.name:
            told = read(SlotClaimed, opened.text)
            callee.directory.claimed(told.slot, Claimed(told.epoch, told.node))
        return opened.answered(m.Response())

    async def close(self):
        pass


class SlotFleet:
    """Workers and the Kafka below them: async with SlotFleet(clock, workers=50) as fleet: …"""

    def __init__(self, clock, *, workers, slots=32):
        self.clock = clock
        self.slots = slots
        self.kafka = CountingKafka(clock)
        self.logs = [SlotLog() for _ in range(slots)]
        self.calls = Counter()
        self.call_bytes = 0
        self.workers = [Worker(self, number) for number in range(workers)]

    async def __aenter__(self):
        await self.kafka.__aenter__()
        self._described, slot_group.described = slot_group.described, OneReading()
        await asyncio.gather(*(worker.start() for worker in self.workers))
        await self.settled()
        return self

    async def __aexit__(self, *_):
        await self.kafka.cut()
        self.kafka.down = True
        for worker in self.workers:
            await worker.group._stop()
            worker.group._state.member_id = ""
        await asyncio.gather(*(worker.close() for worker in self.workers))
        await self.kafka.__aexit__()
        slot_group.described = self._described

    @property
    def living(self):
        return [worker for worker in self.workers if not worker.dead]

    def at(self, place):
        return self.workers[place.node_id - 1_000]

    async def add(self):
        worker = Worker(self, len(self.workers))
        self.workers.append(worker)
        await worker.start()
        return worker

    async def settled(self, limit_s=300.0):
        """Wait until all have one map, and each slot is served by just the worker that was chosen for it."""
        end_s = self.clock.monotonic() + limit_s
        while not self._is_settled():
            assert self.clock.monotonic() < end_s, "the fleet does not settle"
            await self.clock.sleep(0.05)

    def _is_settled(self):
        maps = [worker.directory.map for worker in self.living]
        if None in maps or len({one.generation for one in maps}) > 1 or len(maps[0].nodes) != len(maps):
            return False
        return self.served() == dict(maps[0].owners) and len(maps[0].owners) == self.slots

    def served(self):
        """Slot -> node id of who serves it."""
        return {slot: worker.place.node_id for worker in self.living for slot in worker.slot_manager.served}


class GroupRun:
    """One share group whose members beat on virtual time. writes: of the group's record. answered: bytes of answers."""

    def __init__(self, *, members, topics=10, partitions=1_000):
        self.topics = {
            f"topic-{number}": TopicInfo(f"topic-{number}", UUID(int=number * 2**64 + 12_345), partitions)
            for number in range(topics)
        }
        self.group = ShareGroup("g", config=GroupConfig(group_max_size=10_000))
        self.interval_ms = own_interval_ms(members, 5_000)
        self.now_ms = 0
        self.epochs = {}
        self.beats = self.writes = self.answered = self.moves = 0
        self.cpu_s = 0.0
        self._noted_ms = None
        for number in range(members):
            self.join(number)

    def join(self, number):
        self.epochs[f"{UUID(int=number)}"] = 0
        self._beat(f"{UUID(int=number)}", tuple(self.topics))

    def leave(self, number):
        member = f"{UUID(int=number)}"
        self.epochs[member] = -1
        self._beat(member, None)
        del self.epochs[member]

    def beat_all(self):
        """Every member once, evenly over one interval."""
        start_ms = self.now_ms
        for place, member in enumerate(tuple(self.epochs)):
            self.now_ms = start_ms + place * self.interval_ms // len(self.epochs)
            self._flush()
            self._beat(member, None)
        self.now_ms = start_ms + self.interval_ms
        self._flush()

    def shares(self):
        """How many share-partitions each member has."""
        return [len(member.assignment) for member in self.group.members.values()]

    def leaders(self, owners):
        """How many workers each member fetches from. owners: slot -> node id."""
        slots = len(owners)
        return [
            len({owners[share_slot(topic, partition, slots)] for topic, partition in member.assignment})
            for member in self.group.members.values()
        ]

    def _beat(self, member, topics):
        before = self.group.members.get(member)
        had = set() if before is None else set(before.assignment)
        started_s = time.process_time()
        beat = self.group.heartbeat(
            member_id=member,
            member_epoch=self.epochs[member],
            rack_id=None,
            subscribed_topics=topics,
            client_id="shop",
            client_host="10.0.0.1",
            topics=self.topics,
            now_ms=self.now_ms,
        )
        self.cpu_s += time.process_time() - started_s
        self.epochs[member] = beat.member_epoch
        self.beats += 1
        self.answered += HEAD_BYTES
        if beat.assignment is not None:
            self.moves += len(set(beat.assignment) - had)
            self.answered += 20 * len({topic for topic, _ in beat.assignment}) + 4 * len(beat.assignment)
        if beat.changed:
            self.writes += 1
            self._noted_ms = None
        elif beat.jumped and self._noted_ms is None:
            self._noted_ms = self.now_ms + 1_000

    def _flush(self):
        if self._noted_ms is not None and self._noted_ms <= self.now_ms:
            self.writes += 1
            self._noted_ms = None
