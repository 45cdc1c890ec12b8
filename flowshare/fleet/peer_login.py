"""The mutual proof of identity between the workers of a fleet.

A worker draws a pair of keys (X25519) when it starts; the private half never leaves its memory. The mark of the public
half (128 bits of its SHA-256: the whole map has all of them, and Kafka's record has an end) stands in the worker's
metadata in the slot group: only a client that may READ that group can put a mark there, and a client that may only see
the group (DESCRIBE) learns nothing that helps. A line between two workers begins with a greeting:

    caller → callee    GreetRequest: public half, mark of the callee, generation, nonce
    callee → caller    GreetResponse: public half, nonce

Both ends make the line's key of their own private half, the other's public half, and both nonces; no third party can.
Each call and each answer carries its text and a MAC over the direction, a number, the call's name and that text. So an
answered call came from a worker of this fleet, to this one, on this line, once; and the answer is this worker's.

A mark counts as long as the slot group's last map has it, and `KEPT_S` longer: a worker that leaves in order is asked,
and asks, while it gives its slots away. A caller with a newer map is waited for: `GREET_S`, in which Kafka is asked,
too.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar, cast

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from flowshare.client.errors import ClientError, ConnectionLost, NotConnected, check
from flowshare.fleet.messages import NONCE_DIGITS, GreetRequest, GreetResponse, ProvenAnswer, ProvenCall
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.private import read, write
from flowshare.server.runtime.failures import Refused
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.fleet.directory import Directory
    from flowshare.protocol.messages import Request, Response
    from flowshare.server.edge.base import SocketCall
    from flowshare.slots.membership import SlotMap

KEPT_S: Final = 30.0
"""Time, in s, for which a worker that left may still call; calls to and from it are over by then."""
GREET_S: Final = 2.0
"""Time, in s, to wait for a caller that the next map may have."""
PAUSE_S: Final = 0.2
GREETINGS_MAX: Final = 100
"""The most callers that are waited for at a time."""
WINDOW: Final = 4096
"""The calls of a line that may overtake each other; more are never under way."""
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = NONCE_DIGITS // 2
_MARK_DIGITS: Final = 32
_LABEL: Final = b"flowshare fleet 1"
_LINE: Final = "fleet line"
_ASKED: Final = b"asked"
_ANSWERED: Final = b"answered"
STRANGER: Final = "this call is for the workers of this fleet only"
"""Message to a caller that is no worker of this fleet. A worker that the slot group gave up gets the message, too,
until it has joined again."""

R = TypeVar("R")
Random = Callable[[int], bytes]


class PeerLine(Protocol):
    """A connection to one worker (`client.net.tcp.TcpConnection`)."""

    async def send(self, request: Request[R]) -> R:
        """Make one of flowshare's own calls. Raises NotConnected, ConnectionLost."""
        ...

    async def close(self) -> None:
        """Close."""


class KeyPair:
    """One worker's keys. `public`: the half that others are told; `mark`: its mark. Both in hexadecimal digits.

    random: returns the given number of random bytes.
    """

    def __init__(self, random: Random) -> None:
        self._private = X25519PrivateKey.from_private_bytes(random(_KEY_BYTES))
        self._random = random
        self.public: Final = self._private.public_key().public_bytes_raw().hex()
        self.mark: Final = mark_of(self.public)

    def nonce(self) -> str:
        """Return a random value that is used once, in hexadecimal digits."""
        return self._random(_NONCE_BYTES).hex()

    def line_key(self, other: str, greeting: Greeting) -> bytes:
        """Return the key of a line to the worker whose public half is `other`. Raises ValueError (not a public
        half)."""
        shared = self._private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(other)))
        made = HKDF(SHA256(), _KEY_BYTES, salt=None, info=b"\0".join((_LABEL, *map(str.encode, greeting))))
        return made.derive(shared)


def mark_of(public: str) -> str:
    """Return the mark of a public half, in hexadecimal digits."""
    return hashlib.sha256(public.encode()).hexdigest()[:_MARK_DIGITS]


class Greeting(NamedTuple):
    """Values to which a line's key is bound: both public halves, both nonces."""

    caller: str
    callee: str
    asked: str
    answered: str


# --- whom this worker knows -----------------------------------------------------------------------------------------


class KnownKeys:
    """Marks of the fleet's workers, now or shortly ago in the slot group.

    describe: returns the slot group's map as Kafka tells it to any client; None: not now.
    """

    def __init__(self, directory: Directory, clock: Clock, describe: Callable[[], Awaitable[SlotMap | None]]) -> None:
        self._directory = directory
        self._clock = clock
        self._describe = describe
        self._map: SlotMap | None = None
        self._present: frozenset[str] = frozenset()
        self._former: dict[str, float] = {}
        self._nodes: dict[int, str] = {}
        self._news = asyncio.Event()
        self._waiting = 0
        self._lookups: asyncio.Task[None] | None = None
        directory.on_change(self._look)

    def has(self, mark: str) -> bool:
        """True if the mark belongs to a worker of the fleet, or to one that left shortly ago."""
        return mark in self._present or self._clock.monotonic() < self._former.get(mark, 0.0)

    def of(self, node_id: int) -> str | None:
        """Return the mark of a worker, also of one that left shortly ago."""
        mark = self._nodes.get(node_id)
        return mark if mark is not None and self.has(mark) else None

    async def expect(self, mark: str, generation: int) -> bool:
        """True if the mark is one of the fleet's, or becomes one shortly. generation: of the map that the mark's owner
        has."""
        if self.has(mark) or not self._behind(generation) or self._waiting >= GREETINGS_MAX:
            return self.has(mark)
        self._waiting += 1
        try:
            if self._lookups is None or self._lookups.done():
                self._lookups = asyncio.create_task(self._ask(), name="look at the slot group")
            with suppress(TimeoutError):
                await self._clock.wait_for(self._heard_of(mark, generation), GREET_S)
        finally:
            self._waiting -= 1
        return self.has(mark)

    async def _heard_of(self, mark: str, generation: int) -> None:
        while not self.has(mark) and self._behind(generation):
            await self._news.wait()

    async def close(self) -> None:
        """Stop asking Kafka."""
        await cancelled(self._lookups)

    def _behind(self, generation: int) -> bool:
        now = self._directory.map
        return now is not None and now.generation < generation

    async def _ask(self) -> None:
        """While a caller waits, take Kafka's map if it is newer than this worker's."""
        while self._waiting:
            with suppress(OSError, ClientError):
                found = await self._clock.wait_for(self._describe(), GREET_S)
                if found is not None and self._behind(found.generation):
                    self._keep(found)
            await self._clock.sleep(PAUSE_S)

    def _look(self) -> None:
        before, now = self._map, self._directory.map
        if now is not None and now is not before:
            self._map, self._present = now, frozenset(now.keys.values())
            if before is not None:
                self._keep(before)
            self._nodes.update(now.keys)
            self._tell()

    def _keep(self, found: SlotMap) -> None:
        now_s = self._clock.monotonic()
        self._former = {mark: until_s for mark, until_s in self._former.items() if until_s > now_s}
        self._former.update(dict.fromkeys(found.keys.values(), now_s + KEPT_S))
        self._nodes = {node_id: mark for node_id, mark in self._nodes.items() if self.has(mark)} | dict(found.keys)
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


# --- the caller's end -----------------------------------------------------------------------------------------------


async def greet(line: PeerLine, pair: KeyPair, callee: str, *, generation: int, about: str) -> ProvenLine:
    """Begin a line to the worker whose mark is `callee`. about: names that worker in errors.

    Raises: ServerError, OSError.
    """
    nonce = pair.nonce()
    told = await line.send(GreetRequest(caller=pair.public, callee=callee, generation=generation, nonce=nonce))
    check(told.error, told.message, f"{about}: the greeting")
    if mark_of(told.key) != callee:
        raise NotConnected(f"{about}: what greets there is not that worker")
    try:
        key = pair.line_key(told.key, Greeting(pair.public, told.key, nonce, told.nonce))
    except ValueError as error:
        raise NotConnected(f"{about} does not greet as a worker does ({error})") from None
    return ProvenLine(line, key, about)


class ProvenLine:
    """A line between two workers that have proven their identity; made by `greet`."""

    def __init__(self, line: PeerLine, key: bytes, about: str) -> None:
        self._line = line
        self._key = key
        self._about = about
        self._number = 0

    async def call(self, request: Request[R]) -> R:
        """Make one call. Raises ServerError, NotConnected, ConnectionLost (also: another worker answered, or one of
        another version)."""
        self._number += 1
        own = request.own
        assert own is not None
        number, text = self._number, write(request).decode()
        mac = _mac(self._key, _ASKED, number, own.name, text)
        told = await self._line.send(ProvenCall(name=own.name, number=number, text=text, mac=mac))
        check(told.error, told.message, f"{self._about}: {own.name}")
        if not _same(told.mac, _mac(self._key, _ANSWERED, number, own.name, told.text)):
            raise ConnectionLost(f"{self._about}: what answered {own.name} is not that worker")
        try:
            answer: Any = read(own.response, told.text)
        except DecodeError as error:
            text = f"{self._about}: the answer to {own.name} makes no sense here ({error}); are versions mixed?"
            raise ConnectionLost(text) from None
        check(answer.error, answer.message, f"{self._about}: {own.name}")
        return cast("R", answer)

    async def close(self) -> None:
        """Close."""
        await self._line.close()


# --- the callee's end -----------------------------------------------------------------------------------------------


class _CallSession:
    """The callee's end of a line. Each call number is accepted once."""

    def __init__(self, caller: str, key: bytes) -> None:
        self.caller = caller
        self.key = key
        self._highest = 0
        self._taken = 0
        """One bit per used number; the lowest bit is the highest number's."""

    def takes(self, number: int) -> bool:
        """True if this call number is new; from now on it counts as used."""
        ahead = number - self._highest
        if ahead > 0:
            self._taken = (self._taken << ahead | 1) & (1 << WINDOW) - 1 if ahead < WINDOW else 1
            self._highest = number
            return True
        if ahead <= -WINDOW or self._taken >> -ahead & 1:
            return False
        self._taken |= 1 << -ahead
        return True


class OpenedCall(NamedTuple):
    """A proven call, with the values that its answer's proof needs."""

    name: str
    text: str
    number: int
    key: bytes

    def answered(self, answer: Response) -> ProvenAnswer:
        """Return the answer with its proof."""
        text = write(answer).decode()
        return ProvenAnswer(text=text, mac=_mac(self.key, _ANSWERED, self.number, self.name, text))


class PeerDoor:
    """Accepts the calls of other workers."""

    def __init__(self, pair: KeyPair, known: KnownKeys, directory: Directory) -> None:
        self._pair = pair
        self._known = known
        self._directory = directory

    async def greet(self, call: SocketCall, request: GreetRequest) -> GreetResponse:
        """Begin a line. Raises Refused."""
        caller, generation = request.caller, request.generation
        trusted = await self._known.expect(mark_of(caller), generation)
        mine = self._directory.map
        if mine is None or (not trusted and mine.generation < generation):
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "this worker is joining its fleet; try again")
        if not trusted:
            raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, STRANGER)
        if request.callee != self._pair.mark:
            raise Refused(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "another worker listened here before; try again when you know"
            )
        answered = self._pair.nonce()
        try:
            key = self._pair.line_key(caller, Greeting(caller, self._pair.public, request.nonce, answered))
        except ValueError:
            raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, STRANGER) from None
        call.peer.extra[_LINE] = _CallSession(mark_of(caller), key)
        return GreetResponse(key=self._pair.public, nonce=answered)

    def open(self, call: SocketCall, request: ProvenCall) -> OpenedCall:
        """Return a call's content if a worker of this fleet makes the call to this worker, now. Raises Refused."""
        session: _CallSession | None = call.peer.extra.get(_LINE)
        name, number, text = request.name, request.number, request.text
        if (
            session is None
            or not _same(request.mac, _mac(session.key, _ASKED, number, name, text))
            or not self._known.has(session.caller)
            or not session.takes(number)
        ):
            raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, STRANGER)
        return OpenedCall(name, text, number, session.key)


def _mac(key: bytes, direction: bytes, number: int, name: str, text: str) -> str:
    head = b"\0".join((direction, str(number).encode(), name.encode(), b""))
    return hmac.digest(key, head + text.encode(), "sha256").hex()


def _same(told: str, wanted: str) -> bool:
    return hmac.compare_digest(told.encode(), wanted.encode())
