"""The memory of requests that all connections of a listener hold together, and who is not read from when it is short.

What counts is what was received: a client cannot reserve by telling a length. Nobody may hold more than as much again
is left: a principal, or an address where nobody logs in, not more than of the budget, and a connection not more than of
its principal's part. So whoever comes finds something, however many others hold all that they may. A connection that
holds more is not read from further; when there is more room those of who holds least go on first, and of these who had
a request answered last.

When nobody's part is enough for a whole request, one connection at a time is read to the end of it beyond its part.
While somebody waits, a begun request of which little comes gives its bytes up.

What stays when requests are answered has a budget of its own (`server.runtime.budget`).
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from flowshare.server.net.socket import ListenerSocket

KIB: Final = 1024
SMALL_BYTES: Final = 64 * KIB
"""A connection may hold that, whatever all others do."""
SMALL_PART: Final = 16
"""The same as a part of a smaller budget."""
UNDER_WAY_PART: Final = 4
"""While requests under way hold more than this part of the budget nobody is read from beyond its part."""
ARRIVING_BYTES: Final = 16 * KIB
"""A begun request of which less comes between two looks stands still."""
LOOKED_AT: Final = 64
"""Of those that wait so many are read from between two looks, so that it is seen whether anything comes of them."""


class Account:
    """What one connection holds; made by `MemoryPool.open`."""

    __slots__ = ("came", "holder", "last", "looked_at", "party", "tried", "under_way", "unfinished")

    def __init__(self, holder: ListenerSocket, party: str) -> None:
        self.holder = holder
        self.party = party
        self.unfinished = 0
        """Bytes received that are no request yet."""
        self.under_way = 0
        """Bytes of requests that are not answered."""
        self.last = 0
        """When its last request was answered, counted in requests of all."""
        self.came = 0
        """Bytes since the last look."""
        self.looked_at = False
        self.tried = False
        """Whether it waits for memory and is read from all the same, to see whether anything comes."""

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
        """Connections that are not read from because of what is held."""
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether more is held than may be."""
        return self.held > self._bytes_max

    def configure(self, bytes_max: int) -> None:
        """So many bytes may be held from now on."""
        self._bytes_max = bytes_max
        self._freed = SMALL_BYTES
        self._release()

    def open(self, holder: ListenerSocket, party: str) -> Account:
        """An account for a connection. party: its principal or its address."""
        account = Account(holder, party)
        self._accounts[account] = None
        return account

    def received(self, account: Account, count: int) -> None:
        """Bytes came."""
        account.unfinished += count
        account.came += count
        self._change(account, count)

    def allows(self, account: Account) -> bool:
        """Whether the holder, who wants to, may be read from now; if not, it is resumed later."""
        if account is self._favoured or account.tried or self._fits(account):
            self._waiting.pop(account, None)
            return True
        if self._may_favour or self._comes_before_favoured(account):
            self._favour(account)
            return True
        self._waiting.setdefault(account)
        return False

    def withdraw(self, account: Account) -> None:
        """The holder does not want to be read from now."""
        self._waiting.pop(account, None)
        account.tried = account.looked_at = False
        if account is self._favoured:
            self._favoured = None
            self._release()

    def accepted(self, account: Account, count: int) -> None:
        """One request of `count` bytes is complete and under way."""
        account.unfinished -= count
        account.under_way += count
        account.tried = account.looked_at = False
        self._under_way += count
        if account is self._favoured:
            self._favoured = None
            self._release()

    def finished(self, account: Account, count: int) -> None:
        """A request of `count` bytes is under way no more."""
        self._answered += 1
        account.last = self._answered
        account.under_way -= count
        self._under_way -= count
        self._change(account, -count)
        self._release()

    def left(self, account: Account) -> None:
        """The holder is gone, with what never became a request; what is under way stays."""
        self._accounts.pop(account, None)
        self._waiting.pop(account, None)
        if account is self._favoured:
            self._favoured = None
        self._change(account, -account.unfinished)
        account.unfinished = 0
        self._release()

    def oldest(self) -> ListenerSocket | None:
        """Whoever has begun a request, of all these the connection that was there first."""
        return next((account.holder for account in self._accounts if account.unfinished), None)

    def look(self) -> list[ListenerSocket]:
        """Whose begun requests have stood still since the last look, those that hold most first. Call it every now
        and then while somebody waits, and close them as long as somebody does.
        """
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
        """Whether what the holder has is within its part."""
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
        """Let those go on that may. Not for every few bytes while somebody is favoured: it goes over all that wait."""
        if not self._waiting or self._releasing or (self._favoured is not None and self._freed < self._small):
            return
        self._releasing = True  # whoever is resumed may end, and release more
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
            self._waiting.setdefault(self._favoured)  # it is told so by the next bytes that come
        self._waiting.pop(account, None)
        self._favoured = account
        account.came = 0
        account.looked_at = False

    def _comes_before_favoured(self, account: Account) -> bool:
        """Whether it had a request answered since the favoured one, of which nothing much comes."""
        favoured = self._favoured
        return favoured is not None and favoured.last < account.last and favoured.came < ARRIVING_BYTES

    def _choose(self) -> Account:
        """The next one that is favoured: whoever comes first, and in every second turn who has waited longest."""
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
