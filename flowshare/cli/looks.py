"""A log that is looked at again and again: open as long as somebody else leads the groups.

Otherwise the path is opened, or the fleet led, and let go of after each look: a worker may come.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from flowshare.cli.session import CommandSession, open_session
from flowshare.clock import LoopClock

if TYPE_CHECKING:
    from flowshare.agents.scale.retention import Facts
    from flowshare.clock import Clock


class KeptSession:
    """The session of one command that looks. Close it in the end, and after an error."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._open: tuple[contextlib.AsyncExitStack, CommandSession, Facts] | None = None
        self.moving = False
        """Whether somebody may work on it, so that there is a rate to measure; as the last look found it."""
        self.clock: Clock = LoopClock()

    async def opened(self) -> tuple[CommandSession, Facts]:
        """What to look with. Raises: Failure, LogError, BackendError, ClientError, OSError."""
        from flowshare.agents.scale.retention import Facts

        if self._open is None:
            stack = contextlib.AsyncExitStack()
            session = await stack.enter_async_context(open_session(self._url, groups=True))
            self._open = stack, session, Facts(session.admin)
        return self._open[1:]

    @property
    def leads(self) -> bool:
        """Whether this process stands in for workers, of which none runs."""
        return self._open is not None and self._open[1].leads

    async def let_go(self) -> None:
        """A look is over: keep nothing that a worker may want."""
        self.moving = not self.leads
        if self.leads:
            await self.close()

    async def close(self) -> None:
        """Let go of what is open."""
        opened, self._open = self._open, None
        if opened is not None:
            await opened[0].aclose()
