"""The control channel between the driver and the workers on Spark: frames, their protection, both ends.

Each worker opens one TCP connection to the driver and keeps it; orders go one way, figures the other.

    driver  -> {"version", "nonce"}                                    plain
    worker  -> {"nonce", "who", "proof"}                               plain
    driver  -> {"proof"}                                               plain
    both    -> length, tag, JSON                                       sealed from here on

The token never crosses the wire: both prove that they have it (HMAC-SHA256 over both nonces), and each frame carries a
tag made with a key of this connection and its number, so that no frame can be inserted, changed, repeated or left out.
Frames are not encrypted: figures, names of topics and, on demand, stacks of handlers are no secrets; settings and
passwords travel in the task's closure, which Spark protects (`task.py`).

Bounded: a frame FRAME_MAX bytes, a greeting GREETING_MAX bytes and GREETING_S seconds, GREETERS_MAX of them at a time;
OUT_MAX bytes that a worker has not read, then its connection is closed. An end that hears nothing for SILENT_S seconds
closes the connection: both ends send at least every BEAT_S. The worker opens it again:

    CALLING -- greeted --> TALKING           orders come, figures go every BEAT_S
    TALKING -- the connection ends, or SILENT_S without a word --> CALLING
    CALLING -- for LOST_S --> `on_lost` once, then on as before

The worker's end has a separate thread and loop, so that neither a blocked handler loop nor a busy service loop delays
an order or a sign of life; only code that holds the interpreter's lock does.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import hashlib
import hmac
import logging
import secrets
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import orjson

from flowshare.agents.host.service import ServiceLoop
from flowshare.tasks import cancelled

logger = logging.getLogger("flowshare.spark")

Message = dict[str, Any]

VERSION: Final = 1
TOKEN_BYTES: Final = 32
NONCE_BYTES: Final = 16
FRAME_MAX: Final = 4 << 20
GREETING_MAX: Final = 4096
GREETING_S: Final = 5.0
GREETERS_MAX: Final = 256
OUT_MAX: Final = 4 << 20
BEAT_S: Final = 1.0
SILENT_S: Final = 10.0
LENGTH: Final = struct.Struct(">I")
TAG_BYTES: Final = 32
LOST_S: Final = 10.0
"""The seconds that a worker tries to reach its driver before the driver counts as gone."""
RETRY_S: Final = 0.25
RETRY_SOON_S: Final = 0.02
"""The pause, in seconds, between tries just after the connection ended: the driver takes a worker that stays away for
dead."""
SEND_S: Final = 5.0
"""The time limit, in seconds, to send: the driver reads at once, or is gone."""
CLOSE_S: Final = 2.0
OUTBOX_MAX: Final = 100
"""The most messages that wait to be sent; the oldest are dropped."""


class ControlError(Exception):
    """The other end breaks the channel's rules, or has another token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """The identity of a calling worker: its number, the run that the driver started, and its place.

    attempt: Spark's number of the task's attempt, as Spark itself may start a task again.
    """

    number: int
    run: str
    attempt: int
    pid: int
    host: str

    @classmethod
    def read(cls, found: Any) -> Self:
        """Read a greeting. Raises: ControlError."""
        try:
            return cls(
                number=int(found["number"]),
                run=str(found["run"]),
                attempt=int(found["attempt"]),
                pid=int(found["pid"]),
                host=str(found["host"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ControlError(f"a greeting that says not who calls: {error!r}") from None


class Seal:
    """Seals outgoing and unseals incoming frames of one connection. Raises nothing but ControlError.

    nonces: the driver's and the worker's.
    """

    def __init__(self, token: bytes, nonces: bytes, *, driver: bool) -> None:
        to_driver = _mac(token, b"to driver", nonces)
        to_worker = _mac(token, b"to worker", nonces)
        self._out, self._in = (to_worker, to_driver) if driver else (to_driver, to_worker)
        self._sent = 0
        self._received = 0

    def seal(self, message: Mapping[str, Any]) -> bytes:
        """Return the frame of a message. Raises: ControlError (too long)."""
        text = orjson.dumps(message)
        if len(text) > FRAME_MAX:
            raise ControlError(f"a message of {len(text)} bytes is longer than the {FRAME_MAX} that are allowed")
        tag = _mac(self._out, LENGTH.pack(self._sent & 0xFFFFFFFF), text)
        self._sent += 1
        return LENGTH.pack(len(text)) + tag + text

    def unseal(self, body: bytes) -> Message:
        """Return the message of a frame without its length: tag and JSON. Raises: ControlError."""
        tag, text = body[:TAG_BYTES], body[TAG_BYTES:]
        expected = _mac(self._in, LENGTH.pack(self._received & 0xFFFFFFFF), text)
        if not hmac.compare_digest(tag, expected):
            raise ControlError("a frame with a wrong tag")
        self._received += 1
        return _object(text)


def new_token() -> bytes:
    """Return a token for one driver and its workers."""
    return secrets.token_bytes(TOKEN_BYTES)


def proof(token: bytes, who_proves: str, nonces: bytes, who: Mapping[str, Any]) -> str:
    """Return the proof that `who_proves` ("driver" or "worker") has the token, for this connection and this worker."""
    text = orjson.dumps(dict(who), option=orjson.OPT_SORT_KEYS)
    return _mac(token, who_proves.encode(), nonces, text).hex()


def nonces_of(driver: Any, worker: Any) -> bytes:
    """Join both nonces. Raises: ControlError."""
    if not (isinstance(driver, str) and isinstance(worker, str) and len(driver) == len(worker) == 2 * NONCE_BYTES):
        raise ControlError("a greeting without a nonce")
    return f"{driver}/{worker}".encode()


def plain(message: Mapping[str, Any]) -> bytes:
    """Return the frame of a greeting."""
    text = orjson.dumps(message)
    return LENGTH.pack(len(text)) + text


async def read_frame(reader: asyncio.StreamReader, limit: int, tag_bytes: int = 0) -> bytes:
    """Read a frame and return it without its length. Raises: ControlError, OSError, EOFError."""
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if length > limit:
        raise ControlError(f"a frame of {length} bytes where {limit} are allowed")
    return await reader.readexactly(length + tag_bytes)


async def read_plain(reader: asyncio.StreamReader) -> Message:
    """Read a greeting. Raises: ControlError, OSError, EOFError."""
    return _object(await read_frame(reader, GREETING_MAX))


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


class WorkerConnection:
    """One worker's connection at the driver. Call all methods on the driver's loop."""

    def __init__(self, who: Who, seal: Seal, writer: asyncio.StreamWriter) -> None:
        self.who = who
        self.seal = seal
        self._writer = writer

    def send(self, message: Mapping[str, Any]) -> None:
        """Send an order; a connection that has ended or does not read is closed instead, which the server reports."""
        transport = self._writer.transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size() > OUT_MAX:
            logger.warning("worker %d does not read its orders: its connection is closed", self.who.number)
            transport.abort()
            return
        self._writer.write(self.seal.seal(message))

    def close(self) -> None:
        """End the connection after the sent bytes have left."""
        self._writer.close()


class ControlServer:
    """Listens for the workers on Spark.

    opened: called with a worker's new connection; False refuses it. heard: called with each message. closed: called
    when a connection has ended, with True if it was closed because it was silent for `silent_s`. All are called on the
    server's loop.
    """

    def __init__(
        self,
        token: bytes,
        *,
        opened: Callable[[WorkerConnection], bool],
        heard: Callable[[WorkerConnection, Message], None],
        closed: Callable[[WorkerConnection, bool], None],
        silent_s: float = SILENT_S,
    ) -> None:
        self._token = token
        self._opened, self._heard, self._closed = opened, heard, closed
        self._silent_s = silent_s
        self._server: asyncio.Server | None = None
        self._peers: set[WorkerConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._greeting = 0
        self._beating: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int = 0) -> tuple[str, int]:
        """Listen, and return the address. Raises: OSError."""
        self._server = await asyncio.start_server(self._connected, host, port)
        self._beating = asyncio.create_task(self._beat(), name="flowshare-control")
        found: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return found

    async def close(self) -> None:
        """Stop listening and end all connections."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        await cancelled(*self._tasks, self._beating)

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
        if not self._opened(peer):
            peer.send({"do": "end"})
            return
        self._peers.add(peer)
        silent = False
        try:
            while True:
                async with asyncio.timeout(self._silent_s):
                    body = await read_frame(reader, FRAME_MAX, TAG_BYTES)
                self._heard(peer, peer.seal.unseal(body))
        except TimeoutError:
            silent = True
        finally:
            self._peers.discard(peer)
            self._closed(peer, silent)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> WorkerConnection:
        """Identify the caller. Raises: ControlError, OSError, EOFError, TimeoutError."""
        if self._greeting >= GREETERS_MAX:
            raise ControlError("too many that have not said who they are")
        self._greeting += 1
        try:
            async with asyncio.timeout(GREETING_S):
                mine = secrets.token_hex(NONCE_BYTES)
                writer.write(plain({"version": VERSION, "nonce": mine}))
                said = await read_plain(reader)
        finally:
            self._greeting -= 1
        nonces = nonces_of(mine, said.get("nonce"))
        who = Who.read(said.get("who"))
        expected = proof(self._token, "worker", nonces, asdict(who))
        if not hmac.compare_digest(expected, str(said.get("proof"))):
            logger.warning("somebody called the driver without its token, from %s", writer.get_extra_info("peername"))
            raise ControlError("a wrong proof")
        writer.write(plain({"proof": proof(self._token, "driver", nonces, asdict(who))}))
        return WorkerConnection(who, Seal(self._token, nonces, driver=True), writer)


# --- the worker's end ---------------------------------------------------------------------------------------------


Talk = tuple[asyncio.StreamReader, asyncio.StreamWriter, Seal]


class DriverLost(Exception):
    """The driver cannot be reached; the text has its address."""


class ControlClient:
    """A worker's connection to its driver, from `connect` to `close`.

    figures: called every BEAT_S, on the thread. on_order: called with each order, on the thread. on_lost: called once,
    on the thread, when the driver was called for LOST_S in vain.
    """

    def __init__(
        self,
        address: tuple[str, int],
        token: bytes,
        who: Who,
        *,
        figures: Callable[[], Mapping[str, Any]],
        on_order: Callable[[Message], None],
        on_lost: Callable[[], None],
        lost_s: float = LOST_S,
    ) -> None:
        self._address = address
        self._token = token
        self._who = who
        self._figures = figures
        self._on_order = on_order
        self._on_lost = on_lost
        self._lost_s = lost_s
        self._calling_s = time.monotonic()
        """The time since when the state is CALLING. The silence before it does not count: the driver may have stood
        still for as long as that, and answer now."""
        self._last: Message | None = None
        self._outbox: deque[Message] = deque(maxlen=OUTBOX_MAX)
        self._lasting: list[Message] = []
        self._woken = asyncio.Event()
        self._closing = asyncio.Event()
        self._service = ServiceLoop(name="flowshare-control")
        self._kept: concurrent.futures.Future[None] | None = None

    def connect(self) -> None:
        """Call the driver, for LOST_S at most, then go on in a thread: no handler runs in a worker without a driver.

        Raises: DriverLost.
        """
        self._service.start()
        try:
            first = self._service.submit(self._first_call).result()
        except DriverLost:
            self._service.stop()
            raise
        self._kept = self._service.submit(lambda: self._keep(first))

    def say(self, message: Message, *, lasting: bool = False) -> None:
        """Send a message soon, over this or the next connection; from any thread. One that a connection took with it at
        its end is lost, and so is the oldest of more than OUTBOX_MAX. lasting: send it over each later connection, too:
        it says what the worker has become, and the driver would never know otherwise."""

        def put() -> None:
            (self._lasting if lasting else self._outbox).append(message)
            self._woken.set()

        self._do(put)

    def close(self, last: Message) -> None:
        """Send the last figures and `last`, if the driver is reachable, and end; closing twice does no harm."""

        def end() -> None:
            self._last = last
            self._closing.set()
            self._woken.set()

        if self._kept is not None:
            self._do(end)
            concurrent.futures.wait([self._kept], CLOSE_S)
            self._service.stop()

    def _do(self, function: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended
            self._service.loop.call_soon_threadsafe(function)

    # --- the thread -------------------------------------------------------------------------------------------------

    async def _first_call(self) -> Talk:
        """Connect for the first time, with retries. Raises: DriverLost."""
        begun_s = time.monotonic()
        while True:
            try:
                return await self._call()
            except (OSError, EOFError, ControlError) as error:
                if time.monotonic() - begun_s > self._lost_s:
                    raise DriverLost(self._text(error)) from error
            await asyncio.sleep(RETRY_S)

    async def _keep(self, first: Talk | None) -> None:
        """Talk over this connection, if only for the last message, and, whenever one ends, over the next, until
        `close`."""
        told = False
        while first is not None or not self._closing.is_set():
            try:
                connection, first = first or await self._call(), None
                await self._talk(*connection)
            except Exception as error:  # noqa: BLE001 - a figure that cannot be made must not cut the worker off
                expected = isinstance(error, (OSError, EOFError, ControlError))
                logger.log(logging.DEBUG if expected else logging.ERROR, "calling the driver: %r", error)
                away_s = time.monotonic() - self._calling_s
                if not told and not self._closing.is_set() and away_s > self._lost_s:
                    told = True
                    logger.warning("%s: this worker finishes what it runs and ends", self._text(error))
                    self._on_lost()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_SOON_S if away_s < RETRY_S else RETRY_S):
                        await self._closing.wait()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seal: Seal) -> None:
        """Talk over one connection, until `close`. Raises: OSError, EOFError, ControlError."""
        next_s = time.monotonic()
        told = 0
        reading = asyncio.create_task(self._read(reader, seal))
        reading.add_done_callback(lambda _: self._woken.set())
        try:
            while True:
                self._woken.clear()
                closing = self._closing.is_set()
                if (now_s := time.monotonic()) >= next_s or closing:
                    writer.write(seal.seal({"say": "figures", **self._figures()}))
                    next_s = now_s + BEAT_S
                for message in self._lasting[told:]:
                    writer.write(seal.seal(message))
                told = len(self._lasting)
                while self._outbox:
                    writer.write(seal.seal(self._outbox.popleft()))
                if closing:
                    writer.write(seal.seal(self._last or {}))
                async with asyncio.timeout(SEND_S):
                    await writer.drain()
                    if closing:
                        writer.close()
                        return await writer.wait_closed()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(next_s - now_s):
                        await self._woken.wait()
                if reading.done():
                    await reading
        finally:
            self._calling_s = time.monotonic()
            reading.cancel()
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, seal: Seal) -> None:
        """Read orders until the connection ends. Raises: OSError, EOFError, ControlError."""
        while True:
            try:
                async with asyncio.timeout(SILENT_S):
                    body = await read_frame(reader, FRAME_MAX, TAG_BYTES)
            except TimeoutError:
                raise ControlError("the driver is silent") from None
            self._on_order(seal.unseal(body))

    async def _call(self) -> Talk:
        """Connect and greet. Raises: OSError, EOFError, ControlError."""
        async with asyncio.timeout(GREETING_S):
            reader, writer = await asyncio.open_connection(*self._address)
            try:
                hello = await read_plain(reader)
                if hello.get("version") != VERSION:
                    raise ControlError(f"the driver speaks version {hello.get('version')}, this worker {VERSION}")
                mine = secrets.token_hex(NONCE_BYTES)
                nonces = nonces_of(hello.get("nonce"), mine)
                who = asdict(self._who)
                writer.write(plain({"nonce": mine, "who": who, "proof": proof(self._token, "worker", nonces, who)}))
                said = str((await read_plain(reader)).get("proof"))
                if not hmac.compare_digest(said, proof(self._token, "driver", nonces, who)):
                    raise ControlError("what answers there is not this worker's driver")
            except BaseException:
                writer.close()
                raise
        return reader, writer, Seal(self._token, nonces, driver=False)

    def _text(self, error: BaseException) -> str:
        host, port = self._address
        return f"the driver cannot be reached at {host}:{port} ({str(error) or 'no answer in time'})"
