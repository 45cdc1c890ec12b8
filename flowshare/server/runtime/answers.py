"""Bytes of answers that a listener holds: reserved before they are read, being built, waiting, or not read by clients.

Each request off a socket has an `AnswerSpace`. A fetch reserves what it may read beforehand; every part of another
answer counts as it is built. Invariant: beyond `queued.max.response.bytes` there is at most one batch a connection, and
a connection has more than `connection.queued.max.response.bytes` only by the answer whose turn it is.

Handlers find their request's space by `space()`. A connection within the process has none: it gets all that it wants.
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
"""Most that one fetch is given."""
LEAST_BYTES: Final = 64 * KIB
"""Least that a fetch is let read; whose turn it is gets that, and one batch, whatever all others hold."""
PART_OF_REST: Final = 4
"""A fetch gets at most the fourth part of what is left, so that something is left for the next one."""
STEP_BYTES: Final = 64 * KIB
"""Growth of an answer after which is looked at what all of them hold."""
LARGE_BYTES: Final = 1024 * KIB
"""An answer below that is built whatever all others hold."""


class AnswerTooLarge(Refused):
    """An answer grew beyond its limit while it was built."""


def granted(wanted: int, *, first: bool, ahead: int, ahead_max: int, left: int) -> int:
    """Bytes of `wanted` that a fetch may read now, 0: none yet.

    first: its answer is the next one of its connection. ahead: bytes that have to be read before it by its client;
    ahead_max: how many of them there may be. left: bytes that all connections together may hold beside those they do.
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
        """Whether the space's answer is the connection's next one, and bytes that its client has to read before."""
        ...

    def starved(self, waiter: Waiter) -> None:
        """Wake `waiter` when there may be room."""
        ...


class Answers:
    """The account of one listener. `unread`: bytes that are written, or wait for their turn, and were not read."""

    def __init__(self, bytes_max: int, connection_bytes_max: int, one_bytes_max: int) -> None:
        """Limits of all answers, of what one connection does not read, of one answer that is built."""
        self.configure(bytes_max, connection_bytes_max, one_bytes_max)
        self.reserved = 0
        """Bytes of answers that are not finished."""
        self.unread: Callable[[], int] = int

    def configure(self, bytes_max: int, connection_bytes_max: int, one_bytes_max: int) -> None:
        """Other limits hold from now on."""
        self._bytes_max = bytes_max
        self.connection_bytes_max = connection_bytes_max
        self.one_bytes_max = one_bytes_max

    @property
    def held(self) -> int:
        """Bytes of all answers there are."""
        return self.reserved + self.unread()

    @property
    def left(self) -> int:
        """Bytes that there may be more of; negative: there are too many."""
        return self._bytes_max - self.held


class AnswerSpace:
    """What the answer to one request takes."""

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
        """Bytes that the parts take which were made so far."""
        self.held = 0
        """Bytes that count: those, and what was reserved."""

    def reserve(self, wanted: int) -> int:
        """Bytes that may be read now, at most `wanted` and 0 if none may; `settle` says how many they were."""
        account, holder = self._account, self._holder
        if account is None or holder is None:
            return wanted
        first, ahead = holder.ahead(self)
        found = granted(wanted, first=first, ahead=ahead, ahead_max=account.connection_bytes_max, left=account.left)
        self._change(found)
        return found

    def settle(self, reserved: int, read: int) -> None:
        """Of what was reserved so many bytes were read; they may be more by one batch."""
        self._change(read - reserved)

    def wake(self, waiter: Waiter) -> None:
        """Wake `waiter` when there may be something to reserve."""
        if self._holder is not None:
            self._holder.starved(waiter)

    def add(self, count: int) -> None:
        """A part of an answer is made. Raises: AnswerTooLarge."""
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
        """What `make` makes of one name of a request; where the answer becomes too large by it, what `refuse` does.

        That counts, and is never too much: it has about the size of the name.
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
        """The request has a place among those of many parts; `give` gives it back."""
        self._place = give

    def give_place(self) -> None:
        """The request is answered, or waits for what may come in minutes; harmless when it has no place."""
        give, self._place = self._place, None
        if give is not None:
            give()

    def finish(self) -> None:
        """The answer is finished, or nobody waits for it."""
        self._change(-self.held)

    def _change(self, count: int) -> None:
        self.held += count
        if self._account is not None:
            self._account.reserved += count


_UNBOUNDED: Final = AnswerSpace()
_SPACE: ContextVar[AnswerSpace] = ContextVar("space", default=_UNBOUNDED)
space = _SPACE.get
"""The space of the request that is answered."""
enter = _SPACE.set
"""From now on this task answers the request of a space."""


def turns(clock: Clock) -> Turns:
    """The turns of the connection whose request is answered; new ones within the process."""
    found = space().turns
    return Turns(clock) if found is None else found


def text_bytes(texts: Iterable[str]) -> int:
    """About what these take as parts of an answer."""
    return sum(64 + len(one) for one in texts)
