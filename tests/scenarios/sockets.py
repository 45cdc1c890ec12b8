"""An event loop that knows when nothing is on its way between its own sockets any more.

With both ends of every connection in one loop, bytes that one end wrote and the other has not been handed yet are
counted, and so are connections that only one end knows of, or that only one end has let go. When nothing is left of
that and no callback is ready, every request has been accepted and every answer taken: no sleeping, no guessing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from flowshare.testing.clock import ManualClock
from tests.scenarios.world import ThreadsLoop, idle

Factory = Callable[[], asyncio.Protocol]
Ends = frozenset[Any]


class End(asyncio.Protocol):
    """One end of a connection: hands everything on to the protocol behind it and counts bytes."""

    def __init__(self, lines: Lines, inner: asyncio.Protocol) -> None:
        self.inner = inner
        self.written = self.received = 0
        self.closing = self.lost = False
        self._lines = lines
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        ends = frozenset((transport.get_extra_info("sockname"), transport.get_extra_info("peername")))
        self._lines.join(ends, self)
        self.inner.connection_made(self)  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self.inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    # What the protocol behind sees as its transport.

    def write(self, data: bytes) -> None:
        self.written += len(data)
        self._transport.write(data)

    def close(self) -> None:
        self.closing = True
        self._transport.close()

    def abort(self) -> None:
        self.closing = True
        self._transport.abort()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Lines:
    """All connections of a loop, each by its two addresses."""

    def __init__(self) -> None:
        self.connecting = 0
        self._ends: dict[Ends, list[End]] = {}

    def join(self, ends: Ends, end: End) -> None:
        """One end is there."""
        self._ends.setdefault(ends, []).append(end)

    @property
    def busy(self) -> bool:
        """True if bytes, or the news of a connection, are on their way."""
        for ends in [ends for ends, line in self._ends.items() if len(line) == 2 and all(end.lost for end in line)]:
            del self._ends[ends]
        return self.connecting > 0 or any(_is_busy(line) for line in self._ends.values())


def _is_busy(line: list[End]) -> bool:
    if len(line) < 2:
        return True
    one, other = line
    if any(end.closing or end.lost for end in line):
        return True
    return one.written != other.received or other.written != one.received


class CountingLoop(ThreadsLoop):
    """An event loop whose connections are counted."""

    def __init__(self) -> None:
        super().__init__()
        self._lines = Lines()

    @property
    def in_flight(self) -> bool:
        """True if bytes, or news of a connection or of a thread, are on their way."""
        return super().in_flight or self._lines.busy

    async def create_connection(self, protocol_factory: Factory, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """As asyncio's."""
        self._lines.connecting += 1
        try:
            made = await super().create_connection(lambda: End(self._lines, protocol_factory()), *args, **kwargs)
        finally:
            self._lines.connecting -= 1
        transport, end = made
        return transport, end.inner

    async def connect_accepted_socket(self, protocol_factory: Factory, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """As asyncio's."""
        transport, end = await super().connect_accepted_socket(
            lambda: End(self._lines, protocol_factory()), *args, **kwargs
        )
        return transport, end.inner


class SocketClock(ManualClock):
    """A manual clock that lets everything arrive between one timer and the next."""

    async def advance(self, seconds: float) -> None:
        """Move time forward by `seconds`."""
        end_s = self.monotonic() + seconds
        await idle()
        while (due_s := self.next_due_s()) is not None and self.monotonic() + due_s <= end_s:
            await super().advance(due_s)
            await idle()
        await super().advance(max(0.0, end_s - self.monotonic()))
        await idle()
