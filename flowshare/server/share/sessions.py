"""Share sessions with their consequences: a session that ends releases records and ends its fetches.

The epochs and sets are in `share.session`; here are the parked fetches, one or more a session, and the release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowshare.core_errors import ShareSessionLimitReached
from flowshare.server.runtime.waiting import Ended, Waiter
from flowshare.share.session import EPOCH_OPEN, ShareSessions

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable

    from flowshare.server.runtime.connection import InProcess
    from flowshare.server.share.partitions import Partitions
    from flowshare.share.session import ClosedSession, FetchTurn, Key

PARKED_PER_SESSION = 2
"""Fetches that may wait in one session; in all sessions, so many times the most open ones. One more is answered at
once."""


class Sessions:
    """All share sessions of a server."""

    def __init__(self, partitions: Partitions, *, sessions_max: int, connection_sessions_max: int) -> None:
        self._cores = ShareSessions(sessions_max, connection_sessions_max)
        self._partitions = partitions
        self._cut_off: dict[tuple[str, str], ClosedSession] = {}
        """Sessions of members that may come back with their records."""
        self._waiters: dict[tuple[str, str], dict[Waiter, None]] = {}
        """Fetches of a session, in the order in which they came."""
        self.opened = 0
        """Sessions opened since the start; a session that its member opened anew counts again."""
        self.evicted = 0
        """Sessions that ended without a word of their member: its connection ended, or its time was over."""
        self.refused = 0
        """Sessions refused for lack of room."""
        self.parked = 0
        """Fetches that are under way: waiting, or looking."""
        self._parked_max = PARKED_PER_SESSION * sessions_max

    def configure(self, *, sessions_max: int, connection_sessions_max: int) -> None:
        """Set the most open sessions, of all and of one connection; open ones stay."""
        self._cores.sessions_max = sessions_max
        self._cores.connection_sessions_max = connection_sessions_max
        self._parked_max = PARKED_PER_SESSION * sessions_max

    def __len__(self) -> int:
        return len(self._cores)

    def fetch(
        self,
        connection: InProcess,
        group_id: str | None,
        member_id: str | None,
        epoch: int,
        *,
        added: Collection[Key],
        forgotten: Iterable[Key],
        has_acks: bool,
        beside: bool = False,
    ) -> FetchTurn:
        """Accept a ShareFetch; one that opens a session anew ends the fetches of the old one.

        In the same session it ends the wait of parked fetches, which answer with what they have: our own members that
        stop ask so for the records on their way. beside: the last fetch goes on, as this one asks for records and may
        wait, too (SG-11.10).

        Raises: errors of `ShareSessions.fetch`.
        """
        try:
            turn = self._cores.fetch(
                connection,
                group_id,
                member_id,
                epoch,
                added=added,
                forgotten=forgotten,
                has_acks=has_acks,
                party=connection.counts_as(),
            )
        except ShareSessionLimitReached:
            self.refused += 1
            raise
        if epoch == EPOCH_OPEN:
            self.opened += 1
            self._partitions.used(turn.session.group_id)
        reason = Ended.SESSION if epoch == 0 else Ended.TIMEOUT
        kept = PARKED_PER_SESSION - 1 if beside and epoch != 0 else 0
        self._end_fetches(turn.session.group_id, turn.session.member_id, reason, kept)
        return turn

    def acknowledge(self, group_id: str | None, member_id: str | None, epoch: int) -> ClosedSession | None:
        """Accept a ShareAcknowledge. Raises: errors of `ShareSessions.acknowledge`."""
        return self._cores.acknowledge(group_id, member_id, epoch)

    def disconnected(self, connection: Hashable) -> None:
        """End the sessions that a closed connection opened."""
        for closed in self._cores.close_connection(connection):
            self.evicted += 1
            self.ended(closed, died=True)

    def cut_off(self, connection: Hashable) -> tuple[ClosedSession, ...]:
        """End a connection's sessions, but let their members keep their records for now: call `gave_up` for each
        soon."""
        closed = self._cores.close_connection(connection)
        self.evicted += len(closed)
        for one in closed:
            self._cut_off[one.group_id, one.member_id] = one
            self._end_fetches(one.group_id, one.member_id, Ended.SESSION)
        return closed

    def resumed(self, group_id: str, member_id: str) -> None:
        """Note that a cut-off member has told which records it holds."""
        self._cut_off.pop((group_id, member_id), None)

    def gave_up(self, closed: ClosedSession) -> None:
        """End the grace of a cut-off member, unless it came back or was cut off once more since."""
        key = closed.group_id, closed.member_id
        if self._cut_off.get(key) is closed:
            del self._cut_off[key]
            if self._cores.get(*key) is None:
                self.ended(closed, died=True)

    def ended(self, closed: ClosedSession, *, died: bool = False) -> None:
        """Release the records of a closed session, on the partitions that it had (SG-8.4).

        died: True if the connection ended without a word of the member.
        """
        self._end_fetches(closed.group_id, closed.member_id, Ended.SESSION)
        self._partitions.release_member(closed.group_id, closed.member_id, closed.partitions, died=died)
        self.drop_unread(closed.group_id)

    def drop_unread(self, group_id: str) -> None:
        """Let the share-partitions of a group that has no session leave memory."""
        if not self._cores.has(group_id):
            self._partitions.drop_idle(group_id)

    def member_died(self, group_id: str, member_id: str) -> None:
        """End the session of a member that left its group without a word: its fetches under way must get nothing any
        more.

        A member that lives all the same would get records beside those that it lost, and its late acknowledgement of a
        lost one would count for the record that it was given anew.
        """
        closed = self._cores.close(group_id, member_id)
        if closed is not None:
            self.evicted += 1
            self._end_fetches(group_id, member_id, Ended.SESSION)
            self.drop_unread(group_id)

    def enter(self, group_id: str, member_id: str) -> Waiter:
        """Begin a fetch; it may wait unless too many do."""
        waiter = Waiter()
        self._waiters.setdefault((group_id, member_id), {})[waiter] = None
        self.parked += 1
        if self.parked > self._parked_max:
            waiter.end(Ended.TIMEOUT)
        return waiter

    def leave(self, group_id: str, member_id: str, waiter: Waiter) -> None:
        """End a fetch."""
        self.parked -= 1
        waiters = self._waiters[group_id, member_id]
        del waiters[waiter]
        if not waiters:
            del self._waiters[group_id, member_id]
            self.drop_unread(group_id)  # until now this fetch stood in their lines

    def _end_fetches(self, group_id: str, member_id: str, reason: Ended, kept: int = 0) -> None:
        """End a session's fetches, but for the last `kept`."""
        waiters = tuple(self._waiters.get((group_id, member_id), ()))
        for waiter in waiters[: len(waiters) - kept]:
            waiter.end(reason)
