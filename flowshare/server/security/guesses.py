"""Limits on guessing passwords: failed logins are counted, by address and by user name.

An address may fail `ADDRESS.burst` times at once and `ADDRESS.per_s` times a second from then on. Further logins from
it wait for their turn, in their order; a login that waits too long loses its connection before its password is checked,
which is no refusal: a client tries again. A successful login counts nothing, however many come at once.

A name is slowed over all addresses together, but never refused: after `NAME_WAIT_S` its password is checked. And a name
is not slowed at all from an address that it has logged in from before. So a guesser, at any address, locks nobody out
at another address; the count by address stops the guesser, the count by name only keeps many addresses from adding up.
An IPv6 address counts with its whole /64. The memory is bounded, the longest unused is forgotten first.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Hashable

    from flowshare.clock import Clock, TimerHandle


class Pace(NamedTuple):
    """Logins that may fail: at once, and per second from then on."""

    burst: int
    per_s: float


ADDRESS: Final = Pace(burst=10, per_s=1.0)
NAME: Final = Pace(burst=20, per_s=10.0)
ADDRESS_WAIT_S: Final = 10.0
NAME_WAIT_S: Final = 2.0
WAITING_MAX: Final = 100
"""Most waiting logins of one address. A name has no such limit but the number of connections."""
REMEMBERED_MAX: Final = 10_000
"""Most addresses, names, and pairs of both that are remembered, each."""


class FailureTally:
    """Failures of one address or name, and logins under way that may fail. Times are arguments, in seconds."""

    __slots__ = ("_at_s", "_level", "_pace", "under_way", "waiting")

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._level = 0.0
        self._at_s = 0.0
        self.under_way = 0
        self.waiting: deque[asyncio.Future[None]] = deque()

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until another login may begin, if none of those under way succeeds; 0: now."""
        self._drain(now_s)
        return max(0.0, (self._level + self.under_way + 1 - self._pace.burst) / self._pace.per_s)

    def failed(self, now_s: float) -> None:
        """Count a failure of a login under way."""
        self._drain(now_s)
        self._level += 1

    def _drain(self, now_s: float) -> None:
        self._level = max(0.0, self._level - (now_s - self._at_s) * self._pace.per_s)
        self._at_s = now_s


class _Gates:
    """Lets logins begin, tally by tally."""

    def __init__(self, pace: Pace, limit_s: float, clock: Clock, *, waiting_max: int | None = None) -> None:
        self._pace = pace
        self._waiting_max = waiting_max
        self._limit_s = limit_s
        self._clock = clock
        self._tallies: OrderedDict[Hashable, FailureTally] = OrderedDict()
        self._timers: dict[FailureTally, TimerHandle] = {}

    async def enter(self, key: Hashable) -> FailureTally | None:
        """Wait until a login may begin; None: it may not. Call `leave` with the tally afterwards."""
        tally = self._of(key)
        if tally.waiting or tally.wait_s(self._clock.monotonic()) > 0:
            if self._waiting_max is not None and len(tally.waiting) >= self._waiting_max:
                return None
            turn = asyncio.get_running_loop().create_future()
            tally.waiting.append(turn)
            self._pass(tally)
            try:
                await self._clock.wait_for(asyncio.shield(turn), self._limit_s)
            except TimeoutError:
                if not turn.done():
                    tally.waiting.remove(turn)
                    return None
            except BaseException:
                if turn.done():
                    self.leave(tally, failed=False)
                else:
                    tally.waiting.remove(turn)
                raise
        else:
            tally.under_way += 1
        return tally

    def leave(self, tally: FailureTally, *, failed: bool) -> None:
        """End a login."""
        tally.under_way -= 1
        if failed:
            tally.failed(self._clock.monotonic())
        self._pass(tally)

    def _pass(self, tally: FailureTally) -> None:
        """Let waiting logins begin while they may, and look again when the next one may."""
        timer = self._timers.pop(tally, None)
        if timer is not None:
            timer.cancel()
        while tally.waiting:
            wait_s = tally.wait_s(self._clock.monotonic())
            if wait_s > 0:
                self._timers[tally] = self._clock.call_later(wait_s, lambda: self._pass(tally))
                return
            tally.under_way += 1
            tally.waiting.popleft().set_result(None)

    def _of(self, key: Hashable) -> FailureTally:
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = FailureTally(self._pace)
            if len(self._tallies) > REMEMBERED_MAX:
                oldest = next((at for at, one in self._tallies.items() if not (one.under_way or one.waiting)), key)
                if oldest != key:
                    del self._tallies[oldest]
        self._tallies.move_to_end(key)
        return tally


class EndLoginTry(Protocol):
    """Called when the password of a login was checked."""

    def __call__(self, *, failed: bool) -> None:
        """Count. failed: it was wrong."""


class Guesses:
    """The logins of one listener."""

    def __init__(self, clock: Clock) -> None:
        self._addresses = _Gates(ADDRESS, ADDRESS_WAIT_S, clock, waiting_max=WAITING_MAX)
        self._names = _Gates(NAME, NAME_WAIT_S, clock)
        self._familiar: OrderedDict[tuple[str, str], None] = OrderedDict()

    async def begin(self, host: str, name: str) -> EndLoginTry:
        """Wait before a password, or a proof of one, is checked; call the result afterwards.

        Raises: ConnectionError (too many have failed from this address; the connection is to be closed).
        """
        where = network_of(host)
        address = await self._addresses.enter(where)
        if address is None:
            raise ConnectionError(
                f"too many logins from {where} failed: more than {ADDRESS.burst} at once and {ADDRESS.per_s:g} a second"
            )
        try:
            tally = None if (name, where) in self._familiar else await self._names.enter(name)
        except BaseException:
            self._addresses.leave(address, failed=False)
            raise

        def end(*, failed: bool) -> None:
            self._addresses.leave(address, failed=failed)
            if tally is not None:
                self._names.leave(tally, failed=failed)
            if not failed:
                self._familiar[name, where] = None
                self._familiar.move_to_end((name, where))
                if len(self._familiar) > REMEMBERED_MAX:
                    self._familiar.popitem(last=False)

        return end


def is_loopback(host: str) -> bool:
    """Return True if an address, or a host of that name, is loopback: no other machine reaches it."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return bool((getattr(found, "ipv4_mapped", None) or found).is_loopback)


def network_of(host: str) -> str:
    """Return the network that an address counts as: an IPv4 address itself, the /64 of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
