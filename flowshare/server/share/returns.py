"""Members that have to come back: those whose connection ended, and those that another server coordinated until now.

Who does not send a heartbeat in time is removed, as if its session had timed out. The others are asked for heartbeats
often meanwhile, because they hear with them of the partitions that become theirs.

    event                                                      expected for
    the connection of one of flowshare's own ended             the grace, in a fleet and a heartbeat's interval
    … and it had sent its last heartbeat over another one      nothing changes
    it lives in the process of a worker that left the fleet,   `SOON_MS`
    or that has left when this server takes groups up          (in large groups: three heartbeats' time)
    this server takes groups up                                in a fleet: the same, whoever the member is
    this server was started again                              the grace, whoever it is

The grace is group.share.return.grace.ms. One that lives is back with its next heartbeat; the rest is for machines that
have no processor time to give. A worker leaves its fleet when it ends, or was not heard of by the brokers for the slot
group's session: its process is gone, or stands still, and what stands still begins nothing when it goes on before its
group has answered it (`agents.feed.standstill`). One that is only cut off from the brokers sends its heartbeats still.
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
"""Between heartbeats when somebody waits for them; for each of `OFTEN_MEMBERS` members of a group."""
OFTEN_MEMBERS: Final = 50
SOON_MS: Final = 1_500
"""How long a member is expected back whose process is likely to be gone: the time of three heartbeats in a fleet, and
longer in a group so large that they are longer."""
SETTLE_MS: Final = 1_500
"""After a member was given up: an assignment is computed, and told."""


def fleet_interval_ms(members: int, usual_ms: int) -> int:
    """Between heartbeats of a member of flowshare's own in a fleet: as often as one coordinator can well take."""
    return min(usual_ms, max(OFTEN_MS, members * OFTEN_MS // OFTEN_MEMBERS))


class Returns:
    """Of one coordinator. grace_ms: 0: nobody is expected back. fleet: whether there are other coordinators."""

    def __init__(self, *, clock: Clock, config_of: Callable[[str], GroupConfig], grace_ms: int, fleet: bool) -> None:
        self._clock = clock
        self._config_of = config_of
        self._fleet = fleet
        self._beating: dict[InProcess, set[Who]] = {}
        self._beat_over: dict[Who, InProcess] = {}
        """Over which connection each member sent its last heartbeat."""
        self._stirred: dict[str, int] = {}
        """Groups with members that may be given up, and until when their members are asked for heartbeats often."""
        self.grace_ms = grace_ms

    def beat(self, connection: InProcess, who: Who, *, left: bool) -> None:
        """A member sent a heartbeat over a connection, its last one if it has left."""
        before = self._beat_over.get(who)
        if before is connection and not left:
            return
        if before is not None:
            del self._beat_over[who]
            self._beating[before].discard(who)
        if not left and not connection.closed:
            self._beat_over[who] = connection
            self._beating.setdefault(connection, set()).add(who)

    def ended(self, connection: InProcess) -> list[Who]:
        """A connection ended: the members that sent their last heartbeats over it and are expected back."""
        members = self._beating.pop(connection, set[Who]())
        for who in members:
            del self._beat_over[who]
        return sorted(members) if self.grace_ms and connection.own else []

    def expect(self, group: ShareGroup, member_id: str) -> int:
        """Have a member come back; by when, in milliseconds of the clock."""
        usual_ms = self._config_of(group.group_id).heartbeat_interval_ms if self._fleet else 0
        return self._expect(group, member_id, self.grace_ms + usual_ms)

    def expect_soon(self, group: ShareGroup, member_id: str) -> int:
        """Have a member come back whose process is likely to be gone; by when."""
        usual_ms = self._config_of(group.group_id).heartbeat_interval_ms
        often_ms = fleet_interval_ms(len(group.members), usual_ms)
        return self._expect(group, member_id, max(SOON_MS, 3 * often_ms))

    def _expect(self, group: ShareGroup, member_id: str, within_ms: int) -> int:
        due_ms = self._clock.steady_ms() + within_ms
        group.expect_by(member_id, due_ms)
        self._stirred[group.group_id] = max(self._stirred.get(group.group_id, 0), due_ms + SETTLE_MS)
        return due_ms

    def interval_ms(self, group_id: str, members: int, *, own: bool) -> int:
        """How often a member of a group of so many is to send heartbeats; own: flowshare's own client."""
        usual_ms = self._config_of(group_id).heartbeat_interval_ms
        if own and self._fleet:
            usual_ms = fleet_interval_ms(members, usual_ms)
        if self._stirred.get(group_id, 0) > self._clock.steady_ms():
            return min(usual_ms, OFTEN_MS)
        self._stirred.pop(group_id, None)
        return usual_ms

    def forget(self, group_id: str) -> None:
        """The group is coordinated here no more."""
        self._stirred.pop(group_id, None)
