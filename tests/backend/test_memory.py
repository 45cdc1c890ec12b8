"""The memory backend: open, use, close."""

from __future__ import annotations

import pytest

from flowshare.backend import open_backend
from flowshare.backend.base import BackendError
from flowshare.backend.memory import MemoryBackend
from flowshare.protocol.messages import CreateTopicRequest, MetadataRequest
from flowshare.testing.clock import ManualClock

pytestmark = pytest.mark.asyncio


async def test_a_backend_serves_from_start_to_close() -> None:
    backend = open_backend("memory://", clock=ManualClock())
    with pytest.raises(BackendError, match="not open"):
        await backend.connect("c")

    await backend.start()
    connection = await backend.connect("c")
    await connection.send(CreateTopicRequest(name="t"))
    assert backend.stats()["connections"] == 1
    with pytest.raises(BackendError, match="open already"):
        await backend.start()
    await backend.close()

    with pytest.raises(ConnectionError):
        await connection.send(MetadataRequest())
    assert backend.stats() == {}
    await backend.close()


async def test_a_memory_backend_keeps_nothing() -> None:
    backend = MemoryBackend(clock=ManualClock())
    for _ in range(2):
        await backend.start()
        connection = await backend.connect("c")
        assert (await connection.send(MetadataRequest())).topics == ()
        await connection.send(CreateTopicRequest(name="t"))
        await backend.close()

    assert backend.kind == "memory"
    assert not backend.capabilities.durable
