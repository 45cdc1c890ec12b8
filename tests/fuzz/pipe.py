"""A listener that is fed bytes without a socket, and the judgement of what came of them."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from flowshare.log.memory import MemoryStorage
from flowshare.protocol.messages import CreateTopicRequest
from flowshare.protocol.scram import DIGESTS
from flowshare.server.edge.base import Endpoint
from flowshare.server.edge.table import endpoints, table
from flowshare.server.net.limits import ListenerLimits
from flowshare.server.net.listener import Listener
from flowshare.server.net.socket import ListenerSocket
from flowshare.server.security.acl_store import AclStore
from flowshare.server.security.credentials import Credential, hashed
from flowshare.server.security.sasl import Sasl
from flowshare.server.security.users import Users
from flowshare.server.server import Server
from flowshare.share.config import ServerConfig
from flowshare.testing import virtual
from flowshare.testing.clock import ManualClock, settle
from tests.fuzz.samples import TOPIC, TOPIC_ID

PATIENCE_S = 120.0
"""Server time after which everything that was asked for must be answered or over."""
USERS = ("fuzz", "alice")
"""Who can log in. The first one may do everything, the others what it allows them."""
ADMIN = f"User:{USERS[0]}"
LIMITS = replace(ListenerLimits(), reauth_max_ms=60_000)
TASKS_MAX = 20
"""Tasks that a server has when nobody is connected, whatever it was asked before."""


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
        apis: Mapping[int, Endpoint],
        *,
        clock: ManualClock,
        failures: Failures,
        topic_id: uuid.UUID,
    ) -> None:
        self.listener = listener
        self.apis = apis
        self.clock = clock
        self.topic_id = topic_id
        self._failures = failures

    def connect(self, *, principal: str | None = ADMIN) -> tuple[ListenerSocket, Pipe]:
        """A new connection, logged in as a principal without having to do anything for it, or not."""
        protocol = ListenerSocket(self.listener, "127.0.0.1", 50_000)
        self.listener._sockets.add(protocol)
        self.listener._addresses[protocol.network] += 1
        pipe = Pipe(protocol)
        protocol.connection_made(pipe)
        if principal is not None and protocol._peer is not None:
            protocol._peer.principal = principal
            protocol._see_login(protocol._peer)
        return protocol, pipe

    async def feed(self, data: bytes, *, piece: int = 65_536, logged_in: bool = True) -> bytes:
        """Send the bytes over a new connection and end it; what was answered.

        Raises AssertionError when a request failed within the server, or something is left behind.
        """
        protocol, pipe = self.connect(principal=ADMIN if logged_in else None)
        data = data.replace(TOPIC_ID.bytes, self.topic_id.bytes)
        for start in range(0, len(data), piece):
            if pipe.closed:
                break
            protocol.data_received(data[start : start + piece])
            await settle()
        await self.clock.advance(PATIENCE_S)
        pipe.close()
        await self.judge(data)
        return pipe.written

    async def judge(self, data: bytes) -> None:
        """All connections were closed: nothing of them may be left once everybody has had time.

        Raises AssertionError: something is, or a request failed within the server.
        """
        await self.clock.advance(PATIENCE_S)
        listener = self.listener
        problems, self._failures.found = self._failures.found, []
        assert not problems, f"{problems[0]}\nfrom {data.hex()}"
        assert listener.connections == 0, f"a connection is left, from {data.hex()}"
        assert listener.pool.held == 0, f"bytes are left in the budget, from {data.hex()}"
        assert listener.strangers.held == 0, f"bytes of strangers are left in the budget, from {data.hex()}"
        assert listener.answers.held == 0, f"bytes of answers are left, from {data.hex()}"
        assert not listener._tasks, f"a request is under way, from {data.hex()}: {listener._tasks}"
        assert len(asyncio.all_tasks()) <= TASKS_MAX, f"tasks are left, from {data.hex()}: {asyncio.all_tasks()}"


@functools.cache
def passwords() -> Mapping[str, tuple[Credential, ...]]:
    """Return the server's hashes of its users' passwords, by user name."""
    return {
        name: tuple(hashed(mechanism, f"{name}'s", salt=b"salt", iterations=4_096) for mechanism in DIGESTS)
        for name in USERS
    }


@asynccontextmanager
async def target():
    """A started target; everything of it is closed at the end. On a `VirtualTimeLoop`: nobody can wait for threads."""
    failures = Failures()
    clock = ManualClock()
    storage = MemoryStorage(clock)
    server = Server(storage=storage, config=ServerConfig.embedded(), clock=clock)
    logger = logging.getLogger()
    logger.addHandler(failures)
    await server.start()
    try:
        topic = await server.connect(client_id="admin").send(CreateTopicRequest(name=TOPIC, partitions=2))
        draw = random.Random(0).randbytes
        users = Users(storage)
        await users.start(draw)
        for name, credentials in passwords().items():
            for credential in credentials:
                users.fix(name, credential)
        sasl = Sasl(users, random=draw)
        acls = AclStore(storage, super_users={ADMIN})
        apis = table(endpoints(clock=clock, sasl=sasl, authorizer=acls))
        listener = Listener(server, clock=clock, sasl=sasl, authorizer=acls, apis=apis, limits=LIMITS)
        await listener.start("127.0.0.1", 0)
        try:
            yield Target(listener, apis, clock=clock, failures=failures, topic_id=topic.topic_id)
        finally:
            await listener.close()
    finally:
        await server.close()
        await storage.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks are left of a server that was closed: {left}"
        gc.collect(1)  # so that tasks whose errors nobody asked for speak up
        logger.removeHandler(failures)
        assert not failures.found, failures.found[0]


def run(work: Callable[[Target], Awaitable[object]]) -> None:
    """Await `work(target)` on a loop of its own."""

    async def call() -> None:
        async with target() as made:
            await work(made)

    virtual.run(call())
