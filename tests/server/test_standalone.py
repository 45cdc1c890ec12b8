"""The life of a server of its own: what opened is closed."""

from __future__ import annotations

import pytest

from flowshare.clock import LoopClock
from flowshare.log.base import StorageError
from flowshare.log.memory import MemoryStorage
from flowshare.server.net.listener import Listener
from flowshare.server.server import Server
from flowshare.server.share.service import ShareService
from flowshare.server.standalone import Address, Standalone, StandaloneOptions
from flowshare.share.config import ServerConfig

pytestmark = pytest.mark.asyncio


@pytest.fixture
def closed(monkeypatch) -> list[str]:
    """The parts of servers that were closed, in order."""
    names = list[str]()

    def note(kind: type, name: str) -> None:
        real = kind.close

        async def close(self) -> None:
            await real(self)
            names.append(name)

        monkeypatch.setattr(kind, "close", close)

    note(Server, "server")
    note(MemoryStorage, "storage")
    return names


def broker() -> Standalone:
    """A server in memory, at any free port."""
    return Standalone(StandaloneOptions(data=None, listen=Address.parse("127.0.0.1:0")), clock=LoopClock())


async def test_the_rest_of_a_server_is_closed_when_its_socket_fails_to_close(monkeypatch, closed) -> None:
    real = Listener.close

    async def fails(self) -> None:
        await real(self)
        raise OSError("a fault")

    monkeypatch.setattr(Listener, "close", fails)
    opened = broker()
    await opened.start()

    with pytest.raises(OSError, match="a fault"):
        await opened.close()

    assert closed == ["server", "storage"]


async def test_a_server_that_fails_while_it_starts_is_closed(monkeypatch, closed) -> None:
    async def fails(self) -> None:
        raise StorageError("a fault")

    monkeypatch.setattr(Server, "start", fails)

    with pytest.raises(StorageError, match="a fault"):
        await broker().start()

    assert closed == ["server", "storage"]


async def test_what_share_partitions_have_to_write_is_written_though_other_parts_fail_to_close(monkeypatch) -> None:
    written = list[str]()

    async def fails(self) -> None:
        raise OSError("a fault")

    async def noted(self) -> None:
        written.append("partitions")

    monkeypatch.setattr(ShareService, "close_groups", fails)
    monkeypatch.setattr(ShareService, "close_partitions", noted)
    storage = MemoryStorage(LoopClock())
    server = Server(storage=storage, config=ServerConfig.embedded(), clock=LoopClock())
    await server.start()

    with pytest.raises(OSError, match="a fault"):
        await server.close()
    await storage.close()

    assert written == ["partitions"]
