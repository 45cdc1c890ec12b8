"""Decide which records of one partition a member may begin, and collect the starts that it must tell the server.

With each grant the server tells how often records were begun by members that are gone (`cooperative.attempts`). A first
start need not be told below the *horizon* (except by a member with exact starts). Every other start is told to the
server before it is made, with the number of starts of the record so far. Records that are given back unfinished are
told with their number of starts, too (`owed`).

    found ──▶ its start is known ──▶ begun
      │            ▲
      └─▶ to tell ─┘ the answer is there

A record with which members died again and again is a *suspect*. It runs alone: nothing else of this member is in flight
meanwhile, so that it ends no other work. No I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Generic, NamedTuple, TypeVar

from flowshare.client.cooperative.dispatch import Dispatcher, Found
from flowshare.cooperative.attempts import Begun, starts_of
from flowshare.cooperative.types import HORIZON_STEP, KeyRange

R = TypeVar("R")
STARTS_AT_ONCE: Final = 2_000
"""Of one partition; a request tells of a few partitions, and servers take 10,000 starts in one."""
Held = Callable[[int], tuple[KeyRange, int] | None]
"""The keys and the epoch of the piece that a hash lies in; None: it is not held."""


class StartPart(NamedTuple):
    """Starts of records whose hashes lie in `keys`, of a claim of this epoch: (offset, how often then)."""

    keys: KeyRange
    epoch: int
    starts: list[tuple[int, int]]
    horizon: int


class Telling(NamedTuple):
    """One message about starts for the server. lives: `KeyScan.lives` when it was made."""

    reset_epoch: int
    parts: tuple[StartPart, ...]
    lives: int

    def pieces(self) -> list[Telling]:
        """The same, at most STARTS_AT_ONCE starts in each: what is in hand at the end may be more than one takes."""
        return [
            self._replace(parts=(part._replace(starts=part.starts[at : at + STARTS_AT_ONCE]),))
            for part in self.parts
            for at in range(0, len(part.starts), STARTS_AT_ONCE)
        ]


class Starts(Generic[R]):
    """Of one partition. exact: first starts are told, too. counted: whether anybody is told."""

    def __init__(self, dispatcher: Dispatcher[R], *, exact: bool = False) -> None:
        self._dispatcher = dispatcher
        self._exact = exact
        self._begun = Begun()
        self._counts: dict[int, int] = {}
        self._horizon = 0
        self._wanted = 0
        """Where the horizon is to be."""
        self._to_tell: dict[int, Found[R]] = {}
        self._apart: dict[int, Found[R]] = {}
        """Suspects that could be begun, were nothing else in flight."""
        self._room = 0
        """Of how many starts more may be told: what is told and not begun would count, should this member die."""
        self._suspect: Found[R] | None = None
        """The one that was begun last."""
        self.counted = False
        self.telling = False
        """True while a message about starts is on its way."""

    @property
    def suspect_in_flight(self) -> bool:
        """True if a suspect, which must run alone, is in flight."""
        return self._suspect is not None and self._dispatcher.may_be_at_work(self._suspect)

    @property
    def suspects_wait(self) -> bool:
        """True if a suspect waits until nothing else is in flight."""
        return bool(self._apart)

    @property
    def tells(self) -> bool:
        """True if there is something to tell the server, and no message is on its way."""
        return self.counted and not self.telling and (bool(self._to_tell) or self._wanted > self._horizon)

    def hold(self, horizon: int, begun: Begun | None) -> None:
        """The answer to a hold. begun: by others, where something was granted."""
        self.counted, self._horizon = True, horizon
        if begun is not None:
            self._begun, self._counts = begun, dict(begun.starts)

    def before(self, offset: int, hash_: int) -> int:
        """How often a record was begun by others."""
        return starts_of(self._begun.reaches, self._counts, offset, hash_)

    def lose(self) -> None:
        """Nothing is held any more."""
        self.telling = False
        self._to_tell, self._horizon, self._wanted = {}, 0, 0

    def keep(self, keeps: Callable[[Found[R]], bool]) -> None:
        """Forget of records what is kept no more."""
        self._to_tell = {at: found for at, found in self._to_tell.items() if keeps(found)}
        self._apart = {at: found for at, found in self._apart.items() if keeps(found)}

    def look(self, count: int) -> None:
        """So many records are to be begun now."""
        self._room = 0 if self.telling else min(count, STARTS_AT_ONCE) - len(self._to_tell)

    def allows(self, found: Found[R], *, alone: bool) -> bool:
        """Tell if a record may be begun now. alone: nothing else is in flight, or will be together with the record."""
        if alone:  # one is told of when it is its turn, as what is told counts as begun
            return found is self._apart.get(min(self._apart, default=-1)) and self._is_known(found)
        if found.suspect:
            self._apart[found.offset] = found
            return False
        return self._is_known(found)

    def _is_known(self, found: Found[R]) -> bool:
        if not self.counted:
            return True
        starts = found.attempt + 1
        if starts > 1 or self._exact:
            if found.told < starts and self._room > 0 and found.offset not in self._to_tell:
                self._to_tell[found.offset] = found
                self._room -= 1
            return found.told >= starts
        if found.offset >= self._horizon:
            self._wanted = max(self._wanted, found.offset + HORIZON_STEP)
        return found.offset < self._horizon

    def took(self, found: Found[R]) -> None:
        """A record is begun."""
        if found.suspect:
            self._suspect = found
            self._apart.pop(found.offset, None)
        if not self._exact and found.offset >= self._horizon - HORIZON_STEP // 2:
            self._wanted = max(self._wanted, found.offset + HORIZON_STEP)

    def tell(self, held: Held, *, owed: bool = False) -> tuple[StartPart, ...]:
        """Collect the starts to tell the server now. owed: how often waiting records were begun, for a member that
        gives them back."""
        if owed:
            left = (*self._dispatcher.waiting(), *self._dispatcher.flights())
            starts = [(found, found.attempt) for found in left if found.owed]
        else:
            starts = [(found, found.attempt + 1) for found in self._to_tell.values()]
        self._to_tell = {}
        horizon = max(self._horizon, self._wanted)
        parts: dict[tuple[KeyRange, bool], StartPart] = {}
        for found, count in starts:
            keys = held(found.hash)
            if keys is not None:
                # Apart from those that the server counts already: it may have no room for more, and these go on.
                new = found.told < (1 if self._exact else 2) and found.offset not in self._counts
                parts.setdefault((keys[0], new), StartPart(*keys, [], horizon)).starts.append((found.offset, count))
        return tuple(parts[which] for which in sorted(parts))

    def told(self, parts: Iterable[StartPart]) -> None:
        """These are durable."""
        known: dict[int, int] = {}
        for part in parts:
            self._horizon = max(self._horizon, part.horizon)
            known.update(part.starts)
        for found in self._dispatcher.waiting() if known else ():
            found.told = known.get(found.offset, found.told)

    @property
    def horizon(self) -> int:
        """Where the horizon is to be, for who tells of nothing else."""
        return max(self._horizon, self._wanted)
