"""First states of a group's share-partitions: written together with the group, before a member is told to fetch.

Those of thousands may take longer than a member can wait for its heartbeat's answer. Then they go on, the member is
told to ask again, and its next request comes after them. Of each group one round is at work and one waits.

Invariant: whenever a group is written, it is written as if the rounds that are not written had not been asked for; so a
share-partition that is stored as begun has a state, and after a crash the others are begun as they would have been.

    at work  waits  event                             next
    -        -      a heartbeat changes the group     a round begins; the heartbeat waits, `BEGIN_S` at most
    a round  -      another one does                  the next round waits, and the heartbeat for it
    a round  one    another one does                  it joins the round that waits
    a round  any    written                           its heartbeats are answered; the one that waits begins
    a round  any    cannot be written, or nobody      its heartbeats are refused, its share-partitions are chosen
                    leads them                        anew; the one that waits begins
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from flowshare.log.base import LogError
from flowshare.protocol.errors import ErrorCode
from flowshare.server.runtime.failures import Refused
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from flowshare.clock import Clock
    from flowshare.server.runtime.state import Write
    from flowshare.server.share.leaders import Leaders
    from flowshare.share.group import ShareGroup, ToInitialize

BEGIN_S: Final = 1.5
"""Seconds that a heartbeat waits; less than a member of a fleet waits for its answer (`client.net.routing.BEAT_S`)."""


class Round:
    """One write of a group's first states; gathers `items`, the share-partitions, until it begins."""

    def __init__(self) -> None:
        self.items: list[ToInitialize] = []
        self.task: asyncio.Task[None]


class FirstStates:
    """First states of all groups of a coordinator. write: writes a group together with more. Raises LogError."""

    def __init__(
        self, leaders: Leaders, write: Callable[[ShareGroup, Sequence[Write]], Awaitable[None]], clock: Clock
    ) -> None:
        self._leaders = leaders
        self._write = write
        self._clock = clock
        self._rounds: dict[ShareGroup, list[Round]] = {}
        """The round at work, and the one that waits; a group that is taken up anew is another one."""
        self._writing: dict[ShareGroup, Round] = {}

    def unwritten(self, group: ShareGroup) -> list[ToInitialize]:
        """Return the share-partitions of the group that are to be written as not begun yet."""
        writing = self._writing.get(group)
        return [item for this in self._rounds.get(group, ()) if this is not writing for item in this.items]

    async def give(self, group: ShareGroup, items: Sequence[ToInitialize]) -> None:
        """Give share-partitions their first state and write the group. Raises: Refused."""
        this = self._next_round(group)
        this.items += items
        try:
            await self._clock.wait_for(asyncio.shield(this.task), BEGIN_S)
        except TimeoutError:
            raise Refused(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"the partitions of group {group.group_id} get their first state; try again soon",
            ) from None

    async def close(self) -> None:
        """Drop unwritten rounds."""
        await cancelled(*(this.task for rounds in self._rounds.values() for this in rounds))

    def _next_round(self, group: ShareGroup) -> Round:
        """Return the round that has not begun, made if need be."""
        rounds = self._rounds.setdefault(group, [])
        if len(rounds) < 2:
            this, before = Round(), rounds[-1] if rounds else None
            this.task = asyncio.create_task(self._carry_out(group, this, before), name=f"begin {group.group_id}")
            this.task.add_done_callback(lambda _: self._over(group, this))
            rounds.append(this)
        return rounds[-1]

    async def _carry_out(self, group: ShareGroup, this: Round, before: Round | None) -> None:
        if before is not None:
            await asyncio.wait([before.task])
        items = this.items
        try:
            async with self._leaders.beginning(group.group_id, group.config, items) as writes:
                self._writing[group] = this
                await self._write(group, writes)
        except BaseException as error:
            group.initialize_failed(items)
            if not isinstance(error, LogError):
                raise
            raise Refused(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {group.group_id} could not be written: {error}"
            ) from error
        finally:
            if self._writing.get(group) is this:
                del self._writing[group]

    def _over(self, group: ShareGroup, this: Round) -> None:
        rounds = self._rounds[group]
        rounds.remove(this)
        if not rounds:
            del self._rounds[group]
        if not this.task.cancelled():
            this.task.exception()  # the waiting heartbeat may have gone
