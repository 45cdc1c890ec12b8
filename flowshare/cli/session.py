"""What commands that talk to a log need: backend, admin client and producer, opened and closed in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from flowshare.cli.errors import Failure

if TYPE_CHECKING:
    from flowshare.backend.base import Backend
    from flowshare.client.admin import ShareAdmin
    from flowshare.client.producing import RecordProducer
    from flowshare.client.settings import ProducerSettings
    from flowshare.clock import Clock

T = TypeVar("T")

PATIENCE_S: Final = 5.0
"""How long a command waits for one of an embedded path's workers to lead it before it opens the path itself."""


@dataclass(slots=True)
class Session:
    """An open log. `producer` is made when first asked for."""

    backend: Backend
    admin: ShareAdmin
    clock: Clock
    producer_settings: ProducerSettings | None = None
    """Of the producer, when it is made: what an app says."""
    _producer: RecordProducer | None = None

    def send_as(self, app_path: str | None) -> None:
        """Let the producer be made as the app's, before it is asked for. Raises: AppNotFound, UsageError."""
        if app_path:
            from flowshare.agents.loading import load_app

            self.producer_settings = load_app(app_path).producer_settings

    @property
    def led(self) -> bool:
        """Whether somebody leads the groups; False: workers do, and none of them runs."""
        return bool(getattr(getattr(self.backend, "chosen", self.backend), "led", True))

    @property
    def leads(self) -> bool:
        """Whether this process has an embedded path to itself, or leads a fleet of which no worker runs."""
        from flowshare.backend.embedded import EmbeddedBackend

        backend = getattr(self.backend, "chosen", self.backend)
        if isinstance(backend, EmbeddedBackend):
            return backend.leading
        return getattr(backend, "worker", None) is not None

    @property
    def producer(self) -> RecordProducer:
        """A producer on this log."""
        if self._producer is None:
            from flowshare.backend import make_producer

            self._producer = make_producer(
                self.backend,
                lambda: self.backend.connect("flowshare-cli"),
                clock=self.clock,
                settings=self.producer_settings,
                client_id="flowshare-cli",
            )
        return self._producer

    async def close(self) -> None:
        """Close what was opened, last first."""
        if self._producer is not None:
            await self._producer.close()
        await self.admin.close()
        await self.backend.close()


@asynccontextmanager
async def open_session(url: str, *, create: bool = False, groups: bool = False) -> AsyncIterator[Session]:
    """Open the log at `url`: an embedded path beside the workers that run on it, or alone when there are none.

    create: make an embedded path, or a fleet, that does not exist; without it that is a Failure, as it would be a
    typing mistake. groups: it is about groups: where workers lead them and none runs, this process leads meanwhile.
    Raises: Failure, and what the backend refuses with (StorageHeld names the holder).
    """
    from flowshare.backend import open_backend
    from flowshare.client.admin import ShareAdmin
    from flowshare.clock import LoopClock

    path = embedded_path(url)
    if path is not None and not create and not path.exists():
        raise Failure(f"nothing is stored at {path} yet; a worker, or `flowshare topics create`, makes it")
    clock = LoopClock()
    backend = open_backend(url, clock=clock, listen=False, patience_s=PATIENCE_S)
    await backend.start()
    if groups:
        backend = await _led(backend, url, create=create)
    session = Session(backend, ShareAdmin(lambda: backend.connect("flowshare-cli"), clock=clock), clock)
    try:
        yield session
    finally:
        await session.close()


async def _led(backend: Backend, url: str, *, create: bool) -> Backend:
    """The backend, or one that leads in place of a fleet of which no worker runs. Raises: Failure, BackendError."""
    if getattr(getattr(backend, "chosen", backend), "led", True):
        return backend
    await backend.close()
    from flowshare.backend import parse_broker
    from flowshare.backend.fleet_options import fleet_of
    from flowshare.cli.leading import lead_here, slots_of

    broker = parse_broker(url)
    slots = await slots_of(broker)
    if not slots and not create:
        raise Failure(
            f"the fleet {fleet_of(broker)} has no state on {broker} yet; a worker makes it, or name another one"
        )
    return await lead_here(broker, slots)


def run(url: str, function: Callable[[Session], Awaitable[T]], *, create: bool = False, groups: bool = False) -> T:
    """Open the log as `open_session` does, await `function(session)`, close the log."""

    async def call() -> T:
        async with open_session(url, create=create, groups=groups) as session:
            return await function(session)

    return asyncio.run(call())


def run_on_groups(url: str, function: Callable[[Session], Awaitable[T]], *, create: bool = False) -> T:
    """`run` for what is about groups."""
    return run(url, function, create=create, groups=True)


def embedded_path(url: str) -> Path | None:
    """The folder of an embedded broker URL; None for other kinds. Raises: what `parse_broker` refuses with."""
    from flowshare.backend.url import parse_broker

    parsed = parse_broker(url)
    return Path(parsed.path) if parsed.kind == "embedded" and parsed.path is not None else None
