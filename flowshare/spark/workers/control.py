"""The control channel between a fleet's driver and its workers: frames, how they are protected, the driver's end.

Each worker opens one TCP connection to the driver and keeps it; orders go one way, figures the other.

    driver  -> {"version", "nonce"}                                    plain
    worker  -> {"nonce", "who", "proof"}                               plain
    driver  -> {"proof"}                                               plain
    both    -> length, tag, JSON                                       sealed from here on

The token never crosses the wire: both prove that they have it (HMAC-SHA256 over both nonces), and each frame carries a
tag made with a key of this connection and its number, so that nothing can be put in, changed, repeated or left out.
Frames are not encrypted: figures, names of topics and, on demand, stacks of handlers are no secrets; settings and
passwords travel in the task's closure, which Spark protects (`task.py`).

Bounded: a frame FRAME_MAX bytes, a greeting GREETING_MAX bytes and GREETING_S seconds, GREETERS_MAX of them at a time;
what a worker does not read is OUT_MAX bytes, then its connection is closed. Whoever hears nothing for SILENT_S seconds
closes the connection: both sides send at least every BEAT_S. The worker opens it again (`control_client.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import secrets
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import orjson

logger = logging.getLogger("flowshare.spark")

Message = dict[str, Any]

VERSION: Final = 1
TOKEN_BYTES: Final = 32
FRAME_MAX: Final = 4 << 20
GREETING_MAX: Final = 4096
GREETING_S: Final = 5.0
GREETERS_MAX: Final = 256
OUT_MAX: Final = 4 << 20
BEAT_S: Final = 1.0
SILENT_S: Final = 10.0
LENGTH: Final = struct.Struct(">I")
TAG_BYTES: Final = 32


class ControlError(Exception):
    """The other side does not keep to the channel's rules, or has another token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """Which worker calls: its slot, the run of that slot that the driver started, and where it is.

    attempt: Spark's number of the task's attempt, as Spark itself may start a task again.
    """

    slot: int
    run: str
    attempt: int
    pid: int
    host: str

    @classmethod
    def read(cls, found: Any) -> Self:
        """What a greeting says. Raises: ControlError."""
        try:
            return cls(
                slot=int(found["slot"]),
                run=str(found["run"]),
                attempt=int(found["attempt"]),
                pid=int(found["pid"]),
                host=str(found["host"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ControlError(f"a greeting that says not who calls: {error!r}") from None


class Seal:
    """Frames of one connection: `seal` what goes out, `unseal` what comes in. Either raises nothing but ControlError.

    nonces: the driver's and the worker's.
    """

    def __init__(self, token: bytes, nonces: bytes, *, driver: bool) -> None:
        to_driver = _mac(token, b"to driver", nonces)
        to_worker = _mac(token, b"to worker", nonces)
        self._out, self._in = (to_worker, to_driver) if driver else (to_driver, to_worker)
        self._sent = 0
        self._received = 0

    def seal(self, message: Mapping[str, Any]) -> bytes:
        """The frame of a message. Raises: ControlError (it is too long)."""
        text = orjson.dumps(message)
        if len(text) > FRAME_MAX:
            raise ControlError(f"a message of {len(text)} bytes is longer than the {FRAME_MAX} that are allowed")
        tag = _mac(self._out, LENGTH.pack(self._sent & 0xFFFFFFFF), text)
        self._sent += 1
        return LENGTH.pack(len(text)) + tag + text

    def unseal(self, body: bytes) -> Message:
        """The message of a frame without its length: tag and JSON. Raises: ControlError."""
        tag, text = body[:TAG_BYTES], body[TAG_BYTES:]
        expected = _mac(self._in, LENGTH.pack(self._received & 0xFFFFFFFF), text)
        if not hmac.compare_digest(tag, expected):
            raise ControlError("a frame with a wrong tag")
        self._received += 1
        return _object(text)


def new_token() -> bytes:
    """A token for one fleet."""
    return secrets.token_bytes(TOKEN_BYTES)


def new_nonce() -> str:
    """A text that no other connection has."""
    return secrets.token_hex(16)


def proof(token: bytes, who_proves: str, nonces: bytes, who: Mapping[str, Any]) -> str:
    """What shows that `who_proves` ("driver" or "worker") has the token, for this connection and this worker."""
    text = orjson.dumps(dict(who), option=orjson.OPT_SORT_KEYS)
    return _mac(token, who_proves.encode(), nonces, text).hex()


def nonces_of(driver: Any, worker: Any) -> bytes:
    """Both nonces as one. Raises: ControlError."""
    if not (isinstance(driver, str) and isinstance(worker, str) and len(driver) == len(worker) == 32):
        raise ControlError("a greeting without a nonce")
    return f"{driver}/{worker}".encode()


def plain(message: Mapping[str, Any]) -> bytes:
    """The frame of a greeting."""
    text = orjson.dumps(message)
    return LENGTH.pack(len(text)) + text


def length_of(head: bytes, limit: int) -> int:
    """Length that a frame begins with. Raises: ControlError."""
    (length,) = LENGTH.unpack(head)
    if length > limit:
        raise ControlError(f"a frame of {length} bytes where {limit} are allowed")
    return int(length)


def read_plain(text: bytes) -> Message:
    """A greeting. Raises: ControlError."""
    return _object(text)


def _object(text: bytes) -> Message:
    try:
        found = orjson.loads(text)
    except ValueError as error:
        raise ControlError(f"no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ControlError("JSON that is no object")
    return found


def _mac(key: bytes, *parts: bytes) -> bytes:
    made = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        made.update(LENGTH.pack(len(part)))
        made.update(part)
    return made.digest()


# --- the driver's end ---------------------------------------------------------------------------------------------


class Peer:
    """One worker's connection at the driver. All on the driver's loop."""

    def __init__(self, who: Who, seal: Seal, writer: asyncio.StreamWriter) -> None:
        self.who = who
        self.heard_s = time.monotonic()
        """When it was last heard."""
        self._seal = seal
        self._writer = writer

    def send(self, message: Mapping[str, Any]) -> None:
        """Send an order; a connection that is gone or does not read is closed instead, of which the server tells."""
        transport = self._writer.transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size() > OUT_MAX:
            logger.warning("worker %d does not read its orders: its connection is closed", self.who.slot)
            transport.abort()
            return
        self._writer.write(self._seal.seal(message))

    def close(self) -> None:
        """End the connection once what was sent has left."""
        self._writer.close()

    def unseal(self, body: bytes) -> Message:
        """For the server. Raises: ControlError."""
        self.heard_s = time.monotonic()
        return self._seal.unseal(body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """What the driver is told; everything is called on its loop.

    opened: a worker is there; False refuses it. heard: it says something. closed: its connection has ended, at its end
    or, second argument true, because it was silent.
    """

    opened: Callable[[Peer], bool]
    heard: Callable[[Peer, Message], None]
    closed: Callable[[Peer, bool], None]


class ControlServer:
    """Listens for the workers of one fleet."""

    def __init__(self, token: bytes, listener: Listener, *, silent_s: float = SILENT_S) -> None:
        """silent_s: after so many seconds without a word a worker's connection is closed."""
        self._token = token
        self._listener = listener
        self._silent_s = silent_s
        self._server: asyncio.Server | None = None
        self._peers: set[Peer] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._greeting = 0
        self._beating: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int = 0) -> tuple[str, int]:
        """Listen; returns the address. Raises: OSError."""
        self._server = await asyncio.start_server(self._connected, host, port)
        self._beating = asyncio.create_task(self._beat(), name="flowshare-control")
        found: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return found

    async def close(self) -> None:
        """Stop listening and end all connections."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        tasks = [*self._tasks, *([self._beating] if self._beating is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            for peer in tuple(self._peers):
                peer.send({"do": "go on"})

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, EOFError, ControlError, TimeoutError) as error:
            logger.debug("a control connection ended: %r", error)
        except asyncio.CancelledError:
            pass  # the server closes; asyncio would report it as an error of this function
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = await self._greet(reader, writer)
        if not self._listener.opened(peer):
            peer.send({"do": "end"})
            return
        self._peers.add(peer)
        silent = False
        try:
            while True:
                async with asyncio.timeout(self._silent_s):
                    head = await reader.readexactly(LENGTH.size)
                    body = await reader.readexactly(length_of(head, FRAME_MAX) + TAG_BYTES)
                self._listener.heard(peer, peer.unseal(body))
        except TimeoutError:
            silent = True
        finally:
            self._peers.discard(peer)
            self._listener.closed(peer, silent)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Peer:
        """Find out who calls. Raises: ControlError, OSError, EOFError, TimeoutError."""
        if self._greeting >= GREETERS_MAX:
            raise ControlError("too many that have not said who they are")
        self._greeting += 1
        try:
            async with asyncio.timeout(GREETING_S):
                mine = new_nonce()
                writer.write(plain({"version": VERSION, "nonce": mine}))
                head = await reader.readexactly(LENGTH.size)
                said = read_plain(await reader.readexactly(length_of(head, GREETING_MAX)))
        finally:
            self._greeting -= 1
        nonces = nonces_of(mine, said.get("nonce"))
        who = Who.read(said.get("who"))
        expected = proof(self._token, "worker", nonces, asdict(who))
        if not hmac.compare_digest(expected, str(said.get("proof"))):
            logger.warning(
                "somebody called the fleet's driver without its token, from %s", writer.get_extra_info("peername")
            )
            raise ControlError("a wrong proof")
        writer.write(plain({"proof": proof(self._token, "driver", nonces, asdict(who))}))
        return Peer(who, Seal(self._token, nonces, driver=True), writer)
