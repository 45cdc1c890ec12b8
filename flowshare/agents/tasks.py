"""What pools of asyncio tasks have in common: idle tasks, fresh tasks, yielding to the loop."""

from __future__ import annotations

import abc
import asyncio
import types
from collections import deque
from collections.abc import Generator
from typing import Final

from flowshare.agents.pool import Pool
from flowshare.agents.slots import Slot

SLICE_S: Final = 0.002
"""How long handlers that never wait may keep the loop before others get a turn."""


def is_closing(slot: Slot, error: BaseException) -> bool:
    """Whether the slot's task is being destroyed: then nothing may be awaited any more. A GeneratorExit that is raised
    while the task runs is the handler's own."""
    if not isinstance(error, GeneratorExit):
        return False
    try:
        return asyncio.current_task() is not slot.task
    except RuntimeError:  # no loop runs
        return True


@types.coroutine
def give_turn() -> Generator[None, None, None]:
    """Let the loop run everybody else once."""
    yield


class TaskBasedPool(Pool):
    """Slots that are long-lived tasks on the handler loop."""

    _waiting: deque[asyncio.Future[None]]

    async def start(self) -> None:
        """Make the tasks."""
        await super().start()
        self._waiting = deque()
        for slot in self.slots:
            self.spawn(slot)

    def spawn(self, slot: Slot) -> None:
        """A new task for the slot, with context variables as they were at the start."""
        slot.held = None
        slot.timed_out = False
        if not self.stopping:
            slot.task = self._handler_loop.create_task(
                self.work(slot), name=f"{self.agent.name}-{slot.index}", context=self.context.copy()
            )

    @abc.abstractmethod
    async def work(self, slot: Slot) -> None:
        """Take and handle records until the pool stops or the task is to be replaced."""

    def wake(self) -> None:
        """Wake as many idle tasks as there are records for."""
        wanted = sum(len(chunk.records) for chunk in self.queue) if len(self.queue) < 8 else len(self.slots)
        while self._waiting and wanted > 0:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                wanted -= 1

    async def idle(self) -> None:
        """Wait until there may be something to do."""
        future: asyncio.Future[None] = self._handler_loop.create_future()
        self._waiting.append(future)
        await future

    async def cancel(self) -> None:
        """Cancel what runs, and wait until it has ended, as long as the caller does."""
        self.stopping = True
        tasks = [slot.task for slot in self.slots if slot.held is not None and slot.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self.flush()

    async def stop(self) -> None:
        """Cancel all tasks."""
        await super().stop()
        tasks = [slot.task for slot in self.slots if slot.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self.flush()
