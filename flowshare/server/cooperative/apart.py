"""Settles whose outputs lie elsewhere than the state (`log.base.SettlesApart`): outputs first, then the state.

    decided: offsets and keys are reserved (in memory), all that was decided before is durable
      ├──its transaction is committed──→ committed; written until it is durable; answered
      ├──refused, or certainly not written──→ dropped: the records are the member's as before
      └──not known here, and never will be──→ reserved for good: who leads next finds out, before it reads the state
    `slots.prepared` says what a row is, by which the next leader knows of it.

What is reserved is neither committed nor given out, and its keys are granted to nobody, so that no record overtakes
one that may come again. The answer leaves when the state is durable. An update that is followed a second time changes
nothing, as the committed set is a union; one of another E is of a log that was cut, and is left out.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, cast

import orjson

from flowshare.backoff import USUAL
from flowshare.cooperative import stored
from flowshare.cooperative.ranges import merged
from flowshare.core_errors import CoordinatorNotAvailable, CoreError, StateCorrupt
from flowshare.log.base import LogError, Undecided
from flowshare.server.cooperative.store import entries_of, key_of, writes_of
from flowshare.server.runtime.failures import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from flowshare.clock import Clock
    from flowshare.cooperative.decisions import Decision
    from flowshare.cooperative.partition import SettleAnswer
    from flowshare.cooperative.types import CommitEntry
    from flowshare.log.base import CheckedOutput, SettlesApart
    from flowshare.server.cooperative.owner import PartitionOwner
    from flowshare.server.cooperative.writing import GroupWriter
    from flowshare.server.runtime.state import Write

UNKNOWN: Final = "what became of the outputs is not known here any more; ask whoever coordinates the group now"

logger = logging.getLogger(__name__)


class ApartSettles:
    """Those of one partition. run: runs a task to its end, whoever goes away."""

    def __init__(
        self,
        store: SettlesApart,
        owner: PartitionOwner,
        *,
        writer: GroupWriter,
        clock: Clock,
        run: Callable[[Coroutine[object, object, None]], asyncio.Task[None]],
    ) -> None:
        self._store = store
        self._owner = owner
        self._writer = writer
        self._clock = clock
        self._run = run
        self._last = 0
        self._waits: set[asyncio.Task[Sequence[Write]]] = set()
        """For the ends of transactions."""

    def next_number(self) -> int:
        """Under which the next one is reserved."""
        self._last -= 1
        return self._last

    def close(self) -> None:
        """Wait for no end of a transaction any more: who leads next finds out."""
        for waiting in self._waits:
            waiting.cancel()

    async def carry_out(
        self,
        number: int,
        decision: Decision[SettleAnswer],
        entries: Sequence[CommitEntry],
        reset_epoch: int,
        outputs: Sequence[CheckedOutput],
    ) -> None:
        """Returns when it is durable. Raises: OutputRefused, StorageError (nothing is there), NotLed, CoreError."""
        update = orjson.dumps([reset_epoch, merged(pair for entry in entries for pair in entry.ranges)])
        before = self._writer.add(self._owner, decision)
        task = self._run(self._carry(number, before, update, outputs))
        await asyncio.shield(task)

    async def _carry(
        self, number: int, before: asyncio.Future[None] | None, update: bytes, outputs: Sequence[CheckedOutput]
    ) -> None:
        if before is not None:
            await before  # what it rests on is durable; if that fails, nothing is reserved any more
        settling = self._store.settle_apart(self._owner.prefix, update, (), outputs)
        waiting = asyncio.ensure_future(settling)
        self._waits.add(waiting)
        waiting.add_done_callback(self._waits.discard)
        try:
            if self._owner.closed:
                waiting.cancel()
            following = await waiting
        except asyncio.CancelledError:
            raise Undecided(UNKNOWN) from None
        except Undecided:
            raise
        except LogError:
            await self._end(number, committed=False)
            raise
        if not await self._end(number, committed=True, beside=following):
            raise CoordinatorNotAvailable(UNKNOWN)

    async def _end(self, number: int, *, committed: bool, beside: Sequence[Write] = ()) -> bool:
        """Have the state say it, however often what it is written with fails; False: the partition was closed."""
        failures = 0
        while not self._owner.closed:
            try:
                written = self._owner.settled_apart(number, committed=committed, beside=beside)
                if written is not None:
                    await written
            except (CoreError, LogError, Refused) as error:
                failures += 1
                logger.info("the end of a settle is written again: %s: %s", self._owner.key, error)
                await self._clock.sleep(USUAL.after(failures))
            else:
                return True
        return False


def following_writes(entries: Sequence[tuple[bytes, bytes]], updates: Iterable[bytes]) -> list[Write]:
    """The writes by which a partition's state, which is `entries`, follows settles. Raises: StateCorrupt."""
    if not entries:
        return []
    prefix = key_of(entries[0][0]).prefix
    loaded = stored.load(entries_of(prefix, entries).entries, now_ms=0)
    if loaded is None:
        return []
    offsets, attempts = loaded.state.offsets, loaded.state.attempts
    begun, writes = attempts.state, dict[bytes, bytes | None](writes_of(prefix, loaded.repair))
    for update in updates:
        reset_epoch, ranges = _read(update)
        if reset_epoch == offsets.reset_epoch:
            writes.update(writes_of(prefix, offsets.commit(ranges, bounded=False).mutations))
            attempts.shrink(offsets, ranges)
    attempts.forget(offsets.stable)
    writes.update(writes_of(prefix, attempts.changed_since(begun)))
    return list(writes.items())


def _read(update: bytes) -> tuple[int, list[tuple[int, int]]]:
    try:
        reset_epoch, rows = cast("tuple[int, list[list[int]]]", orjson.loads(update))
        return int(reset_epoch), [(int(first), int(end)) for first, end in rows]
    except (ValueError, TypeError) as error:
        raise StateCorrupt(f"what was settled of a cooperative group cannot be read: {error!r}") from error
