"""A listener on loopback with an API that does what a test asks for, and a client that sends raw bytes."""

from __future__ import annotations

import asyncio
import struct
import threading
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from flowshare.protocol.declaration import Api
from flowshare.protocol.kafka import ApiKey, read_response, write_request
from flowshare.protocol.messages import ShareFetchRequest, SharePartitionRequest
from flowshare.server.edge.base import Endpoint, SocketCall
from flowshare.server.edge.table import table
from flowshare.server.net.limits import ListenerLimits
from flowshare.server.net.listener import Listener
from flowshare.server.runtime import answers
from flowshare.server.runtime.turns import TURN
from tests.server.world import World, world

DEADLINE_S = 60.0


FAILURES = {b"fail": RuntimeError("as asked"), b"gone": ConnectionError("the server failed")}


class NoSasl:
    """Stands for a listener with SASL; nothing of it is asked here."""


class Odd:
    """The API of flowshare's own key; its requests say what is to happen: `echo …`, `wait …`, `big <bytes>`,
    `turns …`, `built <bytes>`, …"""

    def __init__(self) -> None:
        self.events: dict[bytes, asyncio.Event] = {}
        self.accepted: list[bytes] = []
        self.calls: list[SocketCall] = []
        self.turns = 0
        self.written_by = 0
        self.read_by: list[int] = []

    def apis(self):
        return (
            Endpoint(
                Api(ApiKey.FLOWSHARE, server=(0, 2)),
                self.answer,
                decode=self.decode,
                encode=self.encode,
            ),
            Endpoint(
                Api(ApiKey.SASL_HANDSHAKE, server=(1, 1)),
                self.answer,
                decode=self.decode,
                encode=self.encode,
            ),
            Endpoint(Api(ApiKey.PRODUCE, server=(3, 3)), self.swallow, decode=self.decode),
        )

    def encode(self, correlation_id: int, version: int, answer: bytes) -> bytes:
        del version
        self.written_by = threading.get_ident()
        return frame(struct.pack(">i", correlation_id) + answer)

    def decode(self, data: bytes, position: int, version: int) -> bytes:
        self.read_by.append(threading.get_ident())
        body = data[position:]
        if body.startswith(b"bad"):
            raise ValueError(f"cannot read v{version}")
        return body

    async def swallow(self, call: SocketCall) -> None:
        self.accepted.append(call.request)

    async def answer(self, call: SocketCall) -> bytes | None:
        self.accepted.append(call.request)
        self.calls.append(call)
        word, _, rest = call.request.partition(b" ")
        if word == b"wait":
            await self.events.setdefault(rest, asyncio.Event()).wait()
        elif word in (b"turns", b"built"):
            await self.work(call, word, rest)
        elif word == b"big":
            return bytes(int(rest))
        elif word == b"none":
            return None
        elif word in FAILURES:
            raise FAILURES[word]
        elif word == b"close":
            call.peer.closing = True
        elif word == b"login":
            call.peer.principal = "User:alice"
        elif word == b"raw":
            call.peer.raw = self.token
        elif word == b"fetch":
            await call.peer.connection.send(self.fetch)
        return call.request

    async def work(self, call: SocketCall, word: bytes, rest: bytes) -> None:
        """Long work until it is released, or an answer that takes so many bytes."""
        if word == b"built":
            answers.space().add(int(rest))
            return
        released = self.events.setdefault(rest, asyncio.Event())
        while not released.is_set():
            await call.peer.turns.take(TURN)
            self.turns += 1

    async def token(self, data: bytes) -> bytes:
        """A bare token of a login: `no` ends it, `yes` is its end."""
        if data == b"no":
            raise ConnectionError("wrong password")
        if data == b"yes":
            (call,) = self.calls
            call.peer.principal, call.peer.raw = "User:alice", None
        return b"ok " + data

    def release(self, *names: bytes) -> None:
        for name in names:
            self.events[name].set()


def frame(body: bytes) -> bytes:
    """With its length."""
    return struct.pack(">i", len(body)) + body


def odd(body: bytes, *, correlation_id: int = 1, client_id: str = "test", version: int = 0) -> bytes:
    """A request of the odd API."""
    name = client_id.encode()
    return frame(
        struct.pack(f">hhih{len(name)}sB", ApiKey.FLOWSHARE, version, correlation_id, len(name), name, 0) + body
    )


def login(body: bytes, *, correlation_id: int = 1) -> bytes:
    """A request that is allowed before the login and does as those of the odd API do."""
    return frame(struct.pack(">hhihB", ApiKey.SASL_HANDSHAKE, 1, correlation_id, -1, 0)[:-1] + body)


def api_versions(
    version: int = 3, *, correlation_id: int = 7, name: str = "test", software: str = "1.0", **more
) -> bytes:
    """An ApiVersions request. more: further fields of its version."""
    from flowshare.protocol.kafka import entity

    made = entity("api_versions", max(0, min(version, 5)), "request")
    fields = {"client_software_name": name, "client_software_version": software} if version >= 3 else {}
    data = bytearray(write_request(correlation_id, "test", made(**fields, **more)))
    struct.pack_into(">h", data, 6, version)
    return bytes(data)


class Wire:
    """One raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))
        await self.writer.drain()

    async def frame(self) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            (length,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(length)

    async def answer(self) -> tuple[int, bytes]:
        data = await self.frame()
        return struct.unpack_from(">i", data)[0], data[4:]

    async def ask(self, body: bytes) -> bytes:
        await self.send(odd(body))
        return (await self.answer())[1]

    async def versions(self, version: int = 3, **fields):
        await self.send(api_versions(version, **fields))
        return read_response("api_versions", version, await self.frame())[1]

    async def closed(self) -> bytes:
        """Wait for the end of the connection; what came before."""
        async with asyncio.timeout(DEADLINE_S):
            with suppress(ConnectionError):
                return await self.reader.read()
        return b""

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


class Site:
    """A world with a listener."""

    def __init__(self, world: World, odd: Odd, listener: Listener) -> None:
        self.world = world
        self.odd = odd
        self.listener = listener
        self.wires: list[Wire] = []

    async def connect(self, **options) -> Wire:
        node = self.listener.node
        wire = Wire(*await asyncio.open_connection(node.host, node.port, **options))
        self.wires.append(wire)
        return wire

    async def connect_with(self, socket) -> Wire:
        """Over a socket that is connected already; what comes is not read before it is asked for."""
        wire = Wire(*await asyncio.open_connection(sock=socket, limit=1024))
        self.wires.append(wire)
        return wire

    async def fetch_parks(self, topic_id) -> None:
        """Make the request `fetch` wait at a partition from now on."""
        self.odd.fetch = ShareFetchRequest(
            group_id="g",
            member_id="m",
            session_epoch=0,
            max_wait_ms=60_000,
            partitions=(SharePartitionRequest(topic_id, 0, ()),),
        )


@asynccontextmanager
async def site(*, sasl=None, tls=None, **limits):
    """A listener with the odd API; limits as fields of `ListenerLimits`."""
    async with world() as made:
        api = Odd()
        listener = Listener(
            made.server,
            clock=made.clock,
            limits=replace(ListenerLimits(), **limits),
            apis=table(api.apis()),
            sasl=sasl,
            tls=tls,
        )
        await listener.start("127.0.0.1", 0)
        here = Site(made, api, listener)
        try:
            yield here
        finally:
            for wire in here.wires:
                await wire.close()
            await listener.close()
