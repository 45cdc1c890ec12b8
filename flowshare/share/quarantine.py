"""Records that may have killed their process are delivered alone (SG-6.4).

A record that kills its process takes an attempt from all records that the process held. After the second time the held
records are *suspects*: each goes to a member that holds nothing else of this share-partition, by itself, and the member
gets nothing more until the suspect is settled. So the poisonous one dies alone and the innocent end as they should. An
offset is a suspect from the death of its member (with or without the leader's) until it was acquired once; `SUSPECT_AT`
deliveries make one (one alone would slow down every restart). A group without a delivery limit
(`Limits.deliveries_end`) keeps nothing apart: no record is archived for another's sake, and its members may hold
records by the hundred thousand.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

from flowshare.share.heads import Heads
from flowshare.share.types import ACQUIRED, AVAILABLE, BLOCKED, DELAYED, PENDING
from flowshare.share.window import Window

SUSPECT_AT: Final = 2


class Admission(NamedTuple):
    """The records that a member may acquire now: nothing, one record alone, or any up to offset `last` (None: no
    bound).

    head: in an order by key, the offset that comes alone; −1: any that is no suspect.
    """

    nothing: bool = False
    alone: bool = False
    last: int | None = None
    head: int = -1


ANYTHING: Final = Admission()


class Quarantine:
    """The suspects of one share-partition, and the members that run one."""

    def __init__(self) -> None:
        self._suspects: list[int] = []
        self._runs: dict[str, int] = {}
        self._chosen: dict[str, tuple[int, int]] = {}
        """In an order by key: member -> the suspect that it gets once it holds nothing more, and the time until which
        that lasts."""
        self._unconfirmed: dict[str, int] = {}
        """Member -> its suspect that is still being read, so that the member has not seen it."""

    @property
    def suspects(self) -> frozenset[int]:
        """All suspects' offsets."""
        return frozenset(self._suspects)

    def __bool__(self) -> bool:
        return bool(self._suspects or self._runs)

    def waits(self, window: Window) -> bool:
        """Return True if a suspect has not been delivered yet: nothing stored tells that it is one."""
        return any(self._open(window, one) for one in self._suspects)

    def suspect(self, first: int, last: int) -> None:
        """Make `first`..`last` suspects; none of them is one yet."""
        at = bisect_left(self._suspects, first)
        self._suspects[at:at] = range(first, last + 1)

    def admit(self, window: Window, member_id: str) -> Admission:
        """Return the records that a member may acquire now."""
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
        """Return the records that a member may acquire now, in an order by key.

        A suspect bounds no member before it is a head; then one member gets nothing more (SG-18.7) until it holds
        nothing and gets the suspect. If that takes longer than `patience_ms`, another member is chosen. singles: the
        member takes records of `Heads.single`. Records with unknown keys, after a reload, are no heads yet.
        """
        self._take_back(window)
        running = self._runs.get(member_id)
        if running is not None:
            if self._holds(window, member_id, running):
                return Admission(nothing=True)
            del self._runs[member_id]
        self._suspects = [one for one in self._suspects if self._open(window, one)]
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
        """Note that a suspect went to a member; it is no suspect any more (a crash makes it one again).

        unconfirmed: the record is read first, and is a suspect again if it gets lost before `confirmed`.
        """
        at = bisect_left(self._suspects, offset)
        if self._suspects[at : at + 1] == [offset]:
            del self._suspects[at]
            self._runs[member_id] = offset
            if unconfirmed:
                self._unconfirmed[member_id] = offset

    def confirmed(self, member_id: str) -> None:
        """Note that the suspect `delivered` to a member was read and leaves."""
        self._unconfirmed.pop(member_id, None)

    def _take_back(self, window: Window) -> None:
        """Make a record a suspect again if it was delivered but did not reach its member."""
        for member_id, offset in list(self._unconfirmed.items()):
            if not self._holds(window, member_id, offset):
                del self._unconfirmed[member_id]
                self._runs.pop(member_id, None)
                self.suspect(offset, offset)

    def cut(self, end: int) -> None:
        """Forget the records at `end` and behind, which are not in the log any more."""
        del self._suspects[bisect_left(self._suspects, end) :]
        self._runs = {member_id: offset for member_id, offset in self._runs.items() if offset < end}
        self._unconfirmed = {member_id: offset for member_id, offset in self._unconfirmed.items() if offset < end}

    def _forget(self, window: Window) -> None:
        """Drop finished and lost offsets from the head of the suspects."""
        keep = 0
        for offset in self._suspects:
            if offset >= window.start and window.states[offset - window.base] in (AVAILABLE, DELAYED):
                break
            keep += 1
        del self._suspects[:keep]

    @staticmethod
    def _open(window: Window, offset: int) -> bool:
        return offset >= window.start and window.states[offset - window.base] in (AVAILABLE, DELAYED, BLOCKED)

    @staticmethod
    def _holds(window: Window, member_id: str, offset: int) -> bool:
        if not window.start <= offset < window.end:
            return False
        at = offset - window.base
        if window.states[at] not in (ACQUIRED, PENDING):
            return False
        return window.holds.by_id[window.hold_ids[at]].member_id == member_id
