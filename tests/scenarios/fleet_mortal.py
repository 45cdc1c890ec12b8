"""A fleet of three worker processes of a scenario's own as a subject: they can be ended, in order or not.

What ends is the whole fleet, as a server would, and three other workers come in its place.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path

from flowshare.dev.broker import DevBroker
from tests.fleet.processes import FleetProcesses
from tests.scenarios.fleet import SETTINGS, FleetSubject
from tests.scenarios.language import Outcome, Scenario, Step


class MortalSubject(FleetSubject):
    """Runs steps on processes of its own, started with the first of them."""

    # While all workers are replaced no scenario's member sends heartbeats; a coordinator that comes over waits for one.
    settings: Mapping[str, str] = {**SETTINGS, "share.heartbeat.interval.ms": "30000"}

    def __init__(self, kafka: DevBroker, scenario: Scenario) -> None:
        super().__init__(kafka.addresses[0], (), scenario)
        self._kafka = kafka
        self._folder = tempfile.TemporaryDirectory()
        self._processes: FleetProcesses | None = None

    async def perform(self, step: Step) -> Outcome:
        """As on any fleet."""
        if self._processes is None:
            self._processes = await asyncio.to_thread(FleetProcesses, self._kafka, Path(self._folder.name))
            self.fleet.workers = self._processes.addresses
        return await super().perform(step)

    async def again(self, *, crash: bool) -> Outcome:
        """Other workers lead the same slots; all connections are gone."""
        assert self._processes is not None
        await asyncio.to_thread(self._processes.replace, kill=crash)
        await self.fleet.forget(self._processes.addresses)
        self.sessions.clear()
        self.known_as_loaded.clear()
        self.admin = None
        self._watch = None
        return Outcome()

    async def close(self) -> None:
        """End the processes too."""
        await super().close()
        if self._processes is not None:
            self._processes.close()
        self._folder.cleanup()
