"""A broker with TLS, logins and ACLs on loopback, and a client that asks it single requests."""

from __future__ import annotations

import asyncio
import struct
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import UUID

from flowshare.clock import LoopClock
from flowshare.protocol.kafka import entity, module, read_response, write_request
from flowshare.protocol.messages import CreateTopicRequest, ProduceRequest
from flowshare.server.security.sasl import MECHANISMS
from flowshare.server.security.tls import ServerTls
from flowshare.server.standalone import Address, Standalone, StandaloneOptions
from tests.server.world import batch

DEADLINE_S = 60.0
USERS = "admin=top secret\nalice=wonder land\nbob=builder\n"
ACLS = """
allow User:alice read topic orders
allow User:alice write topic orders
allow User:alice read group billing
"""


class Talk:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._number = 0

    async def ask(self, name: str, version: int, **fields):
        """The answer to one request. Raises: asyncio.IncompleteReadError when the connection is closed instead."""
        self._number += 1
        request = entity(name, version, "request")(**fields)
        answer = await self.raw(write_request(self._number, "test", request)[4:])
        return read_response(name, version, answer)[1]

    async def raw(self, frame: bytes) -> bytes:
        """A frame's answer, both without their length."""
        self._writer.write(struct.pack(">i", len(frame)) + frame)
        async with asyncio.timeout(DEADLINE_S):
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            return await self._reader.readexactly(size)

    async def ended(self) -> bytes:
        """Wait until the other end closes; what came before."""
        async with asyncio.timeout(DEADLINE_S):
            with suppress(ConnectionError):
                return await self._reader.read()
        return b""

    async def log_in(self, name: str, password: str):
        """By PLAIN; the answer."""
        await self.ask("sasl_handshake", 1, mechanism="PLAIN")
        return await self.ask("sasl_authenticate", 2, auth_bytes=f"\0{name}\0{password}".encode())

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


class Secured:
    """The broker that runs, and what is connected to it."""

    def __init__(self, broker: Standalone) -> None:
        self.host, self.port = broker.address.host, broker.address.port
        assert broker._server is not None
        assert broker._listener is not None
        self.listener = broker._listener
        self.server = broker._server
        self._talks: list[Talk] = []

    async def connect(self, **options) -> Talk:
        """A connection; options of asyncio.open_connection."""
        async with asyncio.timeout(DEADLINE_S):
            talk = Talk(*await asyncio.open_connection(self.host, self.port, **options))
        self._talks.append(talk)
        return talk

    async def as_user(self, name: str = "admin", password: str = "top secret") -> Talk:
        """A connection that is logged in."""
        talk = await self.connect()
        answer = await talk.log_in(name, password)
        assert int(answer.error_code) == 0
        return talk

    async def topic(self, name: str, records: int = 0) -> UUID:
        """Make a topic, with records; its id."""
        connection = self.server.connect(client_id="test")
        made = await connection.send(CreateTopicRequest(name=name))
        if records:
            await connection.send(ProduceRequest(topic=name, partition=0, records=batch(records)))
        await connection.close()
        assert made.topic_id is not None
        return made.topic_id

    async def close(self) -> None:
        for talk in self._talks:
            await talk.close()


@asynccontextmanager
async def secured(
    folder: Path,
    *,
    users: str | None = USERS,
    acls: str | None = None,
    tls: ServerTls | None = None,
    clock: LoopClock | None = None,
    mechanisms: tuple[str, ...] | None = MECHANISMS,
    **settings,
):
    """A broker over memory; super user is admin. Settings are given with `_` for `.`."""
    users_file, acl_file = folder / "users", folder / "acls"
    if users is not None:
        users_file.write_text(users, encoding="utf-8")
        users_file.chmod(0o600)
    if acls is not None:
        acl_file.write_text(acls, encoding="utf-8")
    options = StandaloneOptions(
        data=None,
        listen=Address(host="127.0.0.1", port=0),
        settings={name.replace("_", "."): value for name, value in settings.items()},
        tls=tls,
        users_file=None if users is None else users_file,
        mechanisms=None if users is None else mechanisms,
        acl_file=None if acls is None else acl_file,
        super_users=() if acls is None else ("User:admin",),
    )
    broker = Standalone(options, clock=clock or LoopClock())
    await broker.start()
    here = Secured(broker)
    try:
        yield here
    finally:
        await here.close()
        await broker.close()


def parts(name: str, version: int, **kinds):
    """Nested parts of a request: the kind's class and, for each part, its fields."""
    made = module(name, version, "request")
    ((kind, fields),) = kinds.items()
    return tuple(getattr(made, kind)(**one) for one in fields)
