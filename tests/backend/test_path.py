"""Several processes on one embedded path: joining, handing over, taking over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import orjson
import pytest

from flowshare.backend.base import BackendError
from flowshare.backend.embedded import TALK_S, EmbeddedBackend, LedPath
from flowshare.backend.path_workers import Registration
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.producer.producer import Producer, RecordMetadata
from flowshare.clock import LoopClock
from flowshare.log.base import StorageHeld
from flowshare.log.owner import OwnerLock, PathOwner, read_owner
from flowshare.protocol.batches import decode_all
from flowshare.protocol.messages import FetchPartition, FetchRequest, MetadataRequest
from flowshare.server.standalone import Address, Standalone, StandaloneOptions
from flowshare.tasks import cancelled
from flowshare.testing.clock import ManualClock
from tests.waiting import until

pytestmark = pytest.mark.asyncio

ROOT = Path(__file__).parents[2]
LIMIT_S = 60.0

LEADER = """
import asyncio, sys
from flowshare.backend.embedded import EmbeddedBackend
from flowshare.backend.path_workers import Registration

async def main():
    backend = EmbeddedBackend(sys.argv[1])
    await backend.start()
    print("leads" if backend.leading else "joined", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def process(path: Path):
    """Another process on the path, killed at the end; it has led or joined when this is entered."""
    running = subprocess.Popen([sys.executable, "-c", LEADER, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    try:
        assert running.stdout is not None
        said = await asyncio.to_thread(running.stdout.readline)
        yield running, said.strip()
    finally:
        running.kill()
        running.wait()
        running.stdout.close()


@contextlib.asynccontextmanager
async def backends(path: Path, count: int):
    """Backends on one path, opened one after another and closed in the same order."""
    made = [EmbeddedBackend(path) for _ in range(count)]
    try:
        for backend in made:
            await backend.start()
        yield made
    finally:
        for backend in made:
            await backend.close()


async def topics(backend: EmbeddedBackend) -> list[str]:
    admin = ShareAdmin(lambda: backend.connect("test"), clock=LoopClock())
    try:
        return sorted(topic.name for topic in await admin.list_topics())
    finally:
        await admin.close()


async def create(backend: EmbeddedBackend, name: str) -> None:
    admin = ShareAdmin(lambda: backend.connect("test"), clock=LoopClock())
    await admin.create_topic(name)
    await admin.close()


async def test_a_second_opening_joins_the_first(tmp_path: Path) -> None:
    async with backends(tmp_path / "shop", 2) as (first, second):
        await create(second, "orders")

        assert (first.leading, second.leading) == (True, False)
        assert await topics(first) == ["orders"]
        assert first.bootstrap == second.bootstrap


async def test_a_leader_that_hears_nothing_else_from_a_joined_process_keeps_it(tmp_path: Path) -> None:
    clock = ManualClock()
    leader, joined = (EmbeddedBackend(tmp_path / "shop", clock=clock) for _ in range(2))
    await leader.start()
    await joined.start()
    assert leader._led is not None
    listener = leader._led.listener
    assert listener is not None
    (socket,) = listener._sockets
    await until(lambda: socket not in listener._silent)

    for _ in range(40):  # longer than connections.max.idle.ms
        await clock.advance(TALK_S)
        await until(lambda: clock.monotonic() - socket._progress <= TALK_S)

    assert listener._sockets == {socket}
    await joined.close()
    await leader.close()


async def test_when_the_leader_closes_another_leads_with_everything_on_the_same_port(tmp_path: Path) -> None:
    async with backends(tmp_path / "shop", 3) as (first, second, third):
        await create(second, "orders")
        where = first.bootstrap

        await first.close()
        await until(lambda: second.leading or third.leading)

        leader, joined = (second, third) if second.leading else (third, second)
        await until(lambda: joined.bootstrap is not None)
        assert await topics(leader) == ["orders"]
        assert await topics(joined) == ["orders"]
        assert (leader.bootstrap, joined.bootstrap) == (where, where)


@pytest.mark.slow
async def test_when_the_leader_is_killed_another_process_takes_over_and_its_producer_goes_on(tmp_path: Path) -> None:
    async with process(tmp_path / "shop") as (leader, said), backends(tmp_path / "shop", 1) as (joined,):
        assert (said, joined.leading) == ("leads", False)
        await create(joined, "orders")
        producer = Producer(lambda: joined.connect("test"), clock=LoopClock())
        await producer.send_many("orders", [b"one"])

        leader.send_signal(signal.SIGKILL)
        await producer.send_many("orders", [b"two"])

        assert joined.leading
        owner = read_owner(tmp_path / "shop")
        assert owner is not None
        assert owner.pid == os.getpid()
        await producer.close()


@pytest.mark.slow
async def test_what_is_on_its_way_when_leaders_are_killed_is_in_the_log_once_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "shop"
    async with contextlib.AsyncExitStack() as stack:
        others = [await stack.enter_async_context(process(path)) for _ in range(2)]
        (joined,) = await stack.enter_async_context(backends(path, 1))
        await create(joined, "orders")
        producer = Producer(lambda: joined.connect("test"), clock=LoopClock())
        await producer.partitions("orders")
        sent: list[asyncio.Future[RecordMetadata]] = []
        confirmed = 0

        async def send() -> None:
            nonlocal confirmed
            while not joined.leading or len(sent) < 3_000:
                some = [producer.send_nowait("orders", b"%d" % number) for number in range(len(sent), len(sent) + 10)]
                sent.extend(some)
                await asyncio.wait([sent[max(0, len(sent) - 500)]])
                confirmed = sum(one.done() for one in sent)

        sending = asyncio.create_task(send())
        for leader, _ in others:  # whoever leads, in the midst of a write, and then the next one
            before = len(sent)
            await until(lambda before=before: confirmed > before + 500)
            leader.send_signal(signal.SIGKILL)
            leader.wait()
        await until(lambda: joined.leading)
        await sending
        offsets = [one.offset for one in await asyncio.gather(*sent)]
        connection = await joined.connect("test")
        found: list[int] = []
        while len(found) < len(sent):
            part = FetchPartition("orders", 0, len(found))
            (log,) = (await connection.send(FetchRequest(partitions=(part,)))).partitions
            found += [int(one.value or b"") for one in decode_all(log.records) if one.offset >= len(found)]
            assert log.records
        assert found == list(range(len(sent)))
        assert offsets == list(range(len(sent)))
        assert log.high_watermark == len(sent)
        await producer.close()


@pytest.mark.slow
async def test_one_of_many_takes_over_and_the_others_find_it(tmp_path: Path) -> None:
    path = tmp_path / "shop"
    async with contextlib.AsyncExitStack() as stack:
        others = [await stack.enter_async_context(process(path)) for _ in range(3)]
        joined = await stack.enter_async_context(backends(path, 1))
        await create(joined[0], "orders")
        for leader, _ in others:  # whoever leads, and then the next one
            leader.send_signal(signal.SIGKILL)
            leader.wait()

            async def there() -> bool:
                with contextlib.suppress(OSError, TimeoutError):
                    assert await topics(joined[0]) == ["orders"]
                    return True
                return False

            await until(there)
        assert joined[0].leading


async def test_a_holder_that_lets_nobody_join_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("flowshare.backend.embedded.FIRST_LIMIT_S", 0.0)
    monkeypatch.setattr("flowshare.backend.embedded.FIRST_TRIES", 1)
    alone = EmbeddedBackend(tmp_path / "shop", listen=False)
    await alone.start()

    with pytest.raises(StorageHeld, match=f"held by process {os.getpid()}"):
        await EmbeddedBackend(tmp_path / "shop").start()

    await alone.close()


async def test_a_command_is_told_of_a_leader_that_stands_still_and_does_not_wait_for_it(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("flowshare.backend.embedded.FIRST_LIMIT_S", 0.0)
    monkeypatch.setattr("flowshare.backend.embedded.JOIN_S", 0.05)
    async with process(tmp_path / "shop") as (leader, _):
        leader.send_signal(signal.SIGSTOP)

        with pytest.raises(BackendError, match=rf"does not answer: it is stopped \(kill -CONT {leader.pid}"):
            await EmbeddedBackend(tmp_path / "shop", listen=False).start()

        leader.send_signal(signal.SIGCONT)
        monkeypatch.undo()
        joined = EmbeddedBackend(tmp_path / "shop", listen=False)
        await joined.start()
        assert not joined.leading
        await joined.close()


@pytest.mark.parametrize("logins", [False, True])
async def test_the_data_of_a_server_are_joined_by_nobody_who_could_take_its_place(tmp_path: Path, logins: bool) -> None:
    (tmp_path / "users").write_text("alice=wonder land\n")
    (tmp_path / "users").chmod(0o600)
    options = StandaloneOptions(
        data=tmp_path / "shop",
        listen=Address(host="127.0.0.1", port=0),
        users_file=tmp_path / "users" if logins else None,
    )
    broker = Standalone(options, clock=LoopClock())
    await broker.start()
    try:
        for listen in (True, False):
            with pytest.raises(BackendError, match=rf"is served by process .*: use kafka://{broker.address} as"):
                await EmbeddedBackend(tmp_path / "shop", listen=listen).start()
    finally:
        await broker.close()


async def test_a_worker_leads_a_path_whose_server_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "shop"
    lock = OwnerLock(path, now_ms=1)
    lock.set_listener("127.0.0.1:1", alone=True)
    named = (path / "owner.json").read_bytes()
    lock.release()
    (path / "owner.json").write_bytes(named)

    backend = EmbeddedBackend(path)
    await backend.start()
    assert backend.leading
    await backend.close()


async def test_a_server_says_who_has_its_path(tmp_path: Path) -> None:
    async with backends(tmp_path / "shop", 1) as (leader,):
        broker = Standalone(
            StandaloneOptions(data=tmp_path / "shop", listen=Address(host="127.0.0.1", port=0)), clock=LoopClock()
        )
        with pytest.raises(StorageHeld, match=rf"process \d+ on .*{leader.bootstrap}: stop that one first"):
            await broker.start()


async def test_a_leader_that_was_killed_leaves_its_port_to_the_next_one(tmp_path: Path) -> None:
    async with process(tmp_path / "shop") as (leader, _):
        before = read_owner(tmp_path / "shop")
        leader.send_signal(signal.SIGKILL)
        leader.wait()

        async with backends(tmp_path / "shop", 1) as (again,):
            assert before is not None
            assert again.bootstrap == before.listener


async def test_who_has_patience_leaves_the_path_to_a_living_worker(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("flowshare.backend.embedded.FIRST_LIMIT_S", 60.0)
    path = tmp_path / "shop"
    worker, command = EmbeddedBackend(path), EmbeddedBackend(path, listen=False, patience_s=60.0)
    path.mkdir()
    known = Registration(path, address="127.0.0.1:1", now_ms=1)
    starting = asyncio.create_task(command.start())
    await asyncio.sleep(0)

    await worker.start()
    await starting

    assert (worker.leading, command.leading) == (True, False)
    assert await topics(command) == []
    await command.close()
    await worker.close()
    known.remove()


async def test_without_workers_patience_is_not_called_for(tmp_path: Path) -> None:
    command = EmbeddedBackend(tmp_path / "shop", listen=False, patience_s=60.0)

    await command.start()

    assert command.leading
    await command.close()


async def test_a_leader_that_finds_another_s_name_leads_no_longer(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("flowshare.log.embedded.BEAT_S", 0.0)
    async with backends(tmp_path / "shop", 1) as (leader,):
        connection = await leader.connect("test")
        other = PathOwner(pid=7, since_ms=5, host="another-machine", token="t")

        def seen() -> bool:  # the leader may be about to write its own name over it
            (tmp_path / "shop" / "owner.json").write_bytes(orjson.dumps(asdict(other)))
            return not leader.leading

        await until(seen)

        with pytest.raises(ConnectionError):
            await connection.send(MetadataRequest(topics=None))
        assert read_owner(tmp_path / "shop") == other


@pytest.mark.slow
async def test_who_only_sends_gives_the_path_to_a_worker_and_loses_nothing_on_the_way(tmp_path: Path) -> None:
    path = tmp_path / "shop"
    sender = EmbeddedBackend(path, yields=True, patience_s=3.0)
    await sender.start()
    producer = Producer(lambda: sender.connect("test"), clock=LoopClock())
    try:
        await create(sender, "orders")
        sent = 0
        worker = EmbeddedBackend(path)
        await worker.start()
        assert (sender.leading, worker.leading) == (True, False)
        await worker.set_address("127.0.0.1:1")  # its pages answer: it lives
        while not worker.leading:
            await producer.send("orders", value=b"%d" % sent)
            sent += 1
        await until(lambda: sender.bootstrap is not None and not sender.leading)
        await producer.send("orders", value=b"%d" % sent)
    finally:
        await producer.close()

    admin = ShareAdmin(lambda: worker.connect("test"), clock=LoopClock())
    values = [record.value for record in await admin.read("orders", 0, 0, limit=100_000)]
    await admin.close()
    await sender.close()
    assert worker.leading
    await worker.close()
    assert values == [b"%d" % number for number in range(sent + 1)]


async def test_who_yielded_and_must_lead_again_does_so_for_a_while(tmp_path: Path) -> None:
    known = Registration(tmp_path / "shop", address="127.0.0.1:1", now_ms=1)  # and it never leads
    sender = EmbeddedBackend(tmp_path / "shop", yields=True)
    led = []
    lead = sender._lead

    async def counted():
        led.append(1)
        return await lead()

    sender._lead = counted
    await sender.start()
    await until(lambda: len(led) == 2 and sender.leading)

    assert await topics(sender) == []
    assert not await sender._is_awaited()
    await sender.close()
    known.remove()


@pytest.mark.parametrize("gives_up", [False, True])
async def test_who_closes_while_it_gives_the_path_away_lets_go_of_it(tmp_path: Path, monkeypatch, gives_up) -> None:
    known = Registration(tmp_path / "shop", address="127.0.0.1:1", now_ms=1)
    begun, go_on, close = asyncio.Event(), asyncio.Event(), LedPath.close

    async def slowly(led: LedPath) -> None:
        begun.set()
        await go_on.wait()
        await close(led)

    monkeypatch.setattr(LedPath, "close", slowly)
    sender = EmbeddedBackend(tmp_path / "shop", yields=not gives_up)
    await sender.start()
    if not gives_up:
        await begun.wait()
    closing = asyncio.create_task(sender.close())
    await begun.wait()
    await asyncio.sleep(0)
    if gives_up:  # whoever closed it does not wait for that
        await cancelled(closing)
        closing = asyncio.create_task(sender.close())
    go_on.set()
    await closing
    known.remove()

    other = EmbeddedBackend(tmp_path / "shop")
    await other.start()
    assert other.leading
    await other.close()


async def test_a_closing_that_is_given_up_at_once_lets_go_of_the_path_all_the_same(tmp_path: Path) -> None:
    hasty, other = (EmbeddedBackend(tmp_path / "shop") for _ in range(2))
    await hasty.start()
    await hasty.set_address("127.0.0.1:1")  # closing begins with taking that back
    closing = asyncio.create_task(hasty.close())
    await asyncio.sleep(0)

    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing

    await other.start()
    assert other.leading
    await other.close()
    await hasty.close()


async def test_who_waits_for_a_leader_is_told_that_the_backend_was_closed(tmp_path: Path) -> None:
    leader, joined = (EmbeddedBackend(tmp_path / "shop") for _ in range(2))
    await leader.start()
    await joined.start()
    joined._known.clear()  # as between the end of a leader and the next one
    waiting = asyncio.create_task(joined.connect("test"))
    await asyncio.sleep(0)

    await joined.close()

    with pytest.raises(BackendError, match="is not open"):
        await asyncio.wait_for(waiting, 5)
    await leader.close()


async def test_who_works_on_a_path_keeps_it_when_others_come(tmp_path: Path) -> None:
    async with backends(tmp_path / "shop", 2) as (first, second):
        await second.set_address("127.0.0.1:1")

        assert not first._yields
        assert first.leading
