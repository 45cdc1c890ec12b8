"""A `kafka://` address at which flowshare's own server answers (`flowshare serve`, the port of a path): all that an
embedded path does is there, without a fleet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import flowshare as fs
from flowshare.backend import open_backend
from flowshare.backend.base import EMBEDDED, BackendError
from flowshare.backend.embedded import EmbeddedBackend

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def served(path: Path) -> AsyncIterator[str]:
    """The URL of a server with ten records in two partitions of `orders`."""
    backend = EmbeddedBackend(path, open_to_all=True)
    await backend.start()
    try:
        url = f"kafka://{backend.bootstrap}"
        async with fs.Broker(url) as broker:
            await fs.ShareAdmin(broker).create_topic("orders", partitions=2)
            producer = fs.Producer(broker)
            for number in range(10):
                await producer.send("orders", b"%d" % number, key=b"k%d" % (number % 5))
        yield url
    finally:
        await backend.close()


@pytest.mark.parametrize("share", ["auto", "native"])
async def test_a_cooperative_consumer_reads_and_commits(tmp_path: Path, share: str) -> None:
    async with served(tmp_path / "log") as url:
        async with fs.CooperativeConsumer(f"{url}?share={share}", ["orders"], group_id="g") as consumer:
            seen: list[bytes | None] = []
            while len(seen) < 10:
                for record in await consumer.poll(30.0):
                    seen.append(record.value)
                    assert consumer.commit(record)
            await consumer.commit_sync()
        assert sorted(seen, key=str) == [b"%d" % number for number in range(10)]
        async with fs.ShareAdmin(url) as admin:
            assert await admin.cooperative.names() == ["g"]
            assert sum(one.stable for one in await admin.cooperative.offsets("g")) == 10


async def test_a_share_consumer_settles_with_outputs_and_releases_with_a_delay(tmp_path: Path) -> None:
    settings = fs.ConsumerSettings(acknowledgement_mode="explicit")
    async with served(tmp_path / "log") as url, fs.Broker(url) as broker:
        admin = fs.ShareAdmin(broker)
        await admin.create_topic("out", partitions=1)
        await admin.alter_group_configs("g", {"share.auto.offset.reset": "earliest"})
        consumer = fs.ShareConsumer(broker, ["orders"], group_id="g", settings=settings)
        attempts: dict[bytes, int] = {}
        while len(attempts) < 10 or attempts[b"3"] < 2:
            for record in await consumer.poll(1.0):
                assert record.value is not None
                attempts[record.value] = record.attempt
                if record.value == b"3" and record.attempt == 1:
                    consumer.release(record, delay=0.2)
                else:
                    assert await consumer.settle([record], {"out": [record.value]})
        assert sum(one.lag for one in await admin.group_offsets("g")) == 0
        assert attempts == {**dict.fromkeys((b"%d" % number for number in range(10)), 1), b"3": 2}
        assert (await admin.offsets("out", 0)).high_watermark == 10


async def test_agents_find_there_what_they_ask_for(tmp_path: Path) -> None:
    async with served(tmp_path / "log") as url:
        asked = {"shop.ship": ("order='key'", "max_in_flight=5")}
        backend = open_backend(url, asked=asked, cooperative=["shop.bill"])
        await backend.start()
        try:
            assert (backend.kind, backend.capabilities) == ("native", EMBEDDED)
        finally:
            await backend.close()


async def test_kafkas_brokers_keep_no_cooperative_groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from flowshare.client.net.cluster import Cluster

    started = Cluster.start

    async def start(cluster: Cluster) -> None:
        await started(cluster)
        cluster.is_flowshare = False

    monkeypatch.setattr(Cluster, "start", start)
    async with served(tmp_path / "log") as url:
        backend = open_backend(f"{url}?share=native", cooperative=["shop.bill"])
        with pytest.raises(BackendError, match=r"no committed sets.*shop\.bill.*share='workers'"):
            await backend.start()
