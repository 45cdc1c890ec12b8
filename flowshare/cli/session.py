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
    _producer: RecordProducer | None = None

    @property
    def producer(self) -> RecordProducer:
        """A producer on this log."""
        if self._producer is None:
            from flowshare.backend import make_producer

            self._producer = make_producer(
                self.backend,
                lambda: self.backend.connect("flowshare-cli"),
                clock=self.clock,
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
async def open_session(url: str, *, create: bool = False) -> AsyncIterator[Session]:
    """Open the log at `url`: an embedded path beside the workers that run on it, or alone when there are none.

    create: make an embedded path that does not exist; without it that is a Failure, as it would be a typing mistake.
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
    session = Session(backend, ShareAdmin(lambda: backend.connect("flowshare-cli"), clock=clock), clock)
    try:
        yield session
    finally:
        await session.close()


def run(url: str, function: Callable[[Session], Awaitable[T]], *, create: bool = False) -> T:
    """Open the log, await `function(session)`, close the log."""

    async def call() -> T:
        async with open_session(url, create=create) as session:
            return await function(session)

    return asyncio.run(call())


def embedded_path(url: str) -> Path | None:
    """The folder of an embedded broker URL; None for other kinds. Raises: what `parse_broker` refuses with."""
    from flowshare.backend.url import parse_broker

    parsed = parse_broker(url)
    return Path(parsed.path) if parsed.kind == "embedded" and parsed.path is not None else None
