"""Records that may have killed their process are delivered alone (SG-6.4).

A record that kills its process takes an attempt from everything its process held. After the second time the ones that
were held are *suspects*: each goes to a member that holds nothing else of this share-partition, by itself, and that
member gets nothing more until it is settled. So the poisonous one dies alone and the innocent end as they should. An
offset is a suspect from the death of its member (with or without the leader's) until it was acquired once;
`SUSPECT_AT` deliveries make one (one alone would slow down every restart). A group without a delivery limit
(`Limits.deliveries_end`) keeps nothing apart: nobody is archived for another's sake, and its members may hold records
by the hundred thousand.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

from flowshare.share.heads import Heads
from flowshare.share.types import ACQUIRED, AVAILABLE, BLOCKED, DELAYED, PENDING
from flowshare.share.window import Window

SUSPECT_AT: Final = 2


class Admission(NamedTuple):
    """What a member may acquire now: nothing, one record alone, or anything up to offset `last` (None: no bound).

    head: where there is an order, the one that comes alone; −1: anything that is no suspect.
    """

    nothing: bool = False
    alone: bool = False
    last: int | None = None
    head: int = -1


ANYTHING: Final = Admission()


class Quarantine:
    """The suspects of one share-partition, and which member runs one."""

    def __init__(self) -> None:
        self._suspects: list[int] = []
        self._runs: dict[str, int] = {}
        self._chosen: dict[str, tuple[int, int]] = {}
        """Where there is an order: who gets which suspect when it holds nothing more, and until when that is so."""
        self._unconfirmed: dict[str, int] = {}
        """Suspects whose member has not seen them yet: they are being read."""

    @property
    def suspects(self) -> frozenset[int]:
        """The suspects."""
        return frozenset(self._suspects)

    def __bool__(self) -> bool:
        return bool(self._suspects or self._runs)

    def suspect(self, first: int, last: int) -> None:
        """Keep `first`..`last` apart; they are none yet."""
        at = bisect_left(self._suspects, first)
        self._suspects[at:at] = range(first, last + 1)

    def admit(self, window: Window, member_id: str) -> Admission:
        """Say what a member may acquire now."""
        running = self._runs.get(member_id)
        if running is not None:
            if self._holds(window, member_id, running):
                return Admission(nothing=True)
            del self._runs[member_id]
        self._forget(window)
        if not self._suspects:
            # Members that are gone do not ask again: without this the quarantine would never end.
            self._runs = {member: at for member, at in self._runs.items() if self._holds(window, member, at)}
            return ANYTHING
        suspect = self._suspects[0]
        if window.next_available(window.start, suspect) != suspect:
            return Admission(last=suspect - 1)
        return Admission(nothing=True) if window.holds.take_member(member_id) else Admission(alone=True)

    def admit_heads(
        self, window: Window, heads: Heads, member_id: str, now_ms: int, patience_ms: int, *, singles: bool
    ) -> Admission:
        """The same where there is an order: a suspect bounds nobody before it is a head, then one member.

        That one gets nothing more (SG-18.7), and the suspect as soon as it holds nothing; within `patience_ms`,
        else another member does. singles: whether the member takes what is in `Heads.single`. Whose key is not known
        yet, after a reload, is none yet.
        """
        self._take_back(window)
        running = self._runs.get(member_id)
        if running is not None:
            if self._holds(window, member_id, running):
                return Admission(nothing=True)
            del self._runs[member_id]
        kept = (AVAILABLE, DELAYED, BLOCKED)
        self._suspects = [
            one for one in self._suspects if one >= window.start and window.states[one - window.base] in kept
        ]
        self._chosen = {
            member: (one, until_ms)
            for member, (one, until_ms) in self._chosen.items()
            if until_ms > now_ms and one in self._suspects and window.states[one - window.base] == AVAILABLE
        }
        if member_id not in self._chosen:
            taken = {one for one, _ in self._chosen.values()}
            free = (
                one
                for one in self._suspects
                if window.states[one - window.base] == AVAILABLE and one not in taken and one < heads.known_end
            )
            head = next((one for one in free if singles or heads.hashes[one - window.base] not in heads.single), -1)
            if head < 0:
                self._runs = {member: at for member, at in self._runs.items() if self._holds(window, member, at)}
                return ANYTHING
            self._chosen[member_id] = head, now_ms + patience_ms
        if window.holds.take_member(member_id):
            return Admission(nothing=True)
        return Admission(head=self._chosen.pop(member_id)[0])

    def delivered(self, member_id: str, offset: int, *, unconfirmed: bool = False) -> None:
        """A suspect went to a member; it is none any more, whatever comes of it (a crash makes it one again).

        unconfirmed: it is read first, and is one again if it does not get there before `confirmed`.
        """
        at = bisect_left(self._suspects, offset)
        if self._suspects[at : at + 1] == [offset]:
            del self._suspects[at]
            self._runs[member_id] = offset
            if unconfirmed:
                self._unconfirmed[member_id] = offset

    def confirmed(self, member_id: str) -> None:
        """What was `delivered` to a member has been read and leaves."""
        self._unconfirmed.pop(member_id, None)

    def _take_back(self, window: Window) -> None:
        """What was delivered and did not get there is a suspect again."""
        for member_id, offset in list(self._unconfirmed.items()):
            if not self._holds(window, member_id, offset):
                del self._unconfirmed[member_id]
                self._runs.pop(member_id, None)
                self.suspect(offset, offset)

    def cut(self, end: int) -> None:
        """What was at `end` and behind is not in the log any more."""
        del self._suspects[bisect_left(self._suspects, end) :]
        self._runs = {member_id: offset for member_id, offset in self._runs.items() if offset < end}
        self._unconfirmed = {member_id: offset for member_id, offset in self._unconfirmed.items() if offset < end}

    def _forget(self, window: Window) -> None:
        """Drop from the head what is finished or gone."""
        keep = 0
        for offset in self._suspects:
            if offset >= window.start and window.states[offset - window.base] in (AVAILABLE, DELAYED):
                break
            keep += 1
        del self._suspects[:keep]

    @staticmethod
    def _holds(window: Window, member_id: str, offset: int) -> bool:
        if not window.start <= offset < window.end:
            return False
        at = offset - window.base
        if window.states[at] not in (ACQUIRED, PENDING):
            return False
        return window.holds.by_id[window.hold_ids[at]].member_id == member_id
