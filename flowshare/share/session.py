"""Share sessions: one per group and member, with the epoch that orders its requests (docs/share-groups.md, SG-10).

Rules kept here: epoch 0 opens (and replaces) a session, −1 closes it (SG-10.2), any other epoch must be the expected
epoch, which every accepted ShareFetch or ShareAcknowledge raises by one; after 2^31−1 comes 1 (SG-10.3). A session
belongs to the connection that opened it and ends with it; acknowledgements are taken over any connection (SG-10.4). The
caller releases the records of a closed session: only on partitions that are in the session at that moment.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from flowshare.core_errors import (
    InvalidRequest,
    InvalidShareSessionEpoch,
    ShareSessionLimitReached,
    ShareSessionNotFound,
)

EPOCH_OPEN: Final = 0
EPOCH_CLOSE: Final = -1
EPOCH_LAST: Final = 2**31 - 1
MEMBER_ID_LENGTH_MAX: Final = 36
SPARE_PART: Final = 10
"""The part that a party must leave free, of the sessions that other parties do not have: one in `SPARE_PART`."""
PARTITIONS_MAX: Final = 10_000
"""The most partitions of one session: each fetch looks at all of them, and only then finds out if they exist."""

Key = tuple[UUID, int]
"""A topic's id and a partition; `protocol.messages.TopicPartition` is such a key."""


def next_epoch(epoch: int) -> int:
    """Return the epoch that follows; 1 follows the last one, 0 and −1 never come again."""
    return 1 if epoch >= EPOCH_LAST else epoch + 1


def rotated(keys: tuple[Key, ...], epoch: int) -> tuple[Key, ...]:
    """Return the keys with `epoch mod n` of them moved to the end, so that each comes first in turn (SG-10.7)."""
    if len(keys) < 2:
        return keys
    by = epoch % len(keys)
    return keys[by:] + keys[:by]


class ClosedSession(NamedTuple):
    """A session that ended; release the records that the member holds on `partitions`."""

    group_id: str
    member_id: str
    partitions: tuple[Key, ...]


@dataclass(slots=True, eq=False)
class ShareSession:
    """One open session: its partitions in order of adding, with the mark `must be listed in the next answer`."""

    group_id: str
    member_id: str
    connection_id: Hashable
    party: Hashable = None
    """The party that opened the session; None: the server's own process."""
    expected_epoch: int = 1
    _marks: dict[Key, bool] = field(default_factory=dict[Key, bool])

    @property
    def partitions(self) -> tuple[Key, ...]:
        """The session's partitions in order of adding."""
        return tuple(self._marks)

    def update(self, added: Iterable[Key], forgotten: Iterable[Key]) -> None:
        """Add partitions (known ones keep their place), drop forgotten ones (unknown ones are no error; SG-10.6)."""
        for topic_id, partition in added:
            self._marks.setdefault((topic_id, partition), True)
        for topic_id, partition in forgotten:
            self._marks.pop((topic_id, partition), None)

    def must_list(self, key: Key, *, content: bool, error: bool) -> bool:
        """Tell if a partition must be listed in the answer to a fetch; call it once for each answered partition.

        A partition is listed if it has content (records or acknowledgements) or an error, if it was added with this
        request, or if it was listed with an error the last time (SG-11.5). An error marks the partition for the next
        answer.
        """
        key = (key[0], key[1])
        marked = self._marks.get(key, False)
        if key in self._marks:
            self._marks[key] = error
        return content or error or marked


class FetchTurn(NamedTuple):
    """The session, partitions and closed session of an accepted ShareFetch."""

    session: ShareSession
    partitions: tuple[Key, ...]
    """The partitions to fetch from, in this order; empty when the session closes."""
    closed: ClosedSession | None
    """Set when the request closed the session: process its acknowledgements, then release."""


class ShareSessions:
    """All open sessions of a server, one per group and member (SG-10.1). Each request begins here.

    sessions_max: the most open sessions (SG-10.5). connection_sessions_max: the most of them that one connection may
    open. Both can be set at any time. One party (a principal, or an address where nobody logs in) has at most nine of
    ten of the sessions that others do not have. The server's own process, whose party is None, is held to neither.
    """

    def __init__(self, sessions_max: int = 2_000, connection_sessions_max: int = 100) -> None:
        self.sessions_max = sessions_max
        self.connection_sessions_max = connection_sessions_max
        self._by_party: dict[Hashable, set[tuple[str, str]]] = {}
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._by_connection: dict[Hashable, set[tuple[str, str]]] = {}
        self._by_group: dict[Hashable, set[tuple[str, str]]] = {}

    def __len__(self) -> int:
        """Return the number of open sessions."""
        return len(self._sessions)

    def get(self, group_id: str, member_id: str) -> ShareSession | None:
        """Return the open session of a member; None: none is open."""
        return self._sessions.get((group_id, member_id))

    def has(self, group_id: str) -> bool:
        """Return True if a group has an open session; without one its share-partitions may leave memory."""
        return group_id in self._by_group

    def fetch(
        self,
        connection_id: Hashable,
        group_id: str | None,
        member_id: str | None,
        epoch: int,
        *,
        added: Collection[Key] = (),
        forgotten: Iterable[Key] = (),
        has_acks: bool = False,
        party: Hashable = None,
    ) -> FetchTurn:
        """Accept a ShareFetch: open, go on or close; the session's epoch and partitions are changed at once.

        party: the party that asks; None: the server's own process.

        `added` are all partitions the request names, those named only for acknowledgements included.
        Raises InvalidRequest (ids; too many partitions; acknowledgements at epoch 0, which leaves an existing session
        as it is), ShareSessionLimitReached, ShareSessionNotFound, InvalidShareSessionEpoch; nothing is changed then.
        """
        group_id, member_id = check_ids(group_id, member_id)
        if epoch == EPOCH_OPEN:
            if has_acks:
                raise InvalidRequest("a ShareFetch that opens a share session must not carry acknowledgements")
            check_size((), added)
            session = self._open(connection_id, group_id, member_id, party)
        else:
            session = self._find(group_id, member_id)
            if epoch == EPOCH_CLOSE:
                return FetchTurn(session, (), self._remove(session))
            check_size(session.partitions, added)
            self._advance(session, epoch)
        session.update(added, forgotten)
        return FetchTurn(session, rotated(session.partitions, epoch), None)

    def acknowledge(self, group_id: str | None, member_id: str | None, epoch: int) -> ClosedSession | None:
        """Accept a ShareAcknowledge; return the session if the request closed it: process the batches, then release.

        Raises InvalidRequest, InvalidShareSessionEpoch (epoch 0 never opens here), ShareSessionNotFound.
        """
        group_id, member_id = check_ids(group_id, member_id)
        if epoch == EPOCH_OPEN:
            raise InvalidShareSessionEpoch("a ShareAcknowledge cannot open a share session; its epoch must not be 0")
        session = self._find(group_id, member_id)
        if epoch == EPOCH_CLOSE:
            return self._remove(session)
        self._advance(session, epoch)
        return None

    def close(self, group_id: str, member_id: str) -> ClosedSession | None:
        """End a member's session from the server's side (the member left or timed out); None when none is open."""
        session = self.get(group_id, member_id)
        return None if session is None else self._remove(session)

    def close_connection(self, connection_id: Hashable) -> tuple[ClosedSession, ...]:
        """End the sessions that a connection opened, and no others."""
        keys = self._by_connection.get(connection_id, set[tuple[str, str]]())
        return tuple(self._remove(self._sessions[key]) for key in sorted(keys))

    def _open(self, connection_id: Hashable, group_id: str, member_id: str, party: Hashable) -> ShareSession:
        old = self.get(group_id, member_id)
        if old is None and len(self._sessions) >= self.sessions_max:
            raise ShareSessionLimitReached(
                f"{self.sessions_max} share sessions are open (group.share.max.share.sessions); try again later"
            )
        if party is not None:
            self._check_parts(connection_id, party, old)
        if old is not None:
            self._remove(old)
        key = (group_id, member_id)
        session = ShareSession(group_id, member_id, connection_id, party)
        self._sessions[key] = session
        self._by_connection.setdefault(connection_id, set()).add(key)
        self._by_party.setdefault(party, set()).add(key)
        self._by_group.setdefault(group_id, set()).add(key)
        return session

    def _check_parts(self, connection_id: Hashable, party: Hashable, old: ShareSession | None) -> None:
        """Check that connection and party may open one more session. old: the session to be replaced."""
        of_connection = len(self._by_connection.get(connection_id, ()))
        if old is not None and old.connection_id == connection_id:
            of_connection -= 1
        if of_connection >= self.connection_sessions_max:
            raise ShareSessionLimitReached(
                f"this connection has {of_connection} share sessions open (connection.max.share.sessions); "
                "close some, or open another connection"
            )
        of_party = len(self._by_party.get(party, ()))
        free = self.sessions_max - len(self._sessions) + of_party
        if (old is None or old.party != party) and of_party >= free - free // SPARE_PART:
            raise ShareSessionLimitReached(
                f"{party} has {of_party} share sessions open, and some of the {self.sessions_max} "
                "(group.share.max.share.sessions) are left to others; try again later"
            )

    def _find(self, group_id: str, member_id: str) -> ShareSession:
        session = self.get(group_id, member_id)
        if session is None:
            raise ShareSessionNotFound(f"member {member_id} has no open share session in group {group_id}")
        return session

    @staticmethod
    def _advance(session: ShareSession, epoch: int) -> None:
        if epoch != session.expected_epoch:
            raise InvalidShareSessionEpoch(f"share session epoch is {epoch}, expected {session.expected_epoch}")
        session.expected_epoch = next_epoch(epoch)

    def _remove(self, session: ShareSession) -> ClosedSession:
        key = (session.group_id, session.member_id)
        del self._sessions[key]
        _discard(self._by_connection, session.connection_id, key)
        _discard(self._by_party, session.party, key)
        _discard(self._by_group, session.group_id, key)
        return ClosedSession(*key, session.partitions)


def check_size(known: Collection[Key], added: Collection[Key]) -> None:
    """Check that a session has room for all these partitions. Raises InvalidRequest."""
    if len(known) + len(added) > PARTITIONS_MAX and len({*known, *added}) > PARTITIONS_MAX:
        raise InvalidRequest(f"a share session has at most {PARTITIONS_MAX} partitions; forget some first")


def check_ids(group_id: str | None, member_id: str | None) -> tuple[str, str]:
    """Return the checked ids of a ShareFetch or ShareAcknowledge. Raises InvalidRequest (SG-11.1)."""
    if not group_id:
        raise InvalidRequest("the group id is missing")
    if not member_id or len(member_id) > MEMBER_ID_LENGTH_MAX:
        raise InvalidRequest(f"the member id must have 1 to {MEMBER_ID_LENGTH_MAX} characters")
    return group_id, member_id


def _discard(index: dict[Hashable, set[tuple[str, str]]], at: Hashable, key: tuple[str, str]) -> None:
    keys = index[at]
    keys.discard(key)
    if not keys:
        del index[at]
