"""The world of a scenario on a real Kafka: sockets to the broker, names of its own, a scale of time."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from flowshare.client.net.cluster import Cluster
from flowshare.client.net.connections import NodeConnection, OpenNode
from flowshare.client.net.tcp import open_tcp
from flowshare.client.settings import LinkSettings
from flowshare.clock import LoopClock
from flowshare.protocol.messages import Connection
from tests import waiting
from tests.scenarios.language import Scenario
from tests.scenarios.renaming import Renaming
from tests.scenarios.server_tcp import Wire

SCALE = 5
"""How much shorter time is here, in scenarios where it passes."""
SHORT_MS = 1000
LIMIT_S = 60.0
LOOK_S = 0.02


class KafkaWorld:
    """The broker of a test run, and what one scenario has on it."""

    def __init__(self, address: str, scenario: Scenario) -> None:
        host, _, port = address.rpartition(":")
        self.address = host, int(port)
        self.clock = LoopClock()
        self.suffix = f"-{uuid.uuid4().hex[:8]}"
        self.scale = scale_of(scenario)
        self._settings = LinkSettings()
        self._clusters: list[Cluster] = []
        self._open: list[Connection] = []

    async def connect(self, name: str) -> Connection:
        """A new socket."""
        wire = Wire(await open_tcp(*self.address, client_id=name, clock=self.clock, settings=self._settings))
        self._open.append(wire)
        return Renaming(wire, self.suffix)

    async def consume(self, name: str) -> Connection:
        """As flowshare's own consumers connect; closing it closes every socket of the consumer."""
        opened: list[NodeConnection] = []

        async def open_node(host: str, port: int, client_id: str) -> NodeConnection:
            opened.append(await open_tcp(host, port, client_id=client_id, clock=self.clock, settings=self._settings))
            return opened[-1]

        connection = await self._consumer(name, open_node)
        close = connection.close

        async def close_all() -> None:
            for socket in opened:
                await socket.close()
            await close()

        connection.close = close_all  # type: ignore[method-assign]
        return connection

    async def _consumer(self, name: str, open_node: OpenNode) -> Connection:
        return (await self._cluster(["{}:{}".format(*self.address)], open_node)).connect(name)

    async def _cluster(self, addresses: Sequence[str], open_node: OpenNode | None = None) -> Cluster:
        cluster = Cluster(addresses, clock=self.clock, open_node=open_node)
        self._clusters.append(cluster)
        await cluster.start()
        return cluster

    def real(self, name: str) -> str:
        """Return the broker's name for a scenario's topic or group."""
        return name + self.suffix

    def named(self, real: str) -> str:
        """Return the scenario's name for a topic or group of the broker."""
        return real.removesuffix(self.suffix)

    async def drive(self, work: Awaitable[Any]) -> Any:
        """Wait until `work` is done."""
        return await asyncio.wait_for(work, 4 * LIMIT_S)

    def settle(self, *, good: bool) -> None:
        """A broker's writes are its own business."""

    async def stop(self, *, crash: bool) -> None:
        """Close all sockets."""
        del crash
        for connection in self._open:
            await connection.close()

    async def close(self) -> None:
        """Let go of the clusters."""
        for cluster in self._clusters:
            await cluster.close()


def scale_of(scenario: Scenario) -> float:
    """How much shorter time is: a fifth where locks lapse, five times longer where a fetch is parked for a moment."""
    steps = scenario.steps()
    if any(1 <= int(step.options.get("wait", "0")) <= SHORT_MS for step in steps):
        return 1 / SCALE
    return SCALE if any(step.operation == "time" for step in steps) else 1


async def until(look: Callable[[], Awaitable[Any]], right: Callable[[Any], bool]) -> Any:
    """Look again until it is right, at most for `LIMIT_S`; what was seen last."""
    return await waiting.until(look, good=right, limit_s=LIMIT_S, look_s=LOOK_S, or_last=True)
