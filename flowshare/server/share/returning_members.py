"""Members that have to come back: those whose connection ended, and those that another server coordinated until now.

A member that sends no heartbeat in time is removed, as if its session had timed out. The others are asked for
heartbeats often meanwhile, because heartbeats tell them of their new partitions.

    event                                                      expected for
    the connection of one of flowshare's own ended             the grace, in a fleet and a heartbeat's interval
    … and it had sent its last heartbeat over another one      nothing changes
    … and its process, one of this machine, has ended          no more from then on; its locks need not be waited for
    it lives in the process of a worker that left the fleet,   `THREE_BEATS_MS`
    or that has left when this server takes groups up          (in large groups: three heartbeats' time)
    this server takes groups up                                in a fleet: the same, for any member
    this server was started again                              the grace, for any member

The grace is group.share.return.grace.ms. A living member is back with its next heartbeat; the rest is for machines that
have no processor time to give. A worker leaves its fleet when it ends, or was not heard of by the brokers for the slot
group's session: its process is gone, or stands still, and a process that stood still begins nothing before its group
has answered it (`agents.feed.standstill`). A worker only cut off from the brokers sends its heartbeats still.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowshare.clock import Clock
    from flowshare.server.runtime.connection import InProcess
    from flowshare.share.config import GroupConfig
    from flowshare.share.group import ShareGroup

Who = tuple[str, str]
"""Group and member id."""

OFTEN_MS: Final = 500
"""Least ms between heartbeats of flowshare's own members where workers come and go, and when members are awaited;
longer in groups of more than `OFTEN_MEMBERS`, in proportion."""
OFTEN_MEMBERS: Final = 50
THREE_BEATS_MS: Final = 1_500
"""Ms that a member is expected back whose process is likely to be gone: the time of three heartbeats in a fleet; longer
in a group so large that they are longer."""
SETTLE_MS: Final = 1_500
"""Ms after a member was given up: an assignment is computed, and told."""


def own_interval_ms(members: int, usual_ms: int) -> int:
    """Return the ms between heartbeats of flowshare's own members in a fleet or on a path, where they learn by their
    next one of freed partitions: as few as one coordinator can well take."""
    return min(usual_ms, max(OFTEN_MS, members * OFTEN_MS // OFTEN_MEMBERS))


class Returns:
    """Awaited members of one coordinator. grace_ms: 0: none is awaited. fleet: True if there are other coordinators."""

    def __init__(self, *, clock: Clock, config_of: Callable[[str], GroupConfig], grace_ms: int, fleet: bool) -> None:
        self._clock = clock
        self._config_of = config_of
        self._fleet = fleet
        self._beating: dict[InProcess, set[Who]] = {}
        self._beat_over: dict[Who, InProcess] = {}
        """Connection of each member's last heartbeat."""
        self._ended: set[Who] = set()
        """Members whose processes have ended, and that did not come back since."""
        self._stirred: dict[str, int] = {}
        """Groups with members that may be given up -> ms until which their members are asked for heartbeats often."""
        self.grace_ms = grace_ms

    def beat(self, connection: InProcess, who: Who, *, left: bool) -> None:
        """Note a member's heartbeat over a connection, its last one if it has left."""
        before = self._beat_over.get(who)
        if before is connection and not left:
            return
        if before is not None:
            del self._beat_over[who]
            self._beating[before].discard(who)
        self._ended.discard(who)
        if not left and not connection.closed:
            self._beat_over[who] = connection
            self._beating.setdefault(connection, set()).add(who)

    def ended(self, connection: InProcess) -> list[Who]:
        """Drop an ended connection; return the members to expect back, whose last heartbeats came over it."""
        members = self._beating.pop(connection, set[Who]())
        for who in members:
            del self._beat_over[who]
        return sorted(members) if self.grace_ms and connection.own else []

    def expect(self, group: ShareGroup, member_id: str) -> int:
        """Expect a member back; return the deadline, in ms of the steady clock."""
        usual_ms = self._config_of(group.group_id).heartbeat_interval_ms if self._fleet else 0
        return self._expect(group, member_id, self.grace_ms + usual_ms)

    def expect_no_more(self, group: ShareGroup, member_id: str) -> int:
        """Stop expecting a member, as its process has ended, unless it came back over another connection; return the
        deadline."""
        if (group.group_id, member_id) in self._beat_over:
            return self._clock.steady_ms() + self.grace_ms
        self._ended.add((group.group_id, member_id))
        return self._expect(group, member_id, 0)

    def process_ended(self, group_id: str, member_id: str) -> bool:
        """Return True if the process of a member that is being given up is known to have ended; asked once."""
        who = (group_id, member_id)
        known = who in self._ended
        self._ended.discard(who)
        return known

    def expect_soon(self, group: ShareGroup, member_id: str) -> int:
        """Expect a member back soon whose process is likely to be gone; return the deadline."""
        usual_ms = self._config_of(group.group_id).heartbeat_interval_ms
        often_ms = own_interval_ms(len(group.members), usual_ms)
        return self._expect(group, member_id, max(THREE_BEATS_MS, 3 * often_ms))

    def _expect(self, group: ShareGroup, member_id: str, within_ms: int) -> int:
        due_ms = self._clock.steady_ms() + within_ms
        group.expect_by(member_id, due_ms)
        self._stirred[group.group_id] = max(self._stirred.get(group.group_id, 0), due_ms + SETTLE_MS)
        return due_ms

    def interval_ms(self, group_id: str, members: int, *, own: bool) -> int:
        """Return the ms between heartbeats of a member in a group of `members`; own: flowshare's own client."""
        usual_ms = self._config_of(group_id).heartbeat_interval_ms
        if own and (self._fleet or self.grace_ms):
            usual_ms = own_interval_ms(members, usual_ms)
        if self._stirred.get(group_id, 0) > self._clock.steady_ms():
            return min(usual_ms, OFTEN_MS)
        self._stirred.pop(group_id, None)
        return usual_ms

    def forget(self, group_id: str) -> None:
        """Forget a group not coordinated here any more."""
        self._stirred.pop(group_id, None)
        self._ended = {who for who in self._ended if who[0] != group_id}
