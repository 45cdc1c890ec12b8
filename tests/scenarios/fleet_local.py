"""A fleet of three workers in this process, on a real Kafka, for scenarios that want more of it than sockets reach.

Its workers have the settings of a scenario, their writes can be held or made to fail, and state can be put into their
slots. They are real otherwise: members and the workers among each other use sockets, state goes to Kafka.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

from flowshare.backend.fleet import WorkersBackend
from flowshare.backend.fleet_options import FleetPlace
from flowshare.backend.url import parse_broker
from flowshare.log.base import StorageError
from flowshare.slots.placement import slot_of_key
from tests.scenarios.kafka_world import until
from tests.scenarios.settings import server_config

WORKERS = 3
Entry = tuple[bytes, bytes | None]


class Gate:
    """How the workers' writes end: at once, never, or when it is said how (as `storage.Persister`)."""

    def __init__(self) -> None:
        self.mode = "ok"
        self._held: list[asyncio.Future[bool]] = []

    async def passed(self) -> None:
        """Raises: StorageError."""
        good = self.mode == "ok"
        if self.mode == "hold":
            held = asyncio.get_running_loop().create_future()
            self._held.append(held)
            good = await held
        if not good:
            raise StorageError("no space left on the device")

    def settle(self, *, good: bool) -> None:
        """End the writes that are held, and write at once from now on."""
        self.mode = "ok"
        for held in self._held:
            if not held.done():
                held.set_result(good)
        self._held.clear()


class LocalFleet:
    """async with LocalFleet(address, config, slots=6) as fleet: …"""

    def __init__(self, kafka: str, config: str, *, slots: int) -> None:
        self.gate = Gate()
        self.slots = slots
        url = f"kafka://{kafka}?share=workers&fleet=local-{uuid.uuid4().hex[:8]}&slots={slots}&listen=127.0.0.1:0"
        self._backends = [_backend(url, config) for _ in range(WORKERS)]

    async def __aenter__(self) -> Self:
        await asyncio.gather(*(backend.start() for backend in self._backends))

        async def served() -> list[frozenset[int]]:
            return [worker.served for worker in self._workers()]

        def right(led: list[frozenset[int]]) -> bool:
            shared = all(led) or self.slots < WORKERS
            return shared and sorted(slot for one in led for slot in one) == list(range(self.slots))

        assert right(await until(served, right))
        for worker in self._workers():
            for slot in worker._slot_manager.led.values():
                slot.write = self._gated(slot.write)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.gate.settle(good=True)
        await asyncio.gather(*(backend.close() for backend in self._backends))

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of all workers."""
        return tuple(str(backend.bootstrap) for backend in self._backends)

    async def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Return the slots' entries under a prefix."""
        return sorted(entry for slot in self._led().values() for entry in slot.scan(prefix))

    async def write(self, entries: Sequence[Entry]) -> None:
        """Put into the slots what a worker may read later."""
        for entry in entries:
            await self._led()[slot_of_key(entry[0], self.slots)].write([entry])

    def _workers(self) -> list[Any]:
        return [backend.worker for backend in self._backends if backend.worker is not None]

    def _led(self) -> dict[int, Any]:
        return {number: slot for worker in self._workers() for number, slot in worker._slot_manager.led.items()}

    def _gated(self, write: Callable[[Sequence[Entry]], Any]) -> Callable[[Sequence[Entry]], Any]:
        async def gated(entries: Sequence[Entry]) -> None:
            await self.gate.passed()
            await write(entries)

        return gated


def _backend(url: str, config: str) -> WorkersBackend:
    class Place(FleetPlace):
        def options(self) -> Any:
            return replace(FleetPlace.options(self), config=server_config(config))

    broker = parse_broker(url)
    backend = WorkersBackend(broker)
    backend._place = Place.of(broker, lead=True)
    return backend
