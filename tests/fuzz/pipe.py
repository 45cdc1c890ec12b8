"""A listener that is fed bytes without a socket, and the judgement of what came of them."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import uuid
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager

from flowshare.log.memory import MemoryStorage
from flowshare.protocol.messages import CreateTopicRequest
from flowshare.server.edge.base import Api
from flowshare.server.edge.table import families, table
from flowshare.server.listener import Listener
from flowshare.server.listener_socket import ListenerSocket
from flowshare.server.security.authorizer import AclStore
from flowshare.server.security.sasl import Sasl
from flowshare.server.security.users import Users
from flowshare.server.server import Server
from flowshare.share.config import ServerConfig
from flowshare.testing.clock import ManualClock, settle
from tests.fuzz.samples import TOPIC, TOPIC_ID

PATIENCE_S = 120.0
"""Server time after which everything that was asked for must be answered or over."""


class Inline(ThreadPoolExecutor):
    """Runs what is handed to it on the spot: logins are reckoned in threads, which nobody can wait for here."""

    def submit(self, fn, /, *args, **kwargs):
        done = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - whoever awaits it gets it
            done.set_exception(error)
        return done


class Pipe(asyncio.Transport):
    """A transport whose other end takes everything."""

    def __init__(self, protocol: ListenerSocket) -> None:
        super().__init__()
        self._protocol = protocol
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_write_buffer_limits(self, high=None, low=None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


class Failures(logging.Handler):
    """Collects what the code itself calls an error: a request that failed, a task nobody heard of."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


class Target:
    """A server with one topic and all APIs, over memory."""

    def __init__(
        self,
        listener: Listener,
        apis: Mapping[int, Api],
        *,
        clock: ManualClock,
        failures: Failures,
        topic_id: uuid.UUID,
    ) -> None:
        self.listener = listener
        self.apis = apis
        self._topic_id = topic_id
        self._clock = clock
        self._failures = failures

    async def feed(self, data: bytes, *, piece: int = 65_536, logged_in: bool = True) -> bytes:
        """Send the bytes over a new connection and end it; what was answered.

        Raises AssertionError when a request failed within the server, or something is left behind.
        """
        protocol = ListenerSocket(self.listener, "127.0.0.1", 50_000)
        self.listener._sockets.add(protocol)
        self.listener._addresses[protocol.address] += 1
        pipe = Pipe(protocol)
        protocol.connection_made(pipe)
        if logged_in and protocol._peer is not None:
            protocol._peer.principal = "User:fuzz"
            protocol._see_login(protocol._peer)
        data = data.replace(TOPIC_ID.bytes, self._topic_id.bytes)
        for start in range(0, len(data), piece):
            if pipe.closed:
                break
            protocol.data_received(data[start : start + piece])
            await settle()
        await self._clock.advance(PATIENCE_S)
        pipe.close()
        await self._clock.advance(PATIENCE_S)
        self._judge(data)
        return pipe.written

    def _judge(self, data: bytes) -> None:
        problems, self._failures.found = self._failures.found, []
        assert not problems, f"{problems[0]}\nfrom {data.hex()}"
        assert self.listener.connections == 0, f"a connection is left, from {data.hex()}"
        assert self.listener.budget.held == 0, f"bytes are left in the budget, from {data.hex()}"


@asynccontextmanager
async def target():
    """A started target; everything of it is closed at the end."""
    asyncio.get_running_loop().set_default_executor(Inline(1))
    failures = Failures()
    clock = ManualClock()
    storage = MemoryStorage(clock)
    server = Server(storage=storage, config=ServerConfig.embedded(), clock=clock)
    logger = logging.getLogger()
    logger.addHandler(failures)
    await server.start()
    try:
        topic = await server.connect(client_id="admin").send(CreateTopicRequest(name=TOPIC, partitions=2))
        users = Users(storage)
        await users.start(os.urandom)
        sasl = Sasl(users, random=os.urandom)
        acls = AclStore(storage, super_users={"User:fuzz"})
        apis = table(families(server, clock=clock, sasl=sasl, authorizer=acls))
        listener = Listener(server, clock=clock, sasl=sasl, authorizer=acls, apis=apis)
        await listener.start("127.0.0.1", 0)
        try:
            yield Target(listener, apis, clock=clock, failures=failures, topic_id=topic.topic_id)
        finally:
            await listener.close()
    finally:
        await server.close()
        await storage.close()
        gc.collect(1)  # so that tasks whose errors nobody asked for speak up
        logger.removeHandler(failures)
        assert not failures.found, failures.found[0]


def run(work: Callable[[Target], Awaitable[object]]) -> None:
    """Await `work(target)` on a loop of its own."""

    async def call() -> None:
        async with target() as made:
            await work(made)

    asyncio.run(call())
