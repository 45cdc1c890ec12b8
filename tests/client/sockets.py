"""A broker at the other end of a real socket that answers as the test says, well or badly."""

from __future__ import annotations

import asyncio
import datetime
import importlib
import struct
from contextlib import asynccontextmanager

import orjson

from flowshare.client.errors import check
from flowshare.client.net.tcp import open_tcp
from flowshare.client.settings import LinkSettings
from flowshare.clock import LoopClock
from flowshare.protocol import messages
from flowshare.protocol.compact import framed, head
from flowshare.protocol.declaration import Api
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey, entity, module, read_request, request_start, write_response

NO_TIME = datetime.timedelta(0)
SETTINGS = LinkSettings(connect_timeout=20.0, request_timeout=20.0)
APIS = tuple(
    one
    for family in messages.FAMILIES
    for one in vars(importlib.import_module(f"flowshare.protocol.messages.{family}")).values()
    if isinstance(one, Api)
)
"""All that is declared with plain messages."""
EVERYTHING = {api.key: api.client for api in APIS if api.client is not None}
"""The versions of a broker that knows all that the client asks."""


def kio_error(code):
    """kio's error of a number."""
    return module("api_versions", 0, "response").ErrorCode(int(code))


def versions_answer(number, version, offered, error=0):
    """The frame of an ApiVersions answer."""
    m = module("api_versions", version, "response")
    keys = tuple(m.ApiVersion(api_key=key, min_version=lo, max_version=hi) for key, (lo, hi) in offered.items())
    more = {"throttle_time": NO_TIME} if version else {}
    return write_response(number, m.ApiVersionsResponse(error_code=kio_error(error), api_keys=keys, **more))


async def raw_call(connection, name, /, **fields):
    """Send one of flowshare's own calls with any fields, and return the answer's. Raises: ServerError."""
    body = orjson.dumps({"call": name, **fields})
    answer = await connection._pipeline.call(
        lambda number: framed([head(ApiKey.FLOWSHARE, 0, number, "raw"), body]),
        lambda frame: orjson.loads(frame[5:]),
        name=name,
    )
    check(ErrorCode(answer.get("error", 0)), answer.get("message"), name)
    return answer


class FakeBroker:
    """Answers ApiVersions by itself and other requests by `answer(key, start, frame, writer)`; None: not at all."""

    def __init__(self, offered=None, *, api_versions_highest=4):
        self.offered = dict(EVERYTHING if offered is None else offered)
        self.api_versions_highest = api_versions_highest
        self.starts = []
        self.frames = []
        self.writers = []
        self.host, self.port = "127.0.0.1", 0
        self.answer = lambda start, frame, writer: None
        self.tasks = set()

    async def serve(self, reader, writer):
        self.writers.append(writer)
        self.tasks.add(asyncio.current_task())
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                start = request_start(frame)
                self.starts.append(start)
                self.frames.append(frame)
                writer.write(self.respond(start, frame, writer) or b"")
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def respond(self, start, frame, writer):
        if start.key != ApiKey.API_VERSIONS:
            return self.answer(start, frame, writer)
        if start.version > self.api_versions_highest:
            known = {ApiKey.API_VERSIONS: (0, self.api_versions_highest)}
            return versions_answer(start.correlation_id, 0, known, ErrorCode.UNSUPPORTED_VERSION)
        return versions_answer(start.correlation_id, start.version, self.offered)


@asynccontextmanager
async def fake_broker(*args, **kwargs):
    broker = FakeBroker(*args, **kwargs)
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.host, broker.port = server.sockets[0].getsockname()[:2]
    try:
        yield broker
    finally:
        server.close()
        for task in broker.tasks:
            task.cancel()
        await asyncio.gather(*broker.tasks)
        await server.wait_closed()


@asynccontextmanager
async def connected(broker, *, clock=None, settings=SETTINGS, security=None):
    connection = await open_tcp(
        broker.host, broker.port, client_id="c", clock=clock or LoopClock(), settings=settings, security=security
    )
    try:
        yield connection
    finally:
        await connection.close()


def listed(start, *names):
    """The frame of a ListGroups answer with groups of these names."""
    m = module("list_groups", 5, "response")
    groups = tuple(
        m.ListedGroup(group_id=name, protocol_type="share", group_state="Stable", group_type="share") for name in names
    )
    return write_response(
        start.correlation_id, m.ListGroupsResponse(throttle_time=NO_TIME, error_code=kio_error(0), groups=groups)
    )


def asked(frame):
    """The request entity in a frame."""
    start = request_start(frame)
    return read_request(name_of(start.key), start, frame)[1]


def name_of(key):
    return ApiKey(key).name.lower()


def answer_of(name, version, **fields):
    """A response entity."""
    return entity(name, version, "response")(**fields)
