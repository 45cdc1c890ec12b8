"""What every coordinator does, whatever it coordinates (Kafka's CoordinatorRuntime).

Share groups, consumer groups and transactional ids have rules of their own, in the cores, and a coordinator each that
writes what those decide before anybody is told. What the three do alike is here: all they coordinate in memory, by id;
what is stored and cannot be read; who may make how many of them, and how many bytes they may take; one task that
carries out what is due; and work that goes on to its end when whoever asked for it is gone.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from flowshare.core_errors import StateCorrupt
from flowshare.server.runtime.budget import Makers
from flowshare.server.runtime.waiting import Alarm

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from flowshare.clock import Clock
    from flowshare.server.runtime.budget import StateBudget

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

RETRY_MS: Final = 1_000
"""Pause before what failed is tried again."""


class CoordinatorRuntime(Generic[T]):
    """All things of one kind that a server coordinates. A coordinator has one; `start` and `close` it with its own.

    Invariant: at most one `expire` runs at a time; what `run` and `spawn` were given is over when `close` returns.
    """

    def __init__(
        self, things: str, *, limit: str, clock: Clock, budget: StateBudget, size_of: Callable[[T], int]
    ) -> None:
        """things: what they are called; limit: the setting that says how many there may be.

        budget: bytes of all state; size_of: what one of the things takes of it.
        """
        self.things = things
        self.entries: dict[str, T] = {}
        self._clock = clock
        self._budget = budget
        self.loaded = budget.came
        """Call it when entries were read from the store."""
        self._size_of = size_of
        self._makers = Makers(things, limit)
        self._alarm = Alarm(clock)
        self._jobs: set[asyncio.Task[Any]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        budget.counts(self._held)

    def start(
        self,
        expire: Callable[[int], Awaitable[object]],
        next_ms: Callable[[], int | None],
        *beside: Coroutine[Any, Any, None],
    ) -> None:
        """Begin to carry out what is due.

        expire: does that, and is told how late it is: for so long this process stood still. next_ms: when something is
        due next. beside: run until `close`, too.
        """
        watch = self._watch(expire, next_ms)
        self._tasks = [asyncio.create_task(work, name=self.things) for work in (watch, *beside)]

    async def close(self, give_up: Callable[[], object] = lambda: None) -> None:
        """Stop watching, and wait for what is under way. give_up: ends what would not end by itself."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        while self._jobs:  # one may begin another
            give_up()
            await asyncio.wait(list(self._jobs))

    # --- what there is --------------------------------------------------------------------------------------------

    def make(self, name: str, make: Callable[[], T], party: str | None, count_max: int) -> T:
        """Add a thing that is not there yet. party: who makes it, None: the server's own process.

        Raises: Refused (there are too many).
        """
        self._makers.check(party, self.entries, len(self.entries), count_max)
        made = self.entries[name] = make()
        self._makers.add(party, name, self.entries, count_max)
        return made

    def take(self, party: str | None, size: int) -> None:
        """The things are about to take so many bytes more, for a request of the party. Raises: Refused."""
        self._budget.take(party, size, self._clock.monotonic())

    def _held(self) -> Iterable[tuple[str | None, int]]:
        """Of each who made it and how many bytes it takes."""
        for name, entry in self.entries.items():
            yield self._makers.maker_of(name), self._size_of(entry)

    # --- work -----------------------------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, R]) -> asyncio.Future[R]:
        """Run `work` to its end even if whoever asked goes away meanwhile: memory must follow what was stored."""
        return asyncio.shield(self.spawn(work))

    def spawn(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """Run `work`, which `close` waits for."""
        task = asyncio.create_task(work)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        return task

    # --- time -----------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Look at once what is due."""
        self._alarm.ring()

    def expect(self, due_ms: int | None) -> None:
        """Something may be due then; None: nothing."""
        if due_ms is not None and (self._alarm.due_ms is None or due_ms < self._alarm.due_ms):
            self._alarm.ring()

    async def _watch(self, expire: Callable[[int], Awaitable[object]], next_ms: Callable[[], int | None]) -> None:
        late_ms = 0
        while True:
            try:
                await expire(late_ms)
            except Exception:
                logger.exception("what is due of the %s failed, going on", self.things)
                await self._clock.sleep(RETRY_MS / 1000)
            due_ms = next_ms()
            await self._alarm.sleep_until(due_ms)
            late_ms = 0 if due_ms is None else self._clock.steady_ms() - due_ms


class Damage:
    """What is stored and cannot be read, by the group it belongs to: it is refused, and left as it is.

    A group that was left out instead would be made anew by the next member that joins, over the bytes that a backup or
    a later version could still make sense of. Only deleting such a group on purpose removes them.
    """

    def __init__(self) -> None:
        self._found: dict[str, dict[bytes, str]] = {}

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._found

    def add(self, group_id: str, key: bytes, reason: str) -> None:
        """Remember that the entry under `key` cannot be read."""
        self._found.setdefault(group_id, {})[key] = reason
        logger.error("group is refused, what is stored of it cannot be read: %s group=%s", reason, group_id)

    def check(self, group_id: str) -> None:
        """Whether a group can be worked with. Raises: StateCorrupt."""
        found = self._found.get(group_id)
        if found:
            raise StateCorrupt(
                f"group {group_id!r} is refused, what is stored of it cannot be read ({'; '.join(found.values())}); "
                "nothing of it was changed. Restore a backup, use another group id, or give the group up with its "
                f"offsets and settings: flowshare groups delete {group_id}"
            )

    def keys(self, group_id: str) -> tuple[bytes, ...]:
        """Store keys of what is stored of a group and cannot be read; deleted when the group is given up."""
        return tuple(self._found.get(group_id, ()))

    def forget(self, group_id: str) -> None:
        """The group's entries are deleted."""
        self._found.pop(group_id, None)


def group_id_of(key: bytes, prefix: bytes) -> str | None:
    """The group id behind `prefix` in a store key; None, with a log line, when it is no text."""
    try:
        return key[len(prefix) :].decode()
    except UnicodeDecodeError:
        logger.error("an entry of the store is left out, its group id is no text: %r", key)  # noqa: TRY400
        return None
