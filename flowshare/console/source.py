"""The log as the console reaches it: one session for all questions, each with a limit of time.

Where the groups have no leader (no worker runs), a session leads them itself, as the commands do. A worker that starts
wants them, so such a session is closed as soon as no question is open, and opened again by the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from flowshare.backend.base import BackendError
from flowshare.cli.output import explain
from flowshare.client.errors import ClientError, ServerError, Unsupported
from flowshare.core_errors import FlowshareError
from flowshare.log.base import LogError, StorageHeld
from flowshare.ops import Failure
from flowshare.ops.session import CommandSession, open_session
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.backend.base import Backend

T = TypeVar("T")
Question = Callable[[CommandSession], Awaitable[T]]

ASK_S: Final = 3.0
"""Time, in s, that a page waits."""
OPEN_S: Final = 60.0
"""Time, in s, that opening a session may take; questions meanwhile wait as long as for an answer."""
ACT_S: Final = 60.0
"""Time, in s, that an action may take; one that goes on for longer is a job."""


class NotAnswering(FlowshareError):
    """Error: the log does not answer now, or not in time."""


class Source:
    """The log, through one session. url: of the log. On one loop."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._stack: contextlib.AsyncExitStack | None = None
        self._session: CommandSession | None = None
        self._opening: asyncio.Task[CommandSession] | None = None
        self._asking = 0

    @property
    def backend(self) -> Backend | None:
        """Backend of the last session; None: no session is open."""
        return None if self._session is None else self._session.backend

    @property
    def leads(self) -> bool:
        """True if no worker leads at the moment, so that this process leads while it asks."""
        return self._session is not None and self._session.leads

    async def ask(self, question: Question[T], *, limit_s: float = ASK_S) -> T:
        """Return a question's answer. Raises: NotAnswering; ServerError, Unsupported, Failure (the log refuses)."""
        self._asking += 1
        session: CommandSession | None = None
        try:
            async with asyncio.timeout(limit_s):
                session = await self._opened()
            async with asyncio.timeout(limit_s):
                return await question(session)
        except TimeoutError:
            raise NotAnswering(f"the log has not answered within {limit_s:g} s") from None
        except (ServerError, Unsupported, Failure):
            raise
        except (ClientError, OSError, BackendError, LogError) as error:
            if session is self._session:
                await self._drop()
            raise NotAnswering(f"the log does not answer: {explain(error)}") from error
        finally:
            self._asking -= 1
            await self._let_go()

    async def close(self) -> None:
        """Close all sessions, and open none for questions still waiting."""
        opening, self._opening = self._opening, None
        await cancelled(opening)
        await self._drop()

    async def _opened(self) -> CommandSession:
        if self._session is not None:
            return self._session
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open(), name="flowshare-console-open")
            self._opening.add_done_callback(_heard)
        return await asyncio.shield(self._opening)

    async def _open(self) -> CommandSession:
        stack = contextlib.AsyncExitStack()
        try:
            async with asyncio.timeout(OPEN_S):
                session = await stack.enter_async_context(open_session(self.url, groups=True))
            self._session, self._stack = session, stack
        except StorageHeld as error:
            raise NotAnswering(f"a process is just taking the path or letting go of it: {error}") from error
        finally:
            self._opening = None
        await self._let_go()
        return session

    async def _let_go(self) -> None:
        """Close a session that leads, which a worker may want, if no question is open."""
        if not self._asking and self.leads:
            await self._drop()

    async def _drop(self) -> None:
        """Close the session; the next question opens one."""
        stack, self._stack, self._session = self._stack, None, None
        if stack is not None:
            with contextlib.suppress(ClientError, OSError, BackendError, LogError):
                await stack.aclose()


def _heard(task: asyncio.Task[CommandSession]) -> None:
    """Retrieve the task's error: the askers have heard of it, if any."""
    if not task.cancelled():
        task.exception()
