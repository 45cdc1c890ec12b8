"""A server at a real socket, and a client that says exactly what a test wants, in any version."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import fields, is_dataclass
from datetime import timedelta
from types import SimpleNamespace

from kio.schema.errors import ErrorCode as KafkaError

from flowshare.clock import LoopClock
from flowshare.log.base import Storage
from flowshare.log.memory import MemoryStorage
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import module, read_response, write_request
from flowshare.protocol.messages import IncrementalAlterConfigsRequest
from flowshare.server.net.listener import Listener
from flowshare.server.security.acls import ANONYMOUS
from flowshare.server.server import Server
from flowshare.share.config import ServerConfig

NONE = KafkaError.none
WITHIN_S = 60.0


def batch(*values: bytes, timestamp_ms: int = 1_000, compression: str = "none") -> bytes:
    """A record batch with these values, one millisecond apart."""
    builder = BatchBuilder(compression=compression)
    for number, value in enumerate(values or (b"v",)):
        assert builder.add(b"key", value, [], timestamp_ms=timestamp_ms + number)
    return builder.build()


class Rights:
    """An authorizer that refuses what it is told to: (operation, resource type, name), None stands for any."""

    def __init__(self, *denied) -> None:
        self.denied = denied

    def allowed(self, principal, host, operation, resource, name) -> bool:
        """True if no denial fits."""
        assert principal == ANONYMOUS
        assert host
        asked = (operation, resource, name)
        return not any(all(a in (None, b) for a, b in zip(denial, asked, strict=True)) for denial in self.denied)

    def allowed_somewhere(self, principal, host, operation, resource) -> bool:
        """True if no denial fits every name."""
        return self.allowed(principal, host, operation, resource, None)


class Socket:
    """One connection; requests go one after the other."""

    def __init__(self, reader, writer, client_id: str) -> None:
        self._reader = reader
        self._writer = writer
        self._client_id = client_id
        self._correlation_id = 0

    async def ask(self, name: str, version: int, /, **values):
        """Send a request and read its answer; fields that the version lacks are left out."""
        await self.tell(name, version, **values)
        return await self.answer(name, version)

    async def tell(self, name: str, version: int, /, **values) -> None:
        """Send a request."""
        self._correlation_id += 1
        request = build(name, version, **values)
        self._writer.write(write_request(self._correlation_id, self._client_id, request))
        await self._writer.drain()

    async def answer(self, name: str, version: int):
        """The next answer."""
        async with asyncio.timeout(WITHIN_S):
            size = int.from_bytes(await self._reader.readexactly(4))
            frame = await self._reader.readexactly(size)
        _, response = read_response(name, version, frame)
        return response

    async def ended(self) -> bool:
        """Wait until the server closes the connection."""
        async with asyncio.timeout(WITHIN_S):
            return await self._reader.read(1) == b""

    async def close(self) -> None:
        """Close."""
        self._writer.close()
        await self._writer.wait_closed()


def build(name: str, version: int, part: str | None = None, /, **values):
    """kio's request, or a part of it; every `part` becomes the entity that its field wants."""
    made = module(name, version, "request")
    part = part or next(key for key in vars(made) if key.lower() == name.replace("_", "") + "request")
    entity = getattr(made, part)
    known = {field.name: str(field.type) for field in fields(entity)}
    return entity(**{key: _value(name, version, known[key], value) for key, value in values.items() if key in known})


def _value(name, version, wanted, value):
    if isinstance(value, SimpleNamespace):
        part = wanted.split("request.")[-1].split(",")[0].split("]")[0].split("'")[0].split(" ")[0]
        return build(name, version, part, **vars(value))
    if isinstance(value, list):
        return tuple(_value(name, version, wanted, one) for one in value)
    return value


class Edge:
    """A listening server."""

    def __init__(self, server: Server, listener: Listener, storage: Storage) -> None:
        self.server = server
        self.listener = listener
        self.storage = storage
        self.host, self.port = "", 0
        self.admin = server.connect(client_id="test")
        self._sockets: list[Socket] = []

    @property
    def address(self) -> str:
        """`host:port`, as clients want it."""
        return f"{self.host}:{self.port}"

    async def socket(self, client_id: str = "tester") -> Socket:
        """A new connection."""
        socket = Socket(*await asyncio.open_connection(self.host, self.port), client_id)
        self._sockets.append(socket)
        return socket

    async def close(self) -> None:
        """Close everything."""
        for socket in self._sockets:
            await socket.close()
        await self.listener.close()
        await self.server.close()
        await self.storage.close()

    async def configure(self, group_id: str = "g", **configs: str) -> None:
        """Set a group's settings; `_` in their names stands for `.`."""
        named = {name.replace("_", "."): value for name, value in configs.items()}
        request = IncrementalAlterConfigsRequest(resource_type="group", resource=group_id, configs=named)
        answer = await self.admin.send(request)
        assert answer.error is ErrorCode.NONE, answer.message

    async def topic(self, name: str = "t", partitions: int = 1):
        """Make a topic; its id."""
        made = await self.storage.create_topic(name, partitions=partitions)
        return made.topic_id


@asynccontextmanager
async def edge(*denied, config: ServerConfig | None = None, storage: Storage | None = None):
    """A server at 127.0.0.1 that refuses what `denied` says, over a storage in memory unless another is given."""
    clock = LoopClock()
    storage = storage or MemoryStorage(clock)
    server = Server(storage=storage, config=config or ServerConfig.embedded(), clock=clock)
    await server.start()
    listener = Listener(server, clock=clock, authorizer=Rights(*denied))
    made = Edge(server, listener, storage)
    made.host, made.port = await listener.start("127.0.0.1", 0)
    try:
        yield made
    finally:
        await made.close()


def errors(answer) -> set[str]:
    """Names of all errors in an answer, however deep; empty when there are none."""
    if isinstance(answer, KafkaError):
        return set() if answer is NONE else {answer.name}
    if isinstance(answer, tuple):
        return set().union(*(errors(one) for one in answer)) if answer else set()
    if is_dataclass(answer):
        return errors(tuple(getattr(answer, field.name) for field in fields(answer)))
    return set()


part = SimpleNamespace
"""A nested part of a request."""


def ms(duration: int) -> timedelta:
    """Milliseconds as kio has them."""
    return timedelta(milliseconds=duration)
