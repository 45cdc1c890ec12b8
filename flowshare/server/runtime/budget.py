"""Budgets of state that stays when requests are answered: groups, transactional ids, and the bytes that they hold.

`Makers` counts things by maker, `StateBudget` their bytes; both leave something to others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable
from typing import Final

from flowshare.protocol.errors import ErrorCode
from flowshare.server.runtime.failures import Refused

RECOUNT_S: Final = 1.0
"""Least seconds between two counts of all state."""


class Makers:
    """Numbers of limited things by maker, as far as this process saw the making.

    A party (a principal, or an address where nobody logs in) makes at most as many as are left to others; the server's
    own process, whose party is None, up to the limit.
    """

    def __init__(self, things: str, limit: str) -> None:
        """things: their name; limit: the name of the setting that limits their number."""
        self._things = things
        self._limit = limit
        self._made: dict[str, set[str]] = {}
        self._makers: dict[str, str] = {}

    def check(self, party: str | None, there: Container[str], count: int, count_max: int) -> None:
        """Check that a party may make one more. there: all present names, `count` of them, of at most `count_max`.

        Raises: Refused.
        """
        if count >= count_max:
            text = f"there are {count_max} {self._things} ({self._limit}); delete some first"
            raise Refused(ErrorCode.POLICY_VIOLATION, text)
        made = () if party is None else self._made.get(party, ())
        if len(made) < count_max - count:
            return
        self._forget(there)
        made = self._made.get(party or "", ())
        if len(made) >= count_max - count:
            raise Refused(
                ErrorCode.POLICY_VIOLATION,
                f"{party} has made {len(made)} of {count_max} {self._things} ({self._limit}), and what is left is for "
                "others, too; delete some first",
            )

    def add(self, party: str | None, name: str, there: Container[str], count_max: int) -> None:
        """Note that a party has made a thing."""
        self._take_away(name)
        if party is None:
            return
        self._makers[name] = party
        self._made.setdefault(party, set()).add(name)
        if len(self._made[party]) > count_max or len(self._made) > count_max:
            self._forget(there)

    def maker_of(self, name: str) -> str | None:
        """Return the party that made the thing of this name; None: not known, or the server's own process."""
        return self._makers.get(name)

    def _take_away(self, name: str) -> None:
        """Drop a name's former maker: the thing was deleted since."""
        former = self._makers.pop(name, None)
        if former is not None:
            self._made[former].discard(name)

    def _forget(self, there: Container[str]) -> None:
        """Forget things that are gone."""
        kept = {party: {name for name in names if name in there} for party, names in self._made.items()}
        self._made = {party: names for party, names in kept.items() if names}
        self._makers = {name: party for party, names in self._made.items() for name in names}


class StateBudget:
    """Bytes of groups and transactions in memory, with a limit for each party that adds to them.

    A party holds at most as much as is left to others; the server's own process, whose party is None, is never refused.
    The bytes that requests add are estimated and charged to their sender, and nothing is taken off when state goes:
    before anybody is refused all is counted anew, at most once in `RECOUNT_S`. A recount charges the maker of the group
    or transactional id; state without a known maker counts in the total only.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kinds: list[Callable[[], Iterable[tuple[str | None, int]]]] = []
        self._of: Counter[str] = Counter()
        self._total = 0
        self._counted_s: float | None = None

    def configure(self, bytes_max: int) -> None:
        """Set the bytes that may be held from now on."""
        self._bytes_max = bytes_max

    def counts(self, held: Callable[[], Iterable[tuple[str | None, int]]]) -> None:
        """Count a kind of state. held: returns maker and bytes of each thing of the kind; called by a recount."""
        self._kinds.append(held)

    def came(self) -> None:
        """Have the next request count all anew: state was read from the store."""
        self._counted_s = None

    def take(self, party: str | None, size: int, now_s: float) -> None:
        """Account for `size` bytes that a request of the party adds. Raises: Refused (nothing is charged)."""
        if size <= 0:
            return
        if self._counted_s is None:
            self._recount(now_s)
        if party is not None and not self._fits(party, size):
            if self._counted_s is None or now_s - self._counted_s >= RECOUNT_S:
                self._recount(now_s)
            if not self._fits(party, size):
                raise Refused(
                    ErrorCode.POLICY_VIOLATION,
                    f"groups and transactions hold {self._total} of {self._bytes_max} bytes "
                    f"(coordinator.state.max.bytes), {self._of[party]} of them are of {party}, and {size} more would "
                    "not leave as much to others; stop members, delete groups or end transactions first",
                )
        self._total += size
        if party is not None:
            self._of[party] += size

    def _fits(self, party: str, size: int) -> bool:
        return self._of[party] + size <= self._bytes_max - self._total - size

    def _recount(self, now_s: float) -> None:
        of: Counter[str] = Counter()
        total = 0
        for held in self._kinds:
            for party, size in held():
                total += size
                if party is not None:
                    of[party] += size
        self._of, self._total, self._counted_s = of, total, now_s
