"""A fleet of workers over a Kafka in memory, on virtual time: real workers, no sockets; they can die and freeze."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Self

from flowshare.backend.fleet import FleetConnection
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.errors import NotConnected
from flowshare.client.net.cluster import Cluster
from flowshare.client.net.connections import LocalConnection
from flowshare.client.session.member import ShareMember
from flowshare.fleet.messages import ProvenCall
from flowshare.fleet.state.topic import state_topic
from flowshare.fleet.worker import FleetOptions, FleetWorker
from flowshare.protocol import messages as m
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.private import read, write
from flowshare.server.edge.private import endpoint
from flowshare.share.config import ServerConfig
from tests.fleet.kafka import FakeConnection, FakeKafka

EARLIEST = {"share.auto.offset.reset": "earliest"}


def batch(*values: bytes) -> bytes:
    """A record batch with these values."""
    builder = BatchBuilder()
    for value in values:
        assert builder.add(None, value, [], timestamp_ms=1_000)
    return builder.build()


class Machine:
    """A process with a worker: what reaches it and what it reaches ends with `kill`."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.fleet = fleet
        self.number = number
        self.address = f"{fleet.name}-{number}", 9000 + number
        self.dead = False
        self.apart = False
        self.connections: list = []
        self.settings: dict[str, str] | None = None
        self.cluster = Cluster(
            ["kafka:9092"], clock=fleet.clock, client_id=f"worker-{number}", open_node=self._open_kafka
        )
        self.worker: FleetWorker

    async def start(self) -> None:
        """Join the fleet."""
        await self.cluster.start()
        options = FleetOptions(
            fleet=self.fleet.name,
            node_id=100 + self.number,
            instance=f"worker-{self.number}",
            slots=self.fleet.slots,
            config=self.fleet.config,
            settings=self.fleet.settings if self.settings is None else self.settings,
        )
        self.worker = FleetWorker(self.cluster, options, clock=self.fleet.clock, dial=self._dial)
        await self.worker.prepare()
        await self.worker.join(*self.address)

    async def stop(self) -> None:
        """Leave in order."""
        await self.worker.leave()
        self.dead = True
        await self._break_off()
        await self.worker.close()
        await self.cluster.close()

    async def kill(self) -> None:
        """As kill -9: nothing gets out or in any more. What is left of it is ended with the world."""
        self.dead = True
        await self._break_off()

    async def _break_off(self) -> None:
        for connection in self.connections:
            await connection.close()
        self.connections.clear()

    async def cut_off(self) -> None:
        """Kafka is not reached from here until `apart` is False again; the other workers are."""
        self.apart = True
        for connection in [one for one in self.connections if isinstance(one, FakeConnection)]:
            self.connections.remove(connection)
            await connection.break_off()

    async def _open_kafka(self, host, port, client_id):
        if self.dead:
            raise NotConnected("this machine is dead")
        if self.apart:
            raise NotConnected("Kafka is not reached")
        connection = await self.fleet.kafka.open_node(host, port, client_id)
        self.connections.append(connection)
        return connection

    async def _dial(self, place):
        if self.dead:
            raise NotConnected("this machine is dead")
        return Peer(self.fleet, self, place)

    async def connect_own(self, client_id: str):
        """A connection of a client in this process, which dies with it."""
        if self.dead:
            raise NotConnected(f"{self.address[0]} is dead")
        connection = self.worker.connect(client_id)
        self.connections.append(connection)
        return connection

    def serve(self, client_id: str, worker: int | None = None):
        """A connection from outside, as over a socket. worker: node id of the worker in whose process its client is."""
        if self.dead:
            raise NotConnected(f"{self.address[0]} is dead")
        inner = self.worker.server.connect(client_id=client_id, host="10.0.0.7")
        inner.own, inner.worker = True, worker
        self.connections.append(inner)
        return LocalConnection(inner)


def _may(*_: object) -> bool:
    """Rights are a listener's; here is none."""
    return True


class Peer:
    """A line from one worker to another; what goes over it is JSON."""

    def __init__(self, fleet: Fleet, caller: Machine, place) -> None:
        self.fleet = fleet
        self.caller = caller
        self.place = place
        self.peer = SimpleNamespace(connection=None, may=_may, need=_may, extra={}, principal="User:ANONYMOUS")

    async def send(self, request):
        """As `TcpConnection.send`."""
        callee = self.fleet.reached((self.place.host, self.place.port))
        if self.caller.dead or callee is None or callee.dead:
            raise NotConnected(f"{self.place.host} is not reached")
        name = request.name if isinstance(request, ProvenCall) else request.own.name
        self.fleet.calls[name, callee.number] += 1
        await self.fleet.clock.sleep(self.fleet.delays.get((name, callee.number), 0.0))
        api = endpoint(callee.worker.calls.ways())
        answered = await api.answer(SimpleNamespace(request=api.decode(write(request), 0, 0), peer=self.peer))
        answer = read(request.own.response, write(answered))
        if self.caller.dead or callee.dead:
            raise ConnectionError("the line broke")
        return answer

    async def close(self):
        """Nothing is kept open."""


class Fleet:
    """Workers, the Kafka below them, and members of share groups.

    async with Fleet(clock, workers=3) as fleet: …
    """

    def __init__(
        self,
        clock,
        *,
        workers: int = 1,
        slots: int = 4,
        name: str = "shop",
        config=None,
        settings=None,
        beside: Fleet | None = None,
    ) -> None:
        """settings: what the workers' URLs say. beside: another fleet on the same Kafka, which is there longer."""
        self.clock = clock
        self.name = name
        self.slots = slots
        self.config = config or ServerConfig.embedded({})
        self.settings = settings or {}
        self.beside = beside
        self.kafka = FakeKafka(clock) if beside is None else beside.kafka
        self.machines = [Machine(self, number) for number in range(workers)]
        self.calls: Counter[tuple[str, int]] = Counter()
        """Calls between workers, by name and the number of the one that was called."""
        self.delays: dict[tuple[str, int], float] = {}
        """Seconds that such a call is under way."""
        self._clusters: list[Cluster] = []
        self._members: list[ShareMember] = []

    async def __aenter__(self) -> Self:
        if self.beside is None:
            await self.kafka.__aenter__()
        # Only a storage itself makes topics with such a name; Kafka's brokers let anybody.
        await self.kafka.storage.create_topic(state_topic(self.name), partitions=self.slots, internal=True)
        await asyncio.gather(*(machine.start() for machine in self.machines))
        await self.settled()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(member.close(timeout_s=1.0) for member in self._members))
        await asyncio.gather(*(machine.stop() for machine in self.living))
        for machine in self.machines:
            if not machine.worker.ended:
                await machine.worker.close()
                await machine.cluster.close()
        for cluster in self._clusters:
            await cluster.close()
        if self.beside is None:
            await self.kafka.__aexit__()

    @property
    def living(self) -> list[Machine]:
        """Machines that are not dead."""
        return [machine for machine in self.machines if not machine.dead]

    def at(self, address: tuple[str, int]) -> Machine | None:
        """The machine at an address."""
        return next((machine for machine in self.machines if machine.address == tuple(address)), None)

    def reached(self, address: tuple[str, int]) -> Machine | None:
        """As `at`, machines of the fleet beside this one included."""
        found = self.at(address)
        return found if found is not None or self.beside is None else self.beside.at(address)

    async def add(self) -> Machine:
        """One worker more."""
        machine = Machine(self, len(self.machines))
        self.machines.append(machine)
        await machine.start()
        return machine

    async def settled(self, limit_s: float = 30.0) -> None:
        """Wait until each slot is served by exactly one worker."""
        async with asyncio.timeout(limit_s):
            while self.served() != list(range(self.slots)):
                await self.clock.sleep(0.05)

    def served(self) -> list[int]:
        """Slots that are served, each as often as it is."""
        return sorted(slot for machine in self.living for slot in machine.worker.served)

    def leader(self, topic: str, partition: int) -> Machine:
        """Who serves a share-partition."""
        from flowshare.slots.placement import share_slot

        slot = share_slot(self.kafka.storage.topics()[topic].topic_id, partition, self.slots)
        return next(machine for machine in self.living if slot in machine.worker.served)

    def coordinator(self, group: str) -> Machine:
        """Who coordinates a group."""
        from flowshare.slots.placement import group_slot

        slot = group_slot(group, self.slots)
        return next(machine for machine in self.living if slot in machine.worker.served)

    def stored(self, topic_id) -> list[bytes]:
        """Keys of what the fleet has stored of a topic's share-partitions."""
        led = [slot for machine in self.living for slot in machine.worker._slot_manager.led.values()]
        return sorted(key for slot in led for key, _ in slot.scan(b"s/") if topic_id.bytes in key)

    # --- the users ----------------------------------------------------------------------------------------------

    async def topic(self, name: str = "orders", partitions: int = 1) -> str:
        """A topic."""
        await self.kafka.storage.create_topic(name, partitions=partitions)
        return name

    async def produce(self, topic: str, *values: bytes, partition: int = 0) -> int:
        """Records; the first one's offset."""
        appended = await self.kafka.storage.append(topic, partition, batch(*values))
        return appended.base_offset

    def cluster(self, lives_at: Machine | None = None) -> Cluster:
        """The workers, as a client sees them. lives_at: it is in this one's process, and dies with it."""
        hosts = ["{}:{}".format(*machine.address) for machine in self.living]

        async def open_worker(host, port, client_id):
            if lives_at is not None and lives_at.dead:
                raise NotConnected("this machine is dead")
            machine = self.at((host, port))
            if machine is None:
                raise NotConnected(f"{host}:{port} is not there")
            connection = machine.serve(client_id, own)
            if lives_at is not None:
                lives_at.connections.append(connection)
            return connection

        own = None if lives_at is None else lives_at.worker.node_id
        cluster = Cluster(
            hosts,
            clock=self.clock,
            open_node=open_worker,
            local={} if lives_at is None else {own: lives_at.connect_own},
            fresh_addresses=self._addresses,
            worker=own,
            outdated=lambda: lives_at is not None and not lives_at.worker.sure,
            own_address=None if lives_at is None else "{}:{}".format(*lives_at.address),
        )
        self._clusters.append(cluster)
        return cluster

    def connection(self, client_id: str = "test") -> FleetConnection:
        """A client's connection to workers and Kafka."""
        brokers = self.kafka.cluster()
        self._clusters.append(brokers)
        return FleetConnection(self.cluster(), client_id, brokers.connect(client_id))

    def admin(self) -> ShareAdmin:
        """An administrator; closed by whoever asked."""

        async def connect() -> FleetConnection:
            return self.connection()

        return ShareAdmin(connect, clock=self.clock)

    def member(
        self, *topics: str, group: str = "g", member_id: str | None = None, lives_at: Machine | None = None
    ) -> ShareMember:
        """A member that is not started; lives_at: in the process of this worker."""
        cluster = self.cluster(lives_at)

        async def connect():
            await cluster.start()
            return cluster.connect("member")

        member = ShareMember(
            connect, group_id=group, topics=topics or ("orders",), clock=self.clock, member_id=member_id
        )
        self._members.append(member)
        return member

    async def configure(self, group: str = "g", **settings: str) -> None:
        """Settings of a group, by their last words: auto_offset_reset=…"""
        connection = self.connection()
        answer = await connection.send(
            m.IncrementalAlterConfigsRequest(resource_type="group", resource=group, configs=settings or EARLIEST)
        )
        assert answer.error is ErrorCode.NONE, answer
        await connection.close()

    async def _addresses(self):
        return ["{}:{}".format(*machine.address) for machine in self.living]
