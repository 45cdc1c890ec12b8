"""The embedded backend: what it keeps from one start to the next, and who may hold its path."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flowshare.backend import open_backend
from flowshare.backend.embedded import EmbeddedBackend
from flowshare.backoff import Backoff
from flowshare.groups.types import Supported
from flowshare.log import commits
from flowshare.log.base import StorageFull
from flowshare.log.store import RocksStore
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    CreateTopicRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    ProduceRequest,
    SettleOutput,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareGroupHeartbeatRequest,
    SharePartitionRequest,
    ShareSettleRequest,
    TopicPartition,
)
from flowshare.share.types import AckRange
from tests.server.world import EARLIEST, batch, ranges
from tests.sim.clock import HastyClock
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.asyncio


def fetch(member_id: str, at: TopicPartition) -> ShareFetchRequest:
    return ShareFetchRequest(
        group_id="g",
        member_id=member_id,
        session_epoch=0,
        max_wait_ms=0,
        partitions=(SharePartitionRequest(*at),),
    )


class Full:
    """A disk that takes nothing from now on. tried_again: the storage was to be opened again meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tried_again = False
        monkeypatch.setattr(RocksStore, "commit", self._commit)
        monkeypatch.setattr(RocksStore, "reopen", self._reopen)
        monkeypatch.setattr(commits, "USUAL", Backoff(0.005, 5.0))

    def _commit(self, _steps: object) -> None:
        raise StorageFull("no room")

    def _reopen(self) -> None:
        self.tried_again = True
        raise StorageFull("no room")


async def test_what_was_accepted_stays_accepted_over_a_restart(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/shop"
    backend = open_backend(url)
    await backend.start()
    connection = await backend.connect("c")
    made = await connection.send(CreateTopicRequest(name="t"))
    assert made.topic_id is not None
    at = TopicPartition(made.topic_id, 0)
    await connection.send(IncrementalAlterConfigsRequest(resource_type="group", resource="g", configs=EARLIEST))
    await connection.send(ProduceRequest(topic="t", partition=0, records=batch(10)))
    assert ranges(await connection.send(fetch("m1", at))) == [(0, 9, 1)]
    partitions = (SharePartitionRequest(*at, (AckRange(0, 3, b"\x01"), AckRange(6, 6, b"\x01"))),)
    answer = await connection.send(
        ShareAcknowledgeRequest(group_id="g", member_id="m1", session_epoch=1, partitions=partitions)
    )
    assert [p.error for p in answer.partitions] == [ErrorCode.NONE]
    await backend.close()

    backend = open_backend(url)
    await backend.start()
    connection = await backend.connect("c")

    assert ranges(await connection.send(fetch("m2", at))) == [(4, 5, 2), (7, 9, 2)]
    await backend.close()


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["removed", "replaced", "emptied"])
async def test_who_leads_a_path_that_is_gone_and_who_joined_it_are_told_and_make_no_new_one(
    tmp_path: Path, gone: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, elsewhere = tmp_path / "path", tmp_path / "elsewhere"
    backends = [EmbeddedBackend(path, clock=HastyClock(0.1)) for _ in range(2)]
    told: list[asyncio.Future[Exception]] = []
    for backend in backends:
        await backend.start()
        told.append(asyncio.get_running_loop().create_future())
        backend.on_lost(told[-1].set_result)
    assert [backend.leading for backend in backends] == [True, False]

    if gone == "emptied":
        (path / "store").rename(elsewhere)
    else:
        path.rename(elsewhere)
    if gone == "replaced":
        path.mkdir(mode=0o700)
    async with asyncio.timeout(30):
        errors = await asyncio.gather(*told)

    for backend, error in zip(backends, errors, strict=True):
        assert str(error).startswith(f"{path} was removed or replaced while this process worked on it: put it back")
        with pytest.raises(ConnectionError, match="was removed or replaced"):
            await backend.connect("c")
        await backend.close()
    assert caplog.text.count("was removed or replaced") == len(backends)  # each says it once
    assert not (path / "store").exists()


@pytest.mark.slow
async def test_a_path_whose_leader_is_gone_is_taken_over_by_who_joined_it(tmp_path: Path) -> None:
    first, second = (EmbeddedBackend(tmp_path / "path", clock=HastyClock(0.1)) for _ in range(2))
    await first.start()
    await second.start()
    lost: list[Exception] = []
    second.on_lost(lost.append)
    await first.close()
    await until(lambda: second.leading)

    assert await second.connect("c")
    assert lost == []
    await second.close()


async def test_members_in_the_leaders_process_hear_as_soon_as_the_others_of_what_one_leaves(tmp_path: Path) -> None:
    intervals = []
    backends = [open_backend(f"embedded://{tmp_path}/it"), open_backend(f"embedded://{tmp_path}/it")]
    for number, backend in enumerate(backends):
        await backend.start()
        connection = await backend.connect("test")
        beat = await connection.send(
            ShareGroupHeartbeatRequest(group_id="g", member_id=f"m{number}", member_epoch=0, subscribed_topics=("t",))
        )
        intervals.append(beat.heartbeat_interval_ms)
    for backend in backends:
        await backend.close()

    assert intervals == [500, 500]


async def test_the_settings_of_its_broker_stand_in_the_url(tmp_path: Path) -> None:
    settings = "group.max.session.timeout.ms=9000&transaction.max.timeout.ms=1000&num.partitions=3&max.connections=7"
    backend = open_backend(f"embedded://{tmp_path}/shop?fsync=false&{settings}", listen=False)
    await backend.start()
    connection = await backend.connect("c")

    protocols = (Supported("range", b""),)
    joined = await connection.send(
        JoinGroupRequest(group_id="g", protocol_type="consumer", protocols=protocols, session_timeout_ms=10_000)
    )
    begun = await connection.send(InitProducerIdRequest(transactional_id="x", timeout_ms=2_000))
    described = await connection.send(DescribeConfigsRequest(resource_type="broker", resource="1"))

    assert joined.error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert begun.error is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert {entry.name: entry.value for entry in described.entries}["num.partitions"] == "3"
    await backend.close()


async def test_a_disk_that_stays_full_in_the_middle_of_a_settle_keeps_no_leader_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"embedded://{tmp_path}/shop"
    backend = EmbeddedBackend(tmp_path / "shop", listen=False)
    await backend.start()
    connection = await backend.connect("c")
    made, out = [await connection.send(CreateTopicRequest(name=name)) for name in ("t", "out")]
    assert made.topic_id is not None
    assert out.topic_id is not None
    at = TopicPartition(made.topic_id, 0)
    await connection.send(IncrementalAlterConfigsRequest(resource_type="group", resource="g", configs=EARLIEST))
    await connection.send(ProduceRequest(topic="t", partition=0, records=batch(10)))
    await connection.send(fetch("m1", at))
    full = Full(monkeypatch)
    settling = asyncio.create_task(
        connection.send(
            ShareSettleRequest(
                group_id="g",
                member_id="m1",
                topic_id=at.topic_id,
                partition=0,
                acks=(AckRange(0, 9, b"\x01"),),
                outputs=(SettleOutput("out", out.topic_id, 0, batch(1)),),
            )
        )
    )
    await until(lambda: full.tried_again)

    async with asyncio.timeout(LIMIT_S):
        await backend.close()

    with pytest.raises(ConnectionError):
        await settling
    monkeypatch.undo()
    backend = open_backend(url)
    await backend.start()
    connection = await backend.connect("c")
    assert ranges(await connection.send(fetch("m2", at))) == [(0, 9, 2)]
    await backend.close()
