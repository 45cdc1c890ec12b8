"""A fetch session with one broker (KIP-227): what it was told, so that only what changes is told again.

    NEW ──answer with an id──→ KEPT: the next request has the epoch that follows
     │                           └──`lost`: connection or session ended──→ NEW
     └──answer without: the broker keeps no session──→ NEW; everything is told again with each request

`told` is what the next request stands for as a whole, in either state; what leaves it is not forgotten before that is
sent, though many things may be told until then.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)

EPOCH_MAX: Final = 2**31 - 1
NEW: Final = (0, 0)


class Place(NamedTuple):
    """Where the next fetch of a log begins, and the leader epoch of what lies before, −1: not known."""

    offset: int
    epoch: int


class Asked(NamedTuple, Generic[K]):
    """One request: id and epoch of the session, what has changed in it, what leaves it."""

    session: tuple[int, int]
    changed: Mapping[K, Place]
    forgotten: tuple[K, ...]


class FetchSession(Generic[K]):
    """The session of one connection; `K` names a log."""

    def __init__(self) -> None:
        self.told: dict[K, Place] = {}
        self._session = NEW
        self._unsent: dict[K, None] = {}

    def tell(self, news: Mapping[K, Place | None]) -> None:
        """Take in what the next request is to say (None: not wanted any more)."""
        for key, place in news.items():
            if place == self.told.get(key):
                continue
            self._unsent[key] = None
            if place is None:
                del self.told[key]
            else:
                self.told[key] = place

    def ask(self) -> Asked[K]:
        """The next request, which is sent now."""
        unsent, self._unsent = self._unsent, {}
        if self._session == NEW:
            return Asked(NEW, dict(self.told), ())
        changed = {key: self.told[key] for key in unsent if key in self.told}
        return Asked(self._session, changed, tuple(key for key in unsent if key not in self.told))

    def answered(self, session_id: int) -> list[K]:
        """The broker has answered; what it does not remember and has to be told again."""
        if not session_id:
            return self.lost()
        epoch = self._session[1] + 1
        self._session = session_id, epoch if epoch <= EPOCH_MAX else 1
        return []

    def lost(self) -> list[K]:
        """The broker remembers nothing; what it has to be told again."""
        forgotten = list(self.told)
        self.told.clear()
        self._unsent.clear()
        self._session = NEW
        return forgotten
