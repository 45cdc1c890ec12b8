"""The transaction coordinator: all transactional ids, written when they change, and the ends of their transactions.

The rules are in `transactions.coordinator`. Here: one step of an id at a time; a decided end is durable before its
first marker is written, and carried out until everything is written, by tries a second apart if the disk refuses, and
after a restart too. Transactions past their timeout are aborted, unused ids are forgotten.

`Settle` ends a transaction at consumer groups: the offsets that the transaction committed count from then on, or never
did.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from flowshare.clock import ahead_ms
from flowshare.core_errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    InvalidTxnState,
    TransactionalIdNotFound,
    TransactionStateCorrupt,
)
from flowshare.log.base import LogError, ProducerRefused, UnknownTopic
from flowshare.protocol.headers import frames
from flowshare.server.runtime.coordinator import LATE_MS, PUT_OFF_MS, CoordinatorRuntime
from flowshare.server.runtime.failures import EXPECTED
from flowshare.transactions import coordinator
from flowshare.transactions.coordinator import AskingProducer, TransactionConfig
from flowshare.transactions.stored import decode_transaction, encode_transaction
from flowshare.transactions.transaction import NO_PRODUCER_ID, Transaction, TransactionState

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.log.base import Admission, StateStore
    from flowshare.log.storage import BrokerStorage
    from flowshare.protocol.messages import ProduceRequest
    from flowshare.server.runtime.budget import StateBudget


logger = logging.getLogger(__name__)

PREFIX: Final = b"tx/"
PRODUCER_IDS: Final = b"ti/producer-ids"
BLOCK: Final = 1_000
"""Producer ids of one write; the rest of a block at the end of the process is never used."""
RETRY_S: Final = 1.0
"""Seconds between two tries to write an end."""
FINISH_WAIT_S: Final = 5.0
"""Seconds that an answer waits for a decided end to be carried out. It is carried out all the same."""
MARKED_AT_ONCE: Final = 100
"""Partitions whose markers are begun in one round of the loop, some milliseconds' work."""

Settle = Callable[[Iterable[str], int, int, bool], Awaitable[None]]
"""Called with (group ids, producer id, its epoch, committed) to end a transaction's offsets of groups: they count, or
are forgotten. May be called again. Raises one of `EXPECTED`: try again."""


class ProducerIds:
    """Producer ids: never the same twice, even after a crash. Blocks are taken durably, then given out from memory."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._next: int = 0
        self._end: int = 0
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Go on behind the last taken block. Raises: LogError."""
        for _, value in await self._store.scan(PRODUCER_IDS):
            self._next = self._end = int.from_bytes(value)

    async def take(self) -> int:
        """Return an id that was never given out. Raises: CoordinatorNotAvailable (nothing could be written)."""
        async with self._turn:
            if self._next == self._end:
                end = self._end + BLOCK
                try:
                    await self._store.write([(PRODUCER_IDS, end.to_bytes(8))])
                except LogError as error:
                    raise CoordinatorNotAvailable(f"producer ids could not be written: {error}") from error
                self._end = end
            self._next += 1
            return self._next - 1


@dataclass(slots=True)
class _TransactionEntry:
    """One transactional id. `transaction` None: the id is just being made."""

    transaction: Transaction | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    finishing: asyncio.Task[None] | None = None
    unreadable: bool = False
    making: int = 0
    """Number of requests under way that may store the first state of the id."""

    @property
    def size(self) -> int:
        """Bytes of the id's open transaction."""
        return 0 if self.transaction is None else self.transaction.size


class TransactionCoordinator:
    """All transactional ids of a server."""

    def __init__(
        self, *, storage: BrokerStorage, clock: Clock, config: TransactionConfig, settle: Settle, budget: StateBudget
    ) -> None:
        """budget: bytes of all state; open transactions' bytes are counted there."""
        self._storage = storage
        self._clock = clock
        self._config = config
        self._settle = settle
        self._ids = ProducerIds(storage)
        self._runtime = CoordinatorRuntime[_TransactionEntry](
            "transactional ids", limit="transactional.id.max", clock=clock, budget=budget, size_of=lambda one: one.size
        )
        self._entries = self._runtime.entries
        self._put_off_to_ms = 0
        """The time before which no open transaction is aborted for its age."""
        storage.producer_expiry_ms = config.producer_expiration_ms

    async def start(self) -> None:
        """Read all ids; carry out decided ends, and abort transactions past their timeout. Raises: LogError."""
        await self._ids.start()
        self._runtime.loaded()
        for key, value in await self._storage.scan(PREFIX):
            transactional_id = key[len(PREFIX) :].decode(errors="replace")
            entry = self._entries[transactional_id] = _TransactionEntry()
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
        self._runtime.start(self._expire, self._next_ms)

    async def close(self) -> None:
        """Stop after the step under way. Unfinished ends go on at the next start."""
        await self._runtime.close(self._stop_finishing)

    def _stop_finishing(self) -> None:
        for entry in self._entries.values():
            if entry.finishing is not None:
                entry.finishing.cancel()

    # --- requests of clients --------------------------------------------------------------------------------------

    async def new_producer(self) -> AskingProducer:
        """Return a new idempotent producer without transactions. Raises: CoordinatorNotAvailable."""
        return AskingProducer(await self._ids.take(), 0)

    async def init(
        self, transactional_id: str, timeout_ms: int, asker: AskingProducer, party: str | None = None
    ) -> AskingProducer:
        """Return the id's producer with a fresh epoch; an open transaction is aborted first.

        party: the maker of the id; None: the server's own process.

        Raises: CoreError (CoordinatorNotAvailable: nothing could be written), Refused (too many).
        """
        coordinator.check_init(transactional_id, timeout_ms, asker, timeout_max_ms=self._config.timeout_max_ms)
        entry = self._entries.get(transactional_id)
        if entry is None:
            entry = self._runtime.make(transactional_id, _TransactionEntry, party, self._config.ids_max)
        entry.making += 1  # at once: an entry that nobody makes may be dropped before the task begins
        return await self._runtime.run(self._init(entry, transactional_id, timeout_ms, asker))

    async def add(
        self,
        transactional_id: str,
        asker: AskingProducer,
        *,
        partitions: Iterable[tuple[str, int]] = (),
        groups: Iterable[str] = (),
        party: str | None = None,
    ) -> None:
        """Add partitions and groups to the transaction, which begins with the first of them.

        party: the sender; None: the server's own process.

        Raises: CoreError, Refused (they would take too many bytes).
        """
        added, of = frozenset(partitions), frozenset(groups)

        def step(known: Transaction | None) -> Transaction:
            grown = coordinator.add(known, asker, partitions=added, groups=of, now_ms=self._clock.steady_ms())
            if grown is not known:
                self._runtime.take(party, grown.size - (0 if known is None else known.size))
            return grown

        await self._runtime.run(self._step(self._find(transactional_id), step))

    async def end(self, transactional_id: str, asker: AskingProducer, *, committed: bool) -> None:
        """Commit or abort; returns when that is durable and, within `FINISH_WAIT_S`, carried out. Raises: CoreError."""

        def step(known: Transaction | None) -> Transaction:
            return coordinator.end(known, asker, committed=committed, now_ms=self._clock.steady_ms())

        entry = self._find(transactional_id)
        await self._runtime.run(self._step(entry, step))
        await self._finished(entry)

    def admission(self, request: ProduceRequest) -> Admission | None:
        """Return the check that the log makes before it accepts the batch; None for a producer without transactions."""
        transactional_id = request.transactional_id
        if transactional_id is None:
            return None

        def admit() -> None:
            header = next(frames(request.records))
            if not header.is_transactional:
                raise InvalidTxnState(f"transactional id {transactional_id!r} sent a batch outside a transaction")
            asker = AskingProducer(header.producer_id, header.producer_epoch)
            known = self._find(transactional_id).transaction
            coordinator.check_write(known, asker, (request.topic, request.partition))

        return admit

    def check_offsets(self, transactional_id: str, producer_id: int, epoch: int, group_id: str) -> None:
        """Check that offsets of the group may be committed in the transaction now. Raises: CoreError."""
        known = self._find(transactional_id).transaction
        coordinator.check_offsets(known, AskingProducer(producer_id, epoch), group_id)

    def get(self, transactional_id: str) -> Transaction:
        """Return the transaction of the id. Raises: TransactionalIdNotFound, TransactionStateCorrupt."""
        transaction = self._find(transactional_id).transaction
        if transaction is None:
            raise TransactionalIdNotFound(f"there is no transactional id {transactional_id!r}")
        return transaction

    def all(self) -> list[Transaction]:
        """Return all known transactions."""
        return [entry.transaction for entry in self._entries.values() if entry.transaction is not None]

    def open_in_groups(self) -> frozenset[tuple[int, str]] | None:
        """Return producer and group id of every group that a transaction, open or being ended, may have offsets in;
        None: that is not known, as a transactional id cannot be read."""
        if any(entry.unreadable for entry in self._entries.values()):
            return None
        return frozenset((one.producer_id, group_id) for one in self.all() for group_id in one.groups)

    # --- steps ----------------------------------------------------------------------------------------------------

    def _find(self, transactional_id: str) -> _TransactionEntry:
        entry = self._entries.get(transactional_id)
        if entry is None:
            return _TransactionEntry()  # the core refuses it
        if entry.unreadable:
            raise TransactionStateCorrupt(f"what is stored of transactional id {transactional_id!r} cannot be read")
        return entry

    async def _init(
        self, entry: _TransactionEntry, transactional_id: str, timeout_ms: int, asker: AskingProducer
    ) -> AskingProducer:
        """Make the first state of the id, or its next epoch. The caller has counted this call in `entry.making`."""
        try:
            self._find(transactional_id)
            made = await self._init_step(entry, transactional_id, timeout_ms, asker)
            if made.state.prepared:
                await self._finished(entry)
                made = await self._init_step(entry, transactional_id, timeout_ms, asker)
        finally:
            entry.making -= 1
            self._drop_if_void(transactional_id, entry)
        if made.state.prepared:
            raise ConcurrentTransactions(f"transactional id {transactional_id!r}: its last transaction is being ended")
        return AskingProducer(made.producer_id, made.epoch)

    async def _init_step(
        self, entry: _TransactionEntry, transactional_id: str, timeout_ms: int, asker: AskingProducer
    ) -> Transaction:
        async with entry.turn:
            await self._finished(entry)
            # In the turn: another request, or the id's expiry, may have been the last to change it.
            new_id = await self._ids.take() if coordinator.wants_new_id(entry.transaction) else NO_PRODUCER_ID
            now_ms = self._clock.steady_ms()
            known = entry.transaction
            after = coordinator.init(known, transactional_id, timeout_ms, asker, new_id=new_id, now_ms=now_ms)
            await self._keep(entry, after)
            return after

    def _drop_if_void(self, transactional_id: str, entry: _TransactionEntry) -> None:
        if entry.transaction is None and not entry.making and not entry.unreadable:
            self._entries.pop(transactional_id, None)

    async def _step(self, entry: _TransactionEntry, decide: Callable[[Transaction | None], Transaction]) -> Transaction:
        """Decide a step, make its result durable, and keep it. Waits for the end of the last transaction, within
        bounds."""
        async with entry.turn:
            await self._finished(entry)
            after = decide(entry.transaction)
            await self._keep(entry, after)
            return after

    async def _keep(self, entry: _TransactionEntry, after: Transaction) -> None:
        """Make a step's result durable, in the turn. Raises: CoordinatorNotAvailable: nothing has happened, or it is in
        doubt; the client asks again, and each step may be repeated."""
        known = entry.transaction
        if after is known:
            return
        try:
            await self._save(entry, after)
        except LogError as error:
            raise CoordinatorNotAvailable(
                f"the state of transactional id {after.transactional_id!r} could not be written: {error}"
            ) from error
        if after.state.prepared:
            self._begin_to_finish(entry)
        elif known is None or known.deadline_ms != after.deadline_ms:
            self._runtime.expect(self._due_ms(after))

    async def _save(self, entry: _TransactionEntry, after: Transaction) -> None:
        stored = encode_transaction(after.shifted(ahead_ms(self._clock)))
        await self._storage.write([(PREFIX + after.transactional_id.encode(), stored)])
        entry.transaction = after

    # --- ends -----------------------------------------------------------------------------------------------------

    def _begin_to_finish(self, entry: _TransactionEntry) -> None:
        entry.finishing = self._runtime.spawn(self._finish(entry))

    async def _finished(self, entry: _TransactionEntry) -> None:
        """Wait until a decided end is carried out, at most `FINISH_WAIT_S`."""
        if entry.finishing is not None and not entry.finishing.done():
            try:
                await self._clock.wait_for(asyncio.wait([entry.finishing]), FINISH_WAIT_S)
            except TimeoutError:
                logger.warning("the end of a transaction is not carried out yet")

    async def _finish(self, entry: _TransactionEntry) -> None:
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

    async def _carry_out(self, entry: _TransactionEntry, ended: Transaction, left: set[tuple[str, int]]) -> None:
        """Try once to carry out an end; `left`: partitions without a marker. Raises: the first error."""
        committed = ended.state is TransactionState.PREPARE_COMMIT
        places = iter(sorted(left))
        errors: list[BaseException] = []
        while some := tuple(islice(places, MARKED_AT_ONCE)):
            marks = (self._mark(ended, place, left, committed=committed) for place in some)
            tried = await asyncio.gather(*marks, return_exceptions=True)  # all, so that none is written twice
            errors += (error for error in tried if error is not None)
        if errors:
            raise errors[0]
        await self._settle(sorted(ended.groups), ended.producer_id, ended.epoch, committed)
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
        return None if transaction.deadline_ms is None else max(transaction.deadline_ms, self._put_off_to_ms)

    def _next_ms(self) -> int | None:
        return min((due_ms for one in self.all() if (due_ms := self._due_ms(one)) is not None), default=None)

    async def _expire(self, late_ms: int = 0) -> None:
        """Abort transactions open for too long, forget unused ids. Raises: LogError.

        late_ms: time this process stood still: a transaction's end may wait to be read.
        """
        now_ms = self._clock.steady_ms()
        if late_ms > LATE_MS:
            self._put_off_to_ms = now_ms + PUT_OFF_MS
        for one in self.all():
            due_ms = self._due_ms(one)
            if due_ms is not None and due_ms <= now_ms:
                await self._runtime.run(self._expire_one(one))

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
            elif seen.state is TransactionState.ONGOING:
                logger.info("a transaction timed out and is aborted: id=%s", seen.transactional_id)
                await self._save(entry, coordinator.fence(seen, now_ms=now_ms))
                self._begin_to_finish(entry)
