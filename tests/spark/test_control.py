"""The control channel between the driver and its workers, over loopback, without Spark."""

from __future__ import annotations

import asyncio
import socket
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from flowshare.spark.workers import control
from flowshare.spark.workers.control import (
    FRAME_MAX,
    GREETING_MAX,
    LENGTH,
    ControlClient,
    ControlError,
    ControlServer,
    DriverLost,
    Seal,
    Who,
    new_token,
    plain,
)
from flowshare.spark.workers.task import WorkerTask, _TaskWorker

TOKEN = b"t" * 32
WHO = Who(number=1, run="first", attempt=0, pid=4711, host="here")
LIMIT_S = 60.0


class Driver:
    """A control server that keeps what it is told."""

    def __init__(self, token=TOKEN, silent_s=10.0, accept=True):
        self.peers, self.heard, self.ended = asyncio.Queue(), asyncio.Queue(), asyncio.Queue()
        self.accept = accept
        self.server = ControlServer(
            token,
            opened=self._opened,
            heard=lambda peer, message: self.heard.put_nowait((peer.who, message)),
            closed=lambda peer, silent: self.ended.put_nowait((peer.who, silent)),
            silent_s=silent_s,
        )

    def _opened(self, peer):
        if self.accept:
            self.peers.put_nowait(peer)
        return self.accept

    async def said(self, what):
        """The next message of this kind."""
        async with asyncio.timeout(LIMIT_S):  # figures come for ever
            while True:
                who, message = await self.heard.get()
                if message.get("say") == what:
                    return who, message

    async def __aenter__(self):
        self.address = await self.server.start("127.0.0.1")
        return self

    async def __aexit__(self, *_):
        await self.server.close()


class Worker:
    """A client whose thread's calls are kept."""

    def __init__(self, address, who=WHO, token=TOKEN, lost_s=10.0):
        self.orders, self.lost = [], threading.Event()
        self.ordered = threading.Condition()
        self.client = ControlClient(
            address,
            token,
            who,
            figures=lambda: {"count": 1},
            on_order=self._order,
            on_lost=self.lost.set,
            lost_s=lost_s,
        )

    def _order(self, order):
        with self.ordered:
            self.orders.append(order)
            self.ordered.notify_all()

    def wait_for(self, order):
        with self.ordered:
            assert self.ordered.wait_for(lambda: order in self.orders, LIMIT_S), self.orders

    async def __aenter__(self):
        await asyncio.to_thread(self.client.connect)
        return self

    async def __aexit__(self, *_):
        await asyncio.to_thread(self.client.close, {"say": "bye", "code": 0})


@pytest.mark.asyncio
async def test_a_worker_says_who_it_is_and_sends_its_figures():
    async with Driver() as driver, Worker(driver.address):
        who, message = await driver.said("figures")

        assert who == WHO
        assert message["count"] == 1


@pytest.mark.asyncio
async def test_an_order_reaches_the_worker():
    async with Driver() as driver, Worker(driver.address) as worker:
        peer = await asyncio.wait_for(driver.peers.get(), LIMIT_S)

        peer.send({"do": "drain", "timeout_s": 5.0})

        await asyncio.to_thread(worker.wait_for, {"do": "drain", "timeout_s": 5.0})


@pytest.mark.asyncio
async def test_the_last_word_of_a_worker_arrives_before_its_connection_ends():
    async with Driver() as driver:
        async with Worker(driver.address) as worker:
            worker.client.say({"say": "ready"})
        _, bye = await driver.said("bye")
        _, silent = await asyncio.wait_for(driver.ended.get(), LIMIT_S)

        assert bye["code"] == 0
        assert not silent


@pytest.mark.asyncio
async def test_a_worker_that_ends_before_it_has_begun_to_talk_says_its_last_word():
    async with Driver() as driver:
        worker = Worker(driver.address)
        worker.client._last = {"say": "bye", "code": 0}
        worker.client._closing.set()  # as `close` does; here before the thread has come to its first turn

        await asyncio.to_thread(worker.client.connect)

        assert (await driver.said("bye"))[1]["code"] == 0
        await asyncio.to_thread(worker.client.close, {})


@pytest.mark.asyncio
async def test_a_worker_with_another_token_is_not_let_in():
    async with Driver() as driver:
        worker = Worker(driver.address, token=new_token(), lost_s=0.0)

        with pytest.raises(DriverLost, match="cannot be reached"):
            await asyncio.to_thread(worker.client.connect)

        assert driver.peers.empty()


@pytest.mark.asyncio
async def test_a_worker_does_not_talk_to_a_driver_with_another_token():
    async with Driver(token=new_token()) as driver:
        worker = Worker(driver.address, lost_s=0.0)

        with pytest.raises(DriverLost):
            await asyncio.to_thread(worker.client.connect)

        assert driver.heard.empty()


@pytest.mark.asyncio
async def test_a_worker_that_is_refused_is_told_to_end():
    async with Driver(accept=False) as driver, Worker(driver.address) as worker:
        await asyncio.to_thread(worker.wait_for, {"do": "end"})


@pytest.mark.asyncio
async def test_a_worker_whose_connection_ends_calls_again():
    async with Driver() as driver, Worker(driver.address):
        first = await asyncio.wait_for(driver.peers.get(), LIMIT_S)
        first.close()

        second = await asyncio.wait_for(driver.peers.get(), LIMIT_S)

        assert second is not first
        assert second.who == WHO


async def get_ready(worker):
    worker._on_ready(0.1)


async def get_stuck(worker):
    async def drain(_timeout_s):
        pass

    async def ends(_otherwise):
        return False

    await worker._drain(SimpleNamespace(drain=drain, ends=ends), None)


@pytest.mark.asyncio
@pytest.mark.parametrize(("become", "said"), [(get_ready, "ready"), (get_stuck, "bye")])
async def test_what_a_worker_has_become_is_known_even_if_the_connection_that_took_the_word_ended(become, said):
    async with Driver() as driver:
        task = WorkerTask(
            app_path="", number=1, run="first", member_id="", driver=driver.address, token=TOKEN, environment={}
        )
        worker = _TaskWorker(task, 0)
        await asyncio.to_thread(worker._client.connect)
        first = await asyncio.wait_for(driver.peers.get(), LIMIT_S)
        await become(worker)
        await driver.said(said)  # this driver forgets it, as if it had not arrived

        first.close()
        await asyncio.wait_for(driver.peers.get(), LIMIT_S)

        await driver.said(said)
        await asyncio.to_thread(worker._client.close, {"say": "end"})


@pytest.mark.asyncio
async def test_a_worker_learns_that_its_driver_is_gone():
    driver = Driver()
    async with driver:
        worker = Worker(driver.address, lost_s=0.1)
        await asyncio.to_thread(worker.client.connect)

    assert await asyncio.to_thread(worker.lost.wait, LIMIT_S)

    await asyncio.to_thread(worker.client.close, {"say": "bye"})


@pytest.mark.asyncio
async def test_a_driver_that_was_silent_is_called_before_it_counts_as_gone(monkeypatch):
    monkeypatch.setattr(control, "SILENT_S", 0.01)
    async with Driver() as driver, Worker(driver.address, lost_s=0.01) as worker:
        first = await asyncio.wait_for(driver.peers.get(), LIMIT_S)

        second = await asyncio.wait_for(driver.peers.get(), LIMIT_S)

        assert second is not first
        assert not worker.lost.is_set()


@pytest.mark.asyncio
async def test_a_connection_without_a_word_is_closed_as_silent():
    async with Driver(silent_s=0.01) as driver, Worker(driver.address):
        who, silent = await asyncio.wait_for(driver.ended.get(), LIMIT_S)

        assert (who, silent) == (WHO, True)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "sent",
    [
        LENGTH.pack(GREETING_MAX + 1),
        plain({"nonce": "short"}),
        plain({"nonce": "0" * 32, "who": {"number": 1}}),
        LENGTH.pack(3) + b"{{{",
        LENGTH.pack(4) + b"[12]",
    ],
    ids=["too long", "no nonce", "nobody", "no JSON", "no object"],
)
async def test_a_stranger_is_cut_off(sent):
    async with Driver() as driver:
        reader, writer = await asyncio.open_connection(*driver.address)
        writer.write(sent)

        async with asyncio.timeout(LIMIT_S):
            await reader.read()  # the driver's greeting, and then the end

        writer.close()
        await writer.wait_closed()
        assert driver.peers.empty()


def pair():
    nonces = b"a/b"
    return Seal(TOKEN, nonces, driver=True), Seal(TOKEN, nonces, driver=False)


def body(frame):
    return frame[LENGTH.size :]


def test_a_frame_that_was_changed_is_refused():
    driver, worker = pair()
    frame = driver.seal({"do": "drain"}).replace(b"drain", b"dream")

    with pytest.raises(ControlError, match="tag"):
        worker.unseal(body(frame))


def test_a_frame_that_is_repeated_is_refused():
    driver, worker = pair()
    frame = driver.seal({"do": "drain"})
    worker.unseal(body(frame))

    with pytest.raises(ControlError, match="tag"):
        worker.unseal(body(frame))


def test_a_frame_that_is_sent_back_is_refused():
    driver, _ = pair()
    frame = driver.seal({"do": "drain"})

    with pytest.raises(ControlError, match="tag"):
        driver.unseal(body(frame))


def test_a_frame_of_another_connection_is_refused():
    driver, _ = pair()
    other = Seal(TOKEN, b"c/d", driver=False)

    with pytest.raises(ControlError, match="tag"):
        other.unseal(body(driver.seal({"do": "drain"})))


def test_a_message_has_a_limit():
    driver, _ = pair()

    with pytest.raises(ControlError, match="longer"):
        driver.seal({"text": "x" * FRAME_MAX})


def test_the_token_is_in_no_byte_that_a_worker_sends():
    listening = socket.create_server(("127.0.0.1", 0))
    seen = bytearray()

    def answer():
        connection, _ = listening.accept()
        with connection:
            connection.sendall(plain({"version": 1, "nonce": "0" * 32}))
            seen.extend(connection.recv(65536))

    thread = threading.Thread(target=answer)
    thread.start()
    worker = Worker(listening.getsockname(), who=replace(WHO, number=2), lost_s=0.0)
    with listening, pytest.raises(DriverLost):
        worker.client.connect()
    thread.join(LIMIT_S)

    assert b'"number":2' in seen
    assert TOKEN not in seen
    assert TOKEN.hex().encode() not in seen
