"""The worker's end of the control channel: a thread with a blocking socket.

A thread, so that neither a blocked handler loop nor a busy service loop keeps an order or a sign of life waiting; only
code that holds the interpreter's lock does.

    CALLING -- greeted --> TALKING           orders come, figures go every BEAT_S
    TALKING -- the connection ends, or SILENT_S without a word --> CALLING
    CALLING -- without the driver for LOST_S --> `on_lost` once, then on as before

`connect` makes the first call and returns when it succeeded, so that no handler runs in a worker that nobody leads.
"""

from __future__ import annotations

import hmac
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from flowshare.spark.control import (
    BEAT_S,
    FRAME_MAX,
    GREETING_MAX,
    GREETING_S,
    LENGTH,
    SILENT_S,
    TAG_BYTES,
    VERSION,
    ControlError,
    Message,
    Seal,
    Who,
    length_of,
    new_nonce,
    nonces_of,
    plain,
    proof,
    read_plain,
)

logger = logging.getLogger("flowshare.spark")

LOST_S: Final = 10.0
"""How long a worker tries to reach its driver before it counts as gone."""
RETRY_S: Final = 0.25
RETRY_SOON_S: Final = 0.02
"""The same just after the connection ended: the driver takes a worker that stays away for dead."""
SEND_S: Final = 5.0
"""How long sending may block: the driver reads at once, or is gone."""
CLOSE_S: Final = 2.0
OUTBOX_MAX: Final = 100
"""Messages that wait to be sent; the oldest are forgotten."""


class DriverLost(Exception):
    """The driver cannot be reached; the text says where it should be."""


class ControlClient:
    """A worker's connection to its driver, from `connect` to `close`.

    figures: made every BEAT_S on the thread. on_order: told each order, on the thread. on_lost: called once on the
    thread when the driver is gone for LOST_S.
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
        self._contact_s = time.monotonic()
        self._last: Message | None = None
        self._closing = threading.Event()
        self._woken, self._waker = socket.socketpair()
        self._outbox: deque[Message] = deque(maxlen=OUTBOX_MAX)
        self._first: tuple[socket.socket, Seal] | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="flowshare-control", daemon=True)

    def connect(self) -> None:
        """Call the driver, for LOST_S at most, and go on by a thread. Raises: DriverLost."""
        begun_s = time.monotonic()
        while True:
            try:
                first = self._call()
            except (OSError, ControlError) as error:
                if time.monotonic() - begun_s > self._lost_s:
                    self._woken.close()
                    self._waker.close()
                    raise DriverLost(self._text(error)) from None
                time.sleep(RETRY_S)
            else:
                self._first = first
                self._contact_s = time.monotonic()
                self._thread.start()
                return

    def say(self, message: Message) -> None:
        """Send something soon; from any thread. What cannot be sent now is forgotten with its connection."""
        with self._lock:
            self._outbox.append(message)
        self._wake()

    def close(self, last: Message) -> None:
        """Send the last figures and this, if the driver is there, and end; harmless when it is closed already."""
        if self._closing.is_set():
            return
        self._last = last
        self._closing.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        self._waker.close()

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        told = False
        with self._woken:
            while not self._closing.is_set():
                try:
                    self._talk()
                except Exception as error:  # noqa: BLE001 - a figure that cannot be made must not cut the worker off
                    expected = isinstance(error, (OSError, ControlError))
                    logger.log(logging.DEBUG if expected else logging.ERROR, "calling the driver: %r", error)
                    away_s = time.monotonic() - self._contact_s
                    if not told and not self._closing.is_set() and away_s > self._lost_s:
                        told = True
                        logger.warning("%s: this worker finishes what it runs and ends", self._text(error))
                        self._on_lost()
                    self._closing.wait(RETRY_SOON_S if away_s < RETRY_S else RETRY_S)

    def _talk(self) -> None:
        """One connection, to its end. Raises: OSError, ControlError."""
        first, self._first = self._first, None
        connection, seal = first or self._call()
        with connection, selectors.DefaultSelector() as selector:
            selector.register(connection, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            self._exchange(connection, seal, selector)

    def _exchange(self, connection: socket.socket, seal: Seal, selector: selectors.BaseSelector) -> None:
        buffer = bytearray()
        next_s = time.monotonic()
        self._contact_s = next_s
        while True:
            closing = self._closing.is_set()
            now = time.monotonic()
            if now >= next_s or closing:
                connection.sendall(seal.seal({"say": "figures", **self._figures()}))
                next_s = now + BEAT_S
            self._send_rest(connection, seal)
            if closing:
                connection.sendall(seal.seal(self._last or {}))
                return
            if now - self._contact_s > SILENT_S:
                raise ControlError("the driver is silent")
            ready = [key.fileobj for key, _ in selector.select(max(0.0, next_s - now))]
            if self._woken in ready:
                self._woken.recv(64)
            if connection in ready:
                data = connection.recv(65536)
                if not data:
                    raise ControlError("the driver closed the connection")
                buffer += data
                self._contact_s = time.monotonic()
                self._take(buffer, seal)

    def _send_rest(self, connection: socket.socket, seal: Seal) -> None:
        with self._lock:
            messages = list(self._outbox)
            self._outbox.clear()
        for message in messages:
            connection.sendall(seal.seal(message))

    def _take(self, buffer: bytearray, seal: Seal) -> None:
        """Orders that are complete, off the buffer."""
        while len(buffer) >= LENGTH.size:
            end = LENGTH.size + TAG_BYTES + length_of(bytes(buffer[: LENGTH.size]), FRAME_MAX)
            if len(buffer) < end:
                return
            body = bytes(buffer[LENGTH.size : end])
            del buffer[:end]
            self._on_order(seal.unseal(body))

    def _call(self) -> tuple[socket.socket, Seal]:
        """Connect and greet. Raises: OSError, ControlError."""
        connection = socket.create_connection(self._address, timeout=GREETING_S)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            hello = read_plain(_read_frame(connection))
            if hello.get("version") != VERSION:
                raise ControlError(f"the driver speaks version {hello.get('version')}, this worker {VERSION}")
            mine = new_nonce()
            nonces = nonces_of(hello.get("nonce"), mine)
            who = asdict(self._who)
            connection.sendall(plain({"nonce": mine, "who": who, "proof": proof(self._token, "worker", nonces, who)}))
            said = str(read_plain(_read_frame(connection)).get("proof"))
            if not hmac.compare_digest(said, proof(self._token, "driver", nonces, who)):
                raise ControlError("what answers there is not this worker's driver")
            connection.settimeout(SEND_S)
        except BaseException:
            connection.close()
            raise
        return connection, Seal(self._token, nonces, driver=False)

    def _wake(self) -> None:
        try:
            self._waker.send(b"w")
        except OSError:
            return  # it has ended

    def _text(self, error: BaseException) -> str:
        host, port = self._address
        return f"the fleet's driver cannot be reached at {host}:{port} ({error})"


def _read_frame(connection: socket.socket) -> bytes:
    return _read(connection, length_of(_read(connection, LENGTH.size), GREETING_MAX))


def _read(connection: socket.socket, count: int) -> bytes:
    """Exactly so many bytes. Raises: ControlError (it ended before), OSError."""
    found = bytearray()
    while len(found) < count:
        data = connection.recv(count - len(found))
        if not data:
            raise ControlError("the connection ended in a greeting")
        found += data
    return bytes(found)
