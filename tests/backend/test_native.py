"""Opening a Kafka cluster: what is refused, and with which words."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from flowshare.backend import open_backend
from flowshare.backend.base import NATIVE, BackendError
from flowshare.backend.native import NativeBackend
from flowshare.backend.url import parse_broker
from flowshare.testing.clock import ManualClock
from tests.client.worlds import within

pytestmark = pytest.mark.asyncio
KAFKA_43 = {76: (1, 1), 78: (1, 2), 79: (1, 2)}


@pytest.mark.parametrize("versions", [{}, {76: (1, 1)}, {**KAFKA_43, 78: (0, 0)}, {**KAFKA_43, 79: (1, 1)}])
async def test_brokers_without_share_groups_are_refused_naming_kafka_42_and_workers(versions):
    backend = NativeBackend(parse_broker("kafka://a:1"), clock=ManualClock())

    with pytest.raises(BackendError, match=r"Kafka 4\.2.*workers"):
        backend._check(SimpleNamespace(api_versions=versions))

    backend._check(SimpleNamespace(api_versions=KAFKA_43))


async def test_a_cluster_that_cannot_be_reached_is_refused_after_a_while():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        clock = ManualClock()
        backend = open_backend(f"kafka://{address}", clock=clock)

        with pytest.raises(BackendError, match=f"{address} cannot be reached"):
            await within(clock, 3600, backend.start())


async def test_a_backend_that_is_not_open_gives_no_connection_and_closes_quietly():
    backend = open_backend("kafka://127.0.0.1:1?share=native")

    with pytest.raises(BackendError, match="not open"):
        await backend.connect("x")
    await backend.close()

    assert (backend.kind, backend.capabilities, backend.stats()) == ("native", NATIVE, {})
