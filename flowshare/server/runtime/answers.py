"""Bytes of answers that a listener holds: reserved before they are read, being built, waiting, or not read by clients.

Each request off a socket has an `AnswerSpace`. A fetch reserves the bytes that it may read beforehand; every part of
another answer counts as it is built. Invariant: beyond `queued.max.response.bytes` there is at most one batch a
connection, and a connection has more than `connection.queued.max.response.bytes` only by the answer whose turn it is.

Handlers find their request's space by `space()`. A connection within the process has none: its requests get all that
they want.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from flowshare.protocol.errors import ErrorCode
from flowshare.server.runtime.failures import Refused
from flowshare.server.runtime.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from flowshare.clock import Clock
    from flowshare.server.runtime.waiting import Waiter

T = TypeVar("T")

KIB: Final = 1024
FETCH_BYTES_MAX: Final = 64 << 20
"""Most bytes that one fetch is given."""
LEAST_BYTES: Final = 64 * KIB
"""Least bytes that a fetch is let read; the answer whose turn it is gets that, and one batch, even over the limit."""
PART_OF_REST: Final = 4
"""Divisor: a fetch gets at most a fourth of the bytes left, so that some are left for the next fetch."""
STEP_BYTES: Final = 64 * KIB
"""Growth of an answer, in bytes, between two checks of all answers' bytes."""
LARGE_BYTES: Final = 1024 * KIB
"""Bytes below which an answer is built even when all answers together are over the limit."""


class AnswerTooLarge(Refused):
    """An answer grew beyond a limit while it was built."""


def granted(wanted: int, *, first: bool, ahead: int, ahead_max: int, left: int) -> int:
    """Return the bytes of `wanted` that a fetch may read now, 0: none yet.

    first: its answer is the next one of its connection. ahead: bytes that its client has to read before it; ahead_max:
    most bytes that may be ahead. left: bytes that all connections together may hold in addition.
    """
    if ahead > ahead_max:
        return 0
    share = left // PART_OF_REST
    if first:
        return min(wanted, max(share, LEAST_BYTES))
    found = min(wanted, ahead_max - ahead, share)
    return found if found >= min(wanted, LEAST_BYTES) else 0


class SpaceHolder(Protocol):
    """The connection of a space."""

    def ahead(self, space: AnswerSpace) -> tuple[bool, int]:
        """Return True if the space's answer is its connection's next one, and the bytes to read before it."""
        ...

    def starved(self, waiter: Waiter) -> None:
        """Wake `waiter` when there may be room."""
        ...


class Answers:
    """The account of one listener. `unread`: bytes that are written, or wait for their turn, and were not read."""

    def __init__(self, bytes_max: int, connection_bytes_max: int, one_bytes_max: int) -> None:
        """Set limits, in bytes: of all answers, of one connection's unread ones, of one answer that is built."""
        self.configure(bytes_max, connection_bytes_max, one_bytes_max)
        self.reserved = 0
        """Bytes of unfinished answers."""
        self.unread: Callable[[], int] = int

    def configure(self, bytes_max: int, connection_bytes_max: int, one_bytes_max: int) -> None:
        """Apply other limits from now on."""
        self._bytes_max = bytes_max
        self.connection_bytes_max = connection_bytes_max
        self.one_bytes_max = one_bytes_max

    @property
    def held(self) -> int:
        """Bytes of all answers."""
        return self.reserved + self.unread()

    @property
    def left(self) -> int:
        """Bytes left until the limit; negative: over the limit."""
        return self._bytes_max - self.held


class AnswerSpace:
    """The memory that the answer to one request takes."""

    __slots__ = ("_account", "_free", "_holder", "_looked", "_place", "built", "held", "turns")

    def __init__(
        self, account: Answers | None = None, holder: SpaceHolder | None = None, turns: Turns | None = None
    ) -> None:
        """turns: the connection's."""
        self._account = account
        self._holder = holder
        self._looked = STEP_BYTES
        self._free = False
        self._place: Callable[[], object] | None = None
        self.turns = turns
        self.built = 0
        """Bytes of the parts made so far."""
        self.held = 0
        """Bytes that count: built parts and reservations."""

    def reserve(self, wanted: int) -> int:
        """Reserve bytes to read now, at most `wanted`; return their number, 0 if none; `settle` corrects the number."""
        account, holder = self._account, self._holder
        if account is None or holder is None:
            return wanted
        first, ahead = holder.ahead(self)
        found = granted(wanted, first=first, ahead=ahead, ahead_max=account.connection_bytes_max, left=account.left)
        self._change(found)
        return found

    def settle(self, reserved: int, read: int) -> None:
        """Correct a reservation to the bytes that were read; these may be more by one batch."""
        self._change(read - reserved)

    def wake(self, waiter: Waiter) -> None:
        """Wake `waiter` when `reserve` may succeed."""
        if self._holder is not None:
            self._holder.starved(waiter)

    def add(self, count: int) -> None:
        """Count a made part of an answer, in bytes. Raises: AnswerTooLarge."""
        account = self._account
        if account is None:
            return
        self.built += count
        self._change(count)
        if self._free:
            return
        if self.built > account.one_bytes_max:
            raise AnswerTooLarge(
                ErrorCode.INVALID_REQUEST,
                f"the answer would take more than {account.one_bytes_max} bytes (response.max.bytes); "
                "ask for less at a time",
            )
        if self.built > self._looked:
            self._looked = self.built + STEP_BYTES
            if self.built > LARGE_BYTES and account.left < 0:
                raise AnswerTooLarge(
                    ErrorCode.INVALID_REQUEST,
                    "too many bytes of answers wait for their clients (queued.max.response.bytes); "
                    "ask for less at a time, or later",
                )

    async def fitting(self, make: Callable[[], Awaitable[T]], refuse: Callable[[Refused], T]) -> T:
        """Return the result of `make` for one name of a request; if `make` makes the answer too large, return the
        result of `refuse`.

        The refusal counts, and is never too large: it has about the size of the name.
        """
        before = self.built
        try:
            return await make()
        except AnswerTooLarge as error:
            self._change(before - self.built)
            self.built = before
            self._free = True
            try:
                return refuse(error)
            finally:
                self._free = False

    def take_place(self, give: Callable[[], object]) -> None:
        """Note the request's place among those of many parts; `give` gives the place back."""
        self._place = give

    def give_place(self) -> None:
        """Give the place back: the request is answered, or waits for events minutes away; harmless without a place."""
        give, self._place = self._place, None
        if give is not None:
            give()

    def finish(self) -> None:
        """End the account: the answer is finished, or nobody waits for it."""
        self._change(-self.held)

    def _change(self, count: int) -> None:
        self.held += count
        if self._account is not None:
            self._account.reserved += count


_UNBOUNDED: Final = AnswerSpace()
_SPACE: ContextVar[AnswerSpace] = ContextVar("space", default=_UNBOUNDED)
space = _SPACE.get
"""Returns the space of the request that is answered."""
enter = _SPACE.set
"""Makes this task answer the request of a space from now on."""


def turns(clock: Clock) -> Turns:
    """Return the turns of the connection whose request is answered; new turns within the process."""
    found = space().turns
    return Turns(clock) if found is None else found


def text_bytes(texts: Iterable[str]) -> int:
    """Return the bytes that texts take as parts of an answer, about."""
    return sum(64 + len(one) for one in texts)
