"""The memory of requests that all connections of a listener share, and the order of reading when memory is short.

Received bytes count: a client cannot reserve memory by announcing a length. No principal (an address where nobody logs
in) may hold more bytes than the budget has left, and no connection more than its principal's part has left. So a new
client always finds room, however many others hold all that they may. A connection that holds more is not read from
further; when there is more room, connections of the principals that hold least go on first, among equals the most
recently answered.

When nobody's part is enough for a whole request, one connection at a time is read to the end of its request beyond its
part. While connections wait, a begun request that makes little progress gives its bytes up.

State that stays when requests are answered has a budget of its own (`server.runtime.budget`).
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from flowshare.server.net.socket import ListenerSocket

KIB: Final = 1024
SMALL_BYTES: Final = 64 * KIB
"""Bytes that a connection may hold in any case."""
SMALL_PART: Final = 16
"""Divisor for the same limit in a small budget."""
UNDER_WAY_PART: Final = 4
"""Divisor: while requests under way hold more than a fourth of the budget, no connection is read from beyond its
part."""
ARRIVING_BYTES: Final = 16 * KIB
"""Bytes between two looks below which a begun request stands still."""
LOOKED_AT: Final = 64
"""Waiting connections that are read from between two looks, to see if their requests make progress."""


class Account:
    """The bytes that one connection holds; made by `MemoryPool.open`."""

    __slots__ = ("came", "holder", "last", "looked_at", "party", "tried", "under_way", "unfinished")

    def __init__(self, holder: ListenerSocket, party: str) -> None:
        self.holder = holder
        self.party = party
        self.unfinished = 0
        """Bytes received that are not a whole request yet."""
        self.under_way = 0
        """Bytes of unanswered requests."""
        self.last = 0
        """Serial number, among all requests, of the connection's last answered one."""
        self.came = 0
        """Bytes received since the last look."""
        self.looked_at = False
        self.tried = False
        """True if the connection waits for memory and is read from all the same, to see if its request makes
        progress."""

    @property
    def held(self) -> int:
        """Bytes that count."""
        return self.unfinished + self.under_way


class MemoryPool:
    """The memory that the requests of one listener share (queued.max.request.bytes)."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._accounts: dict[Account, None] = {}
        self._waiting: dict[Account, None] = {}
        self._favoured: Account | None = None
        self._parties: Counter[str] = Counter()
        self._under_way = 0
        self._answered = 0
        self._freed = 0
        self._oldest_first = False
        self._releasing = False
        self.held = 0
        """Bytes received and not answered yet."""

    @property
    def waiting(self) -> int:
        """Number of connections that are not read from because memory is short."""
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """True if more bytes are held than allowed."""
        return self.held > self._bytes_max

    def configure(self, bytes_max: int) -> None:
        """Set the bytes that may be held from now on."""
        self._bytes_max = bytes_max
        self._freed = SMALL_BYTES
        self._release()

    def open(self, holder: ListenerSocket, party: str) -> Account:
        """Return a new account for a connection. party: its principal or its address."""
        account = Account(holder, party)
        self._accounts[account] = None
        return account

    def received(self, account: Account, count: int) -> None:
        """Count received bytes."""
        account.unfinished += count
        account.came += count
        self._change(account, count)

    def allows(self, account: Account) -> bool:
        """Return True if a holder that wants to be read from may be now; if False, the holder is resumed later."""
        if account is self._favoured or account.tried or self._fits(account):
            self._waiting.pop(account, None)
            return True
        if self._may_favour or self._comes_before_favoured(account):
            self._favour(account)
            return True
        self._waiting.setdefault(account)
        return False

    def withdraw(self, account: Account) -> None:
        """Note that the holder does not want to be read from now."""
        self._waiting.pop(account, None)
        account.tried = account.looked_at = False
        if account is self._favoured:
            self._favoured = None
            self._release()

    def accepted(self, account: Account, count: int) -> None:
        """Count one request of `count` bytes as complete and under way."""
        account.unfinished -= count
        account.under_way += count
        account.tried = account.looked_at = False
        self._under_way += count
        if account is self._favoured:
            self._favoured = None
            self._release()

    def finished(self, account: Account, count: int) -> None:
        """End a request of `count` bytes under way."""
        self._answered += 1
        account.last = self._answered
        account.under_way -= count
        self._under_way -= count
        self._change(account, -count)
        self._release()

    def left(self, account: Account) -> None:
        """Remove a closed connection's account with its unfinished request; requests under way still count."""
        self._accounts.pop(account, None)
        self._waiting.pop(account, None)
        if account is self._favoured:
            self._favoured = None
        self._change(account, -account.unfinished)
        account.unfinished = 0
        self._release()

    def oldest(self) -> ListenerSocket | None:
        """Return the oldest connection with a begun request, or None."""
        return next((account.holder for account in self._accounts if account.unfinished), None)

    def look(self) -> list[ListenerSocket]:
        """Return connections whose begun requests stood still since the last look, those of the largest holders first.
        Call it regularly while connections wait, and close the returned ones as long as some wait."""
        still: list[Account] = []
        for account in self._accounts:
            if account.unfinished <= self._small or account in self._waiting or not account.holder.arriving:
                account.looked_at = False
            elif account.looked_at and account.came < ARRIVING_BYTES:
                still.append(account)
            else:
                account.looked_at, account.tried = True, False
            account.came = 0
        self._try_some()
        still.sort(key=lambda account: (self._parties[account.party], account.unfinished), reverse=True)
        return [account.holder for account in still]

    @property
    def _small(self) -> int:
        return min(SMALL_BYTES, self._bytes_max // SMALL_PART)

    @property
    def _may_favour(self) -> bool:
        return self._favoured is None and self._under_way <= self._bytes_max // UNDER_WAY_PART

    def _fits(self, account: Account) -> bool:
        """Return True if the bytes that the holder has are within its part."""
        held = account.held
        if held <= self._small:
            return True
        of_party = self._parties[account.party]
        part = (self._bytes_max - (self.held - of_party)) // 2
        return held <= part - of_party

    def _order(self, account: Account) -> tuple[int, int]:
        return self._parties[account.party], -account.last

    def _change(self, account: Account, count: int) -> None:
        self.held += count
        self._parties[account.party] += count
        if not self._parties[account.party]:
            del self._parties[account.party]
        self._freed -= min(count, 0)

    def _release(self) -> None:
        """Resume connections that may go on. Not for every few bytes while one is favoured: the search covers all
        waiting ones."""
        if not self._waiting or self._releasing or (self._favoured is not None and self._freed < self._small):
            return
        self._releasing = True  # a resumed connection may end, and release more
        try:
            self._freed = 0
            for account in sorted(self._waiting, key=self._order):
                if account in self._waiting and self._fits(account):
                    self._resume(account)
            while self._waiting and self._may_favour:
                chosen = self._choose()
                self._favour(chosen)
                self._resume(chosen)
        finally:
            self._releasing = False

    def _favour(self, account: Account) -> None:
        if self._favoured is not None:
            self._waiting.setdefault(self._favoured)  # the connection hears so by its next bytes
        self._waiting.pop(account, None)
        self._favoured = account
        account.came = 0
        account.looked_at = False

    def _comes_before_favoured(self, account: Account) -> bool:
        """Return True if this account was answered later than the favoured one, which makes little progress."""
        favoured = self._favoured
        return favoured is not None and favoured.last < account.last and favoured.came < ARRIVING_BYTES

    def _choose(self) -> Account:
        """Choose the next favoured account: the first by `_order`, and in every second turn the longest waiting."""
        self._oldest_first = not self._oldest_first
        return next(iter(self._waiting)) if not self._oldest_first else min(self._waiting, key=self._order)

    def _try_some(self) -> None:
        if self.full:
            return
        for account in tuple(islice(self._waiting, LOOKED_AT)):
            account.tried = account.looked_at = True
            account.came = 0
            self._resume(account)

    def _resume(self, account: Account) -> None:
        self._waiting.pop(account, None)
        account.holder.resume()
