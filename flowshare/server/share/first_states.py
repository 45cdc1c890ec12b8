"""First states of a group's share-partitions: written together with the group, before a member is told to fetch.

Those of thousands may take longer than a member can wait for its heartbeat's answer. Then they go on, the member is
told to ask again, and what it asks for next comes after them. Of each group one turn is at work and one waits.

Invariant: whenever a group is written, it is written as if the turns that are not written had not been asked for; so
a share-partition that is stored as begun has a state, and after a crash the others are begun as they would have been.

    at work  waits  event                             next
    -        -      a heartbeat changes the group     a turn begins; the heartbeat waits, `BEGIN_S` at most
    a turn   -      another one does                  the next turn waits, and the heartbeat for it
    a turn   one    another one does                  it joins the turn that waits
    a turn   any    written                           who waited for it is answered; the one that waits begins
    a turn   any    cannot be written, or nobody      who waited for it is refused, its share-partitions are chosen
                    leads them                        anew; the one that waits begins
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from flowshare.log.base import LogError
from flowshare.protocol.errors import ErrorCode
from flowshare.server.failures import Refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from flowshare.clock import Clock
    from flowshare.server.leaders import Leaders
    from flowshare.server.state import Write
    from flowshare.share.group import ShareGroup, ToInitialize

BEGIN_S: Final = 1.5
"""How long a heartbeat waits; less than a member of a fleet waits for its answer (`client.routing.BEAT_S`)."""


class Turn:
    """What is written together. `items`: share-partitions that get their first state."""

    def __init__(self) -> None:
        self.items: list[ToInitialize] = []
        self.task: asyncio.Task[None]


class FirstStates:
    """Of all groups of a coordinator. write: writes a group together with more. Raises LogError."""

    def __init__(
        self, leaders: Leaders, write: Callable[[ShareGroup, Sequence[Write]], Awaitable[None]], clock: Clock
    ) -> None:
        self._leaders = leaders
        self._write = write
        self._clock = clock
        self._turns: dict[ShareGroup, list[Turn]] = {}
        """The one at work, and the one that waits; one that is taken up anew is another group."""
        self._writing: dict[ShareGroup, Turn] = {}

    def unwritten(self, group: ShareGroup) -> list[ToInitialize]:
        """Share-partitions of the group that are to be written as not begun yet."""
        writing = self._writing.get(group)
        return [item for turn in self._turns.get(group, ()) if turn is not writing for item in turn.items]

    async def give(self, group: ShareGroup, items: Sequence[ToInitialize]) -> None:
        """Give share-partitions their first state and write the group. Raises: Refused."""
        turn = self._turn(group)
        turn.items += items
        try:
            await self._clock.wait_for(asyncio.shield(turn.task), BEGIN_S)
        except TimeoutError:
            raise Refused(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"the partitions of group {group.group_id} get their first state; try again soon",
            ) from None

    async def close(self) -> None:
        """Leave what is not written."""
        tasks = [turn.task for turns in self._turns.values() for turn in turns]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _turn(self, group: ShareGroup) -> Turn:
        """The one that has not begun."""
        turns = self._turns.setdefault(group, [])
        if len(turns) < 2:
            turn, before = Turn(), turns[-1] if turns else None
            turn.task = asyncio.create_task(self._take(group, turn, before), name=f"begin {group.group_id}")
            turn.task.add_done_callback(lambda _: self._over(group, turn))
            turns.append(turn)
        return turns[-1]

    async def _take(self, group: ShareGroup, turn: Turn, before: Turn | None) -> None:
        if before is not None:
            await asyncio.wait([before.task])
        items = turn.items
        try:
            async with self._leaders.beginning(group.group_id, group.config, items) as writes:
                self._writing[group] = turn
                await self._write(group, writes)
        except BaseException as error:
            group.initialize_failed(items)
            if not isinstance(error, LogError):
                raise
            raise Refused(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {group.group_id} could not be written: {error}"
            ) from error
        finally:
            if self._writing.get(group) is turn:
                del self._writing[group]

    def _over(self, group: ShareGroup, turn: Turn) -> None:
        turns = self._turns[group]
        turns.remove(turn)
        if not turns:
            del self._turns[group]
        if not turn.task.cancelled():
            turn.task.exception()  # whoever waited may have gone
