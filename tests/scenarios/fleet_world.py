"""The world of a scenario on a fleet of workers: a real Kafka for its records, sockets to everybody."""

from __future__ import annotations

from collections.abc import Sequence

from flowshare.backend.fleet import FleetConnection
from flowshare.client.net.cluster import Cluster
from flowshare.client.net.connections import OpenNode
from flowshare.protocol.messages import Connection
from tests.scenarios.fleet_local import LocalFleet
from tests.scenarios.fleet_wire import FleetWire
from tests.scenarios.kafka_world import SCALE, KafkaWorld
from tests.scenarios.language import Scenario
from tests.scenarios.renaming import Renaming


class FleetWorld(KafkaWorld):
    """The brokers of a test run, the workers of a fleet there, and what one scenario has on them."""

    def __init__(self, kafka: str, workers: Sequence[str], scenario: Scenario, local: LocalFleet | None = None) -> None:
        super().__init__(kafka, scenario)
        operations = {step.operation for step in scenario.steps()}
        if {"partitions", "delete_topic"} & operations:
            self.scale = 1  # the workers may take seconds to hear of it
        if "crash" in operations:
            self.scale = SCALE  # what a member holds outlives its leader, until the lock lapses
        self.storage = local
        self.persister = None if local is None else local.gate
        self.workers = tuple(workers)
        self._known: tuple[Cluster, Cluster] | None = None

    async def connect(self, name: str) -> Connection:
        """Sockets of its own, on which the scenario's names are used."""
        return Renaming(await self.plain(name), self.suffix)

    async def plain(self, name: str) -> FleetWire:
        """The same with the names that everybody knows."""
        brokers, workers = await self.known()
        wire = FleetWire(brokers.connect(name), workers, name)
        self._open.append(wire)
        return wire

    def settle(self, *, good: bool) -> None:
        """End the writes that are held, and write at once from now on."""
        if self.persister is not None:
            self.persister.settle(good=good)

    async def known(self) -> tuple[Cluster, Cluster]:
        """Brokers and workers, as all bare connections of the scenario know them."""
        if self._known is None:
            brokers = await self._cluster(["{}:{}".format(*self.address)])
            self._known = brokers, await self._cluster(self.workers)
        return self._known

    async def forget(self, workers: Sequence[str]) -> None:
        """Other workers are there now: all sockets are closed, who leads what has to be found out anew."""
        await self.stop(crash=True)
        self._open.clear()
        self.workers, self._known = tuple(workers), None

    async def _consumer(self, name: str, open_node: OpenNode) -> Connection:
        """As flowshare's own consumers connect to a fleet."""
        brokers = await self._cluster(["{}:{}".format(*self.address)], open_node)
        return FleetConnection(await self._cluster(self.workers, open_node), name, brokers.connect(name))
