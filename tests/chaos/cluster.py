"""A real Kafka whose every place for a worker has a listener of its own, advertised at that place's proxy.

So whatever a worker says to the broker, at whichever address it learnt, passes its proxy; the test itself and the
producers use the plain listener. Ports stay over restarts.
"""

from __future__ import annotations

from pathlib import Path

from flowshare.dev.broker import DevBroker, Wanted, start
from flowshare.dev.jars import VERSION
from flowshare.dev.probe import HOST, free_ports
from tests.chaos.proxy import Proxy, Wires
from tests.jvm import QUICK_JVM


class MortalKafka:
    """One node. `proxies`: one for each place, in front of that place's listener."""

    def __init__(self, folder: Path, wires: Wires, places: int, *, version: str = VERSION) -> None:
        self._folder = folder / "kafka"
        self.proxies: list[Proxy] = [wires.proxy() for _ in range(places)]
        self._port, controller, *ports = free_ports(2 + places)
        names = [f"PLACE{number}" for number in range(places)]
        for proxy, port in zip(self.proxies, ports, strict=True):
            proxy.target = port
        listened = {
            "PLAINTEXT": self._port,
            **dict(zip(names, ports, strict=True)),
            "CONTROLLER": controller,
        }
        advertised = {"PLAINTEXT": self._port} | {
            name: proxy.port for name, proxy in zip(names, self.proxies, strict=True)
        }
        self._wanted = Wanted(
            version=version,
            port=self._port,
            data=self._folder,
            heap="512m",
            jvm=QUICK_JVM,
            settings={
                "listeners": _addresses(listened),
                "advertised.listeners": _addresses(advertised),
                "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listened),
                "controller.quorum.voters": f"1@{HOST}:{controller}",
                # One that died and comes again is let in by its controller when its old session is over.
                "broker.heartbeat.interval.ms": "300",
                "broker.session.timeout.ms": "2000",
            },
        )
        self._broker: DevBroker | None = None

    @property
    def bootstrap(self) -> str:
        """The listener without a proxy."""
        return f"{HOST}:{self._port}"

    def start(self) -> None:
        """Start it, or start it again with its data. Raises: DevFailure."""
        self._broker = start(self._wanted, tied=True, how="jars")

    def stop(self, *, kill: bool) -> None:
        """End it, in order or by SIGKILL; the data stays."""
        broker, self._broker = self._broker, None
        if broker is None:
            return
        if kill:
            for one in broker.processes:
                one.end(0)
        broker.end()


def _addresses(ports: dict[str, int]) -> str:
    return ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())
