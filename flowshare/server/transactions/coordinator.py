"""The transaction coordinator: all transactional ids, written when they change, and the ends of their transactions.

The rules are in `transactions.coordinator`. Here: one step of an id at a time; a decided end is durable before its
first marker is written, and carried out until everything is written, by tries a second apart if the disk refuses, and
after a restart too. Transactions whose time is over are aborted, ids that nobody uses are forgotten.

What an end needs of consumer groups is `Settle`: their offsets that the transaction committed count from then on, or
never did.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from flowshare.clock import ahead_ms
from flowshare.log.base import ProducerRefused, UnknownTopic
from flowshare.protocol.headers import frames
from flowshare.server.alarm import Alarm
from flowshare.server.budget import Makers
from flowshare.server.failures import EXPECTED
from flowshare.server.producer_ids import ProducerIds
from flowshare.transactions import coordinator
from flowshare.transactions.coordinator import Asker
from flowshare.transactions.errors import (
    ConcurrentTransactions,
    InvalidTxnState,
    TransactionalIdNotFound,
    TransactionStateCorrupt,
)
from flowshare.transactions.stored import decode_transaction, encode_transaction
from flowshare.transactions.transaction import State, Transaction

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.log.base import Admission, Storage
    from flowshare.protocol.messages import ProduceRequest
    from flowshare.server.budget import StateBudget
    from flowshare.transactions.config import TransactionConfig

logger = logging.getLogger(__name__)

T = TypeVar("T")
PREFIX: Final = b"tx/"
RETRY_S: Final = 1.0
"""Pause between two tries to write what an end needs."""
FINISH_WAIT_S: Final = 5.0
"""How long an answer waits for a decided end to be carried out. It is carried out all the same."""


MARKED_AT_ONCE: Final = 100
"""Partitions whose markers are begun in one round of the loop, some milliseconds' work."""


class Settle(Protocol):
    """Ends what a transaction did to groups' offsets; may be asked again. Raises one of `EXPECTED`: try again."""

    def __call__(
        self, group_ids: Iterable[str], producer_id: int, producer_epoch: int, *, committed: bool
    ) -> Awaitable[None]:
        """Let the offsets count, or forget them."""
        ...


@dataclass(slots=True)
class _Entry:
    """One transactional id. `transaction` None: it is just being made."""

    transaction: Transaction | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    finishing: asyncio.Task[None] | None = None
    unreadable: bool = False
    making: int = 0
    """Requests under way that may store the first state of the id."""


class Transactions:
    """All transactional ids of a server."""

    def __init__(
        self, *, storage: Storage, clock: Clock, config: TransactionConfig, settle: Settle, budget: StateBudget
    ) -> None:
        """budget: bytes of all state; what open transactions hold is counted there."""
        self._storage = storage
        self._clock = clock
        self._config = config
        self._settle = settle
        self._makers = Makers("transactional ids", "transactional.id.max")
        self._budget = budget
        budget.counts(self._held)
        self._ids = ProducerIds(storage)
        self._entries: dict[str, _Entry] = {}
        self._alarm = Alarm(clock)
        self._jobs: set[asyncio.Task[Any]] = set()
        self._watcher: asyncio.Task[None] | None = None
        storage.producer_expiry_ms = config.producer_expiration_ms

    async def start(self) -> None:
        """Read all ids; decided ends are carried out, and transactions whose time is over aborted. Raises: LogError."""
        await self._ids.start()
        self._budget.came()
        for key, value in await self._storage.scan(PREFIX):
            transactional_id = key[len(PREFIX) :].decode(errors="replace")
            entry = self._entries[transactional_id] = _Entry()
            try:
                stored = decode_transaction(transactional_id, value)
                now_ms = self._clock.steady_ms()
                entry.transaction = stored.shifted(-ahead_ms(self._clock), until_ms=now_ms)
            except TransactionStateCorrupt:
                entry.unreadable = True
                logger.exception("a transactional id is left as it is and refused")
                continue
            if entry.transaction.state.prepared:
                self._begin_to_finish(entry)
        self._watcher = asyncio.get_running_loop().create_task(self._watch(), name="transactions")

    async def close(self) -> None:
        """Stop; a step under way ends first. What is not finished goes on at the next start."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait([self._watcher])
        while self._jobs:  # a step may end with an end to carry out
            for entry in self._entries.values():
                if entry.finishing is not None:
                    entry.finishing.cancel()
            await asyncio.wait(list(self._jobs))

    # --- what clients ask for -------------------------------------------------------------------------------------

    async def new_producer(self) -> Asker:
        """An idempotent producer without transactions. Raises: StorageError."""
        return Asker(await self._ids.take(), 0)

    async def init(self, transactional_id: str, timeout_ms: int, asker: Asker, party: str | None = None) -> Asker:
        """The id's producer with a fresh epoch; an open transaction is aborted first.

        party: who makes the id, None: the server's own process.

        Raises: TransactionError, StorageError, Refused (too many).
        """
        coordinator.check_init(transactional_id, timeout_ms, asker, timeout_max_ms=self._config.timeout_max_ms)
        entry = self._entries.get(transactional_id)
        if entry is None:
            ids_max = self._config.ids_max
            self._makers.check(party, self._entries, len(self._entries), ids_max)
            entry = self._entries[transactional_id] = _Entry()
            self._makers.add(party, transactional_id, self._entries, ids_max)
        return await self._run(self._init(entry, transactional_id, timeout_ms, asker))

    async def add(
        self,
        transactional_id: str,
        asker: Asker,
        *,
        partitions: Iterable[tuple[str, int]] = (),
        groups: Iterable[str] = (),
        party: str | None = None,
    ) -> None:
        """Take partitions and groups into the transaction, which begins with the first of them.

        party: who asks, None: the server's own process.

        Raises: TransactionError, StorageError, Refused (they would take too many bytes).
        """
        added, of = frozenset(partitions), frozenset(groups)

        def step(known: Transaction | None) -> Transaction:
            grown = coordinator.add(known, asker, partitions=added, groups=of, now_ms=self._clock.steady_ms())
            if grown is not known:
                size = grown.size - (0 if known is None else known.size)
                self._budget.take(party, size, self._clock.monotonic())
            return grown

        await self._run(self._step(self._find(transactional_id), step))

    async def end(self, transactional_id: str, asker: Asker, *, committed: bool) -> None:
        """Commit or abort; returns when that is durable and, within `FINISH_WAIT_S`, carried out.

        Raises: TransactionError, StorageError.
        """

        def step(known: Transaction | None) -> Transaction:
            return coordinator.end(known, asker, committed=committed, now_ms=self._clock.steady_ms())

        entry = self._find(transactional_id)
        await self._run(self._step(entry, step))
        await self._finished(entry)

    def admission(self, request: ProduceRequest) -> Admission | None:
        """What the log is to ask before it takes the batch; None for a producer without transactions."""
        transactional_id = request.transactional_id
        if transactional_id is None:
            return None

        def admit() -> None:
            header = next(frames(request.records))
            if not header.is_transactional:
                raise InvalidTxnState(f"transactional id {transactional_id!r} sent a batch outside a transaction")
            asker = Asker(header.producer_id, header.producer_epoch)
            known = self._find(transactional_id).transaction
            coordinator.check_write(known, asker, (request.topic, request.partition))

        return admit

    def check_offsets(self, transactional_id: str, producer_id: int, epoch: int, group_id: str) -> None:
        """Whether offsets of the group may be committed in the transaction now. Raises: TransactionError."""
        known = self._find(transactional_id).transaction
        coordinator.check_offsets(known, Asker(producer_id, epoch), group_id)

    def get(self, transactional_id: str) -> Transaction:
        """What is known of the id. Raises: TransactionalIdNotFound, TransactionStateCorrupt."""
        transaction = self._find(transactional_id).transaction
        if transaction is None:
            raise TransactionalIdNotFound(f"there is no transactional id {transactional_id!r}")
        return transaction

    def all(self) -> list[Transaction]:
        """Everything that is known."""
        return [entry.transaction for entry in self._entries.values() if entry.transaction is not None]

    def _held(self) -> Iterable[tuple[str | None, int]]:
        """Of each transactional id who made it and how many bytes its open transaction takes."""
        for one in self.all():
            yield self._makers.maker_of(one.transactional_id), one.size

    # --- steps ----------------------------------------------------------------------------------------------------

    def _find(self, transactional_id: str) -> _Entry:
        entry = self._entries.get(transactional_id)
        if entry is None:
            return _Entry()  # the core refuses it
        if entry.unreadable:
            raise TransactionStateCorrupt(f"what is stored of transactional id {transactional_id!r} cannot be read")
        return entry

    async def _init(self, entry: _Entry, transactional_id: str, timeout_ms: int, asker: Asker) -> Asker:
        def step(known: Transaction | None) -> Transaction:
            now_ms = self._clock.steady_ms()
            return coordinator.init(known, transactional_id, timeout_ms, asker, new_id=new_id, now_ms=now_ms)

        entry.making += 1
        try:
            self._find(transactional_id)
            new_id = await self._ids.take() if coordinator.wants_new_id(entry.transaction) else -1
            made = await self._step(entry, step)
            if made.state.prepared:
                await self._finished(entry)
                made = await self._step(entry, step)
        finally:
            entry.making -= 1
            self._drop_if_void(transactional_id, entry)
        if made.state.prepared:
            raise ConcurrentTransactions(f"transactional id {transactional_id!r}: its last transaction is being ended")
        return Asker(made.producer_id, made.epoch)

    def _drop_if_void(self, transactional_id: str, entry: _Entry) -> None:
        if entry.transaction is None and not entry.making and not entry.unreadable:
            self._entries.pop(transactional_id, None)

    async def _step(self, entry: _Entry, decide: Callable[[Transaction | None], Transaction]) -> Transaction:
        """Decide, make durable, hold. Waits for the end of the last transaction, within bounds."""
        async with entry.turn:
            await self._finished(entry)
            known = entry.transaction
            after = decide(known)
            if after is not known:
                await self._save(entry, after)
                if after.state.prepared:
                    self._begin_to_finish(entry)
                elif known is None or known.deadline_ms != after.deadline_ms:
                    self._expect(after)
            return after

    async def _save(self, entry: _Entry, after: Transaction) -> None:
        stored = encode_transaction(after.shifted(ahead_ms(self._clock)))
        await self._storage.write([(PREFIX + after.transactional_id.encode(), stored)])
        entry.transaction = after

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """To its end, even if whoever asked goes away meanwhile: memory must follow what was stored."""
        task = asyncio.get_running_loop().create_task(work)
        self._jobs.add(task)
        task.add_done_callback(self._ran)
        return await asyncio.shield(task)

    def _ran(self, task: asyncio.Task[Any]) -> None:
        self._jobs.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked may have gone

    # --- ends -----------------------------------------------------------------------------------------------------

    def _begin_to_finish(self, entry: _Entry) -> None:
        entry.finishing = task = asyncio.get_running_loop().create_task(self._finish(entry))
        self._jobs.add(task)
        task.add_done_callback(self._ran)

    async def _finished(self, entry: _Entry) -> None:
        """Wait until a decided end is carried out, at most `FINISH_WAIT_S`."""
        if entry.finishing is not None and not entry.finishing.done():
            try:
                await self._clock.wait_for(asyncio.wait([entry.finishing]), FINISH_WAIT_S)
            except TimeoutError:
                logger.warning("the end of a transaction is not carried out yet")

    async def _finish(self, entry: _Entry) -> None:
        ended = entry.transaction
        assert ended is not None
        left = set(ended.partitions)
        while True:
            try:
                await self._carry_out(entry, ended, left)
            except EXPECTED as error:
                logger.warning("a transaction's end is tried again: id=%s %s", ended.transactional_id, error)
            except Exception:
                # Given up, it would hold back its partitions' readers until the next restart.
                logger.exception("a transaction's end failed and is tried again: id=%s", ended.transactional_id)
            else:
                return
            await self._clock.sleep(RETRY_S)

    async def _carry_out(self, entry: _Entry, ended: Transaction, left: set[tuple[str, int]]) -> None:
        """One try; `left`: partitions without a marker. Raises: whatever was in the way first."""
        committed = ended.state is State.PREPARE_COMMIT
        places = iter(sorted(left))
        errors: list[BaseException] = []
        while some := tuple(islice(places, MARKED_AT_ONCE)):
            marks = (self._mark(ended, place, left, committed=committed) for place in some)
            tried = await asyncio.gather(*marks, return_exceptions=True)  # all, so that none is written twice
            errors += (error for error in tried if error is not None)
        if errors:
            raise errors[0]
        await self._settle(sorted(ended.groups), ended.producer_id, ended.epoch, committed=committed)
        await self._save(entry, coordinator.complete(ended, now_ms=self._clock.steady_ms()))

    async def _mark(
        self, ended: Transaction, place: tuple[str, int], left: set[tuple[str, int]], *, committed: bool
    ) -> None:
        try:
            await self._storage.append_control(*place, ended.producer_id, ended.epoch, committed=committed)
        except UnknownTopic:
            logger.info("a transaction ends in a topic that is gone: %s-%s", *place)
        except ProducerRefused as error:
            # A later producer of the id has written there: the transaction has an end there already.
            logger.warning("a marker is not wanted any more: %s-%s %s", *place, error)
        left.discard(place)

    # --- time -----------------------------------------------------------------------------------------------------

    def _due_ms(self, transaction: Transaction) -> int | None:
        if transaction.state.idle:
            return transaction.updated_ms + self._config.id_expiration_ms
        return transaction.deadline_ms

    def _expect(self, transaction: Transaction) -> None:
        due_ms = self._due_ms(transaction)
        if due_ms is not None and (self._alarm.due_ms is None or due_ms < self._alarm.due_ms):
            self._alarm.ring()

    async def _watch(self) -> None:
        while True:
            try:
                await self._expire()
            except Exception:
                logger.exception("a transaction that timed out could not be aborted yet, going on")
                await self._clock.sleep(RETRY_S)
                continue
            due = [due_ms for one in self.all() if (due_ms := self._due_ms(one)) is not None]
            await self._alarm.sleep_until(min(due, default=None))

    async def _expire(self) -> None:
        """Abort what is open for too long, forget what nobody uses. Raises: LogError."""
        now_ms = self._clock.steady_ms()
        for one in self.all():
            due_ms = self._due_ms(one)
            if due_ms is not None and due_ms <= now_ms:
                await self._run(self._expire_one(one))

    async def _expire_one(self, seen: Transaction) -> None:
        entry = self._entries[seen.transactional_id]
        async with entry.turn:
            if entry.transaction is not seen:
                return
            now_ms = self._clock.steady_ms()
            if coordinator.expired(seen, now_ms=now_ms, expiration_ms=self._config.id_expiration_ms):
                await self._storage.write([(PREFIX + seen.transactional_id.encode(), None)])
                entry.transaction = None
                self._drop_if_void(seen.transactional_id, entry)
            elif seen.state is State.ONGOING:
                logger.info("a transaction timed out and is aborted: id=%s", seen.transactional_id)
                await self._save(entry, coordinator.fence(seen, now_ms=now_ms))
                self._begin_to_finish(entry)
