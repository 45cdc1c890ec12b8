"""`Lane`: one transactional id under which a slot's leader writes outputs, and the ledger that counts its transactions.

A lane only carries requests and answers; `slots.prepared` tells what the answers mean for settles, and `lanes` and
`outputs` act on it. A lane is taken over before it is used, and after every outcome that is not as it should be:
InitProducerId shuts out requests still on their way under the old epoch, completes decided transactions and aborts the
others. So no transaction is ever aborted in another way, and none that its leader gave up can be left hanging. Empty
transactions make good the ends that coordinators of Kafka 4.1 and newer forget (`Lane._tell_ends`).

Coordinators and outputs are asked over connections of their own, because a broker answers the requests of one
connection one after another, and an output partition that stands still would keep back how the transaction ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from flowshare.backoff import Backoff
from flowshare.client.errors import ClientError, NotConnected, ServerError, Unsupported, check
from flowshare.client.net.topology import NOBODY as NOT_LED
from flowshare.fleet.state.reading import passes
from flowshare.log.base import (
    CorruptBatches,
    InvalidRecord,
    InvalidTimestamp,
    LogError,
    NotAllowed,
    RecordsTooLarge,
    StorageError,
)
from flowshare.protocol.batches import DecodeError, renumber
from flowshare.protocol.batches import check as check_batches
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionRequest,
    DescribeTransactionResponse,
    EndTxnRequest,
    InitProducerIdRequest,
    MetadataRequest,
    OffsetFetchRequest,
    OffsetToCommit,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from flowshare.protocol.messages.transactions import NOBODY, ProducerIdentity
from flowshare.slots.prepared import LEDGER, LaneBook, LaneNote, Place
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.client.net.routing import ClusterConnection
    from flowshare.clock import Clock
    from flowshare.log.base import Output
    from flowshare.protocol.messages import MetadataResponse, Request

T = TypeVar("T")
REFUSED: Final[Mapping[ErrorCode, type[LogError]]] = {
    ErrorCode.MESSAGE_TOO_LARGE: RecordsTooLarge,
    ErrorCode.RECORD_LIST_TOO_LARGE: RecordsTooLarge,
    ErrorCode.INVALID_RECORD: InvalidRecord,
    ErrorCode.INVALID_TIMESTAMP: InvalidTimestamp,
    ErrorCode.CORRUPT_MESSAGE: CorruptBatches,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: NotAllowed,
}
"""Errors that refuse an output for good."""
NOT_ALLOWED: Final = "the workers' user needs WRITE on topic {topic}; `flowshare check` prints the rules"
FENCED: Final = frozenset(
    {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
)
"""Errors of a fenced lane: another producer of the transactional id came, or its coordinator aborted a transaction that
took too long."""
ABSENT: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
SEQUENCE_MASK: Final = 0x7FFFFFFF
COMMITTED: Final = frozenset({"PrepareCommit", "CompleteCommit"})
"""States of a transactional id whose last transaction is committed, in Kafka's words."""
ABORTED: Final = frozenset({"PrepareEpochFence", "PrepareAbort", "CompleteAbort"})
"""The same states for an aborted last transaction."""
OPEN: Final = "Ongoing"
PREPARED: Final = "Prepare"
"""Prefix of the states in which a decision is being told to the partitions."""
OFFSETS: Final = "__consumer_offsets"
"""The topic of groups' offsets, ledgers included."""
EMPTY: Final = LaneNote()
LANE_PAUSES: Final = Backoff(0.02, 1.0)
SLOW_S: Final = 1.0
"""Time after which a transaction's slow begin means that it waits for the one before, which may not be told
everywhere."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSettings:
    """Settings for writing outputs.

    lanes_max: transactions of one slot at a time. stuck_max: lanes beside them that their coordinators, or partitions,
    keep from being used. joined_max, joined_bytes: settles in one transaction, and bytes of their outputs.
    output_wait_s: how long a partition may take to accept outputs; rest_s: how long it is left alone after that.
    answer_s: how long a coordinator, or the slot's own log, may take to answer. queue_s: how long a settle waits for a
    lane, retries included; decide_s: how long the loader of a share-partition waits for undecided transactions.
    lay_down_s: how long a slot that is given away waits for its transactions. backoff: pauses before a new
    try. transaction_timeout_ms: after that brokers abort an open transaction; low_timeout_ms: used where they refuse
    that time.
    """

    lanes_max: int = 8
    stuck_max: int = 24
    joined_max: int = 64
    joined_bytes: int = 4 << 20
    output_wait_s: float = 2.0
    rest_s: float = 5.0
    answer_s: float = 5.0
    queue_s: float = 10.0
    decide_s: float = 5.0
    lay_down_s: float = 1.0
    backoff: Backoff = LANE_PAUSES
    transaction_timeout_ms: int = 60_000
    low_timeout_ms: int = 10_000


class Piece(NamedTuple):
    """One record batch of an output. settle, output: their positions in the transaction and in the settle; source: the
    output."""

    place: Place
    batch: bytes
    records: int
    settle: int
    output: int
    source: Output


class Blamed(LogError):
    """Error: some outputs keep a transaction from being committed. rest: their partitions that gave no answer."""

    def __init__(self, errors: Mapping[Piece, LogError], *, rest: Collection[Place] = ()) -> None:
        super().__init__("; ".join(dict.fromkeys(str(error) for error in errors.values())))
        self.errors = errors
        self.rest = rest


def pieces_of(output: Output, index: int) -> list[Piece]:
    """Return the batches of an output; a broker takes one at a time. Raises CorruptBatches."""
    try:
        headers = check_batches(output.records)
    except DecodeError as error:
        raise CorruptBatches(str(error)) from error
    place = output.topic, output.partition
    return [
        Piece(place, output.records[one.position : one.position + one.size], one.record_count, 0, index, output)
        for one in headers
    ]


class Lane:
    """One lane of one slot. All methods are called on one event loop, one at a time.

    epoch: of the claim under which the slot is led. connect: opens a connection to the cluster. exists: returns None,
    or the error if an output's topic or partition is gone; True: the brokers are asked anew. keep: writes the lane's
    note to the slot's log; raises StorageError, NotLed. note: the note in the log.
    """

    def __init__(
        self,
        number: int,
        *,
        topic: str,
        slot: int,
        epoch: int,
        connect: Callable[[str], ClusterConnection],
        exists: Callable[[Output, bool], Awaitable[LogError | None]],
        clock: Clock,
        settings: OutputSettings,
        keep: Callable[[LaneNote], Awaitable[None]],
        note: LaneNote = EMPTY,
    ) -> None:
        self.number = number
        self.book = LaneBook(number, epoch)
        self.transactional_id = f"{topic}.{slot}.outputs.{number}"
        self.ledger = f"{topic}.ledger.{number}"
        self._topic = topic
        self._slot = slot
        self._connect = connect
        self._exists = exists
        self._clock = clock
        self._settings = settings
        self.shaken = False
        """True if a broker was lost since the lane was taken over: it may have ended a transaction by halves."""
        self.on_shaken: Callable[[], None] = _nothing
        """Called on such a loss."""
        self._coordinators = self._connected()
        self._brokers = self._connected()
        self._producer: ProducerIdentity = NOBODY
        self._sequences: dict[Place, int] = {}
        self._timeout_ms = settings.transaction_timeout_ms
        self._open_at: int | None = None
        """The ledger's number when an open transaction was found that is to be aborted; None once its producer is
        fenced."""
        self._keep = keep
        self.note = note
        """The places of the lane's last transactions, and how the last one ended."""
        self.waits_for: set[Place] = set()
        """Partitions that keep the lane from being used, as far as known."""

    async def close(self) -> None:
        """End its connections; an open transaction is left to the next one to take the lane over."""
        await self._coordinators.close()
        await self._brokers.close()

    async def hang_up(self) -> None:
        """End its connections for now; they are opened again on need."""
        old, self._coordinators = self._coordinators, self._connected()
        await old.close()
        await self._renew_connection()

    def _connected(self) -> ClusterConnection:
        def lost() -> None:
            self.shaken = True
            self.on_shaken()

        connection = self._connect(self.transactional_id)
        connection.on_lost(lost)
        return connection

    # --- asking -------------------------------------------------------------------------------------------------

    async def _ask(self, request: Request[T]) -> T:
        """Send a request to the coordinator. Raises ServerError, ClientError, OSError (TimeoutError, too)."""
        answer: Any = await self._clock.wait_for(self._coordinators.send(request), self._settings.answer_s)
        check(answer.error, answer.message, f"{type(request).__name__} of {self.transactional_id}")
        return answer  # type: ignore[no-any-return]

    def begin_anew(self) -> None:
        """Forget the producer, because the state of its last transaction is not known any more: `take_over` is next."""
        self._producer = NOBODY
        self._sequences.clear()

    async def take_over(self, *, in_doubt: bool = True) -> int:
        """Shut out older producers of the lane, have their transactions decided, and return the ledger's number.

        in_doubt: True if the number decides an open settle. Called again until it succeeds, it goes on where it was.
        Raises: as `_ask`; StorageError, NotLed.
        """
        try:
            if self._producer == NOBODY:
                self.shaken = False
                self._producer = await self._fence()
            if self.note.committed is not None:
                await self._tell_ends()
            ledger = await self._read_ledger()
            if not in_doubt or self.note != EMPTY:
                return ledger
            await self._write_ledger()
            return await self._clock.wait_for(self._read_when_stable(), self._settings.answer_s)
        except ServerError as error:
            if error.code in FENCED:
                self.begin_anew()
            raise

    async def _fence(self) -> ProducerIdentity:
        """Become the lane's producer; the note tells how its last transaction ended, if there was one."""
        found = await self._describe()
        if self._open_at is not None and found.state in COMMITTED:
            self.note = self.note._replace(
                committed=True
            )  # the commit was on its way when the transaction was found open
        if self.note.committed is not None:
            if found.state == OPEN:
                await self._keep(self.note)  # a failure means a lost slot: the open one is a successor's
                await self._end(committed=self.note.being_ended(_places(found)), producer=found.producer)
        elif found.state == OPEN:
            self._open_at = await self._read_ledger(stable=False)
            self.note = self.note.left_open(_places(found))
        elif self.note != EMPTY and (found.state in COMMITTED or found.state in ABORTED):
            self.note = self.note._replace(committed=found.state in COMMITTED)
        if self.note != EMPTY:
            await self._keep(self.note)
        producer = await self._new_producer()
        if self._open_at is not None and await self._read_ledger(stable=False) != self._open_at:
            # The transaction was committed after all, since the question.
            self.note = self.note._replace(committed=True)
            await self._keep(self.note)
        self._open_at = None
        return producer

    async def _new_producer(self) -> ProducerIdentity:
        try:
            return (await self._ask(self._init())).producer
        except ServerError as error:
            if error.code is not ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise
        self._timeout_ms = self._settings.low_timeout_ms
        return (await self._ask(self._init())).producer

    async def _describe(self) -> DescribeTransactionResponse:
        """Ask the coordinator about the lane's transactional id. An answer without a state: the coordinator does not
        know the id."""
        try:
            found = await self._ask(DescribeTransactionRequest(transactional_id=self.transactional_id))
        except Unsupported:
            return DescribeTransactionResponse()  # brokers before 3.0 tell all partitions
        except (OSError, ClientError) as error:
            if isinstance(error, ServerError) and error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                return DescribeTransactionResponse()
            self.waits_for.clear()  # the coordinator is waited for
            raise
        if found.state.startswith(PREPARED):
            self.waits_for = {place for place in _places(found) if place != LEDGER}
        return found

    def _init(self) -> InitProducerIdRequest:
        return InitProducerIdRequest(transactional_id=self.transactional_id, timeout_ms=self._timeout_ms)

    async def _tell_ends(self) -> None:
        """Tell all partitions of the last transactions, and the ledger's, how those ended.

        Coordinators of Kafka 4.1 and later pass over partitions that have no leader at the moment, such as all of a
        single killed broker, and call the transaction ended: readers of committed records stand still there
        (KAFKA-20734). An empty transaction of the same producer ends the open one there, if they have leaders all the
        time. Where it was ended already it changes nothing.
        """
        leaders = await self._leaders()
        for places, committed in self.note.ends():
            await self._end_empty(places, committed=committed)
        await self._read_ledger()
        if leaders != await self._leaders():
            raise NotConnected("partitions that outputs went to have new leaders")
        await self._keep(EMPTY)
        self.note = EMPTY

    async def _end_empty(self, places: Sequence[Place], *, committed: bool) -> None:
        """Write a transaction that has these partitions, and no records in them."""
        outputs = tuple(place for place in places if place != LEDGER)
        try:
            if outputs:
                await self._add(outputs)
        except ServerError as error:
            if error.code not in ABSENT and error.code not in REFUSED:
                raise
            await self._add_each(outputs)
        if LEDGER in places:
            await self._add_ledger()
        try:
            await self._end(committed=committed)
        except ServerError as error:
            if error.code is not ErrorCode.INVALID_TXN_STATE:  # all partitions are gone: nothing is left to end
                raise
        await self._clock.wait_for(self._carried_out(), self._settings.answer_s)

    async def _add_each(self, places: Iterable[Place]) -> None:
        """Add the partitions that exist and may be written to."""
        for place in places:
            try:
                await self._add((place,))
            except ServerError as error:
                if error.code not in ABSENT and error.code not in REFUSED:
                    raise
                logger.info("%s-%d is not told how its last transaction ended: %s", *place, error)

    async def _carried_out(self) -> None:
        """Wait until the coordinator has told, or passed over, all partitions of the last transaction."""
        tries = 0
        while (await self._describe()).state.startswith(PREPARED):
            tries += 1
            await self._clock.sleep(self._settings.backoff.after(tries))

    async def _leaders(self) -> Mapping[Place, tuple[int, int]]:
        """Return node and epoch of the leaders of all places, as the lane's coordinator knows them. Raises
        NotConnected."""
        places = self.note.places
        topics = tuple(sorted({topic for topic, _ in places}))
        if not topics:
            return {}
        self.waits_for = set()
        asked = self._coordinators.to_coordinator(MetadataRequest(topics=topics), self.transactional_id, "transaction")
        answer: MetadataResponse = await self._clock.wait_for(asked, self._settings.answer_s)
        found = {
            (topic.name, partition): (leader, epoch)
            for topic in answer.topics
            for partition, (leader, epoch) in enumerate(zip_longest(topic.leaders, topic.leader_epochs, fillvalue=-1))
        }
        leaders = {place: found[place] for place in places if place in found}
        if not_led := {place for place, (leader, _) in leaders.items() if leader == NOT_LED}:
            self.waits_for = not_led
            names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(not_led))
            raise NotConnected(f"partitions that outputs went to have no leader: {names}")
        return leaders

    async def _write_ledger(self) -> None:
        """Write a number to the ledger in a transaction that is aborted: the coordinator asked next then leads the
        ledger's group.

        Offsets are read without a write, so a broker that has lost the group without noticing, as one that stood still,
        would answer with old offsets. It can accept no write.
        """
        await self._add_ledger()
        await self._count(0)
        await self._end(committed=False)

    async def _read_when_stable(self) -> int:
        """Return the ledger's number as soon as the ledger has heard of the aborted transaction."""
        tries = 0
        while True:
            try:
                return await self._read_ledger()
            except ServerError as error:
                if error.code is not ErrorCode.UNSTABLE_OFFSET_COMMIT:
                    raise
            tries += 1
            await self._clock.sleep(self._settings.backoff.after(tries))

    async def _read_ledger(self, *, stable: bool = True) -> int:
        """Return the ledger's number; stable: not before all is told to it."""
        where = ((self._topic, self._slot),)
        request = OffsetFetchRequest(group_id=self.ledger, partitions=where, require_stable=stable)
        (found,) = (await self._ask(request)).partitions
        check(found.error, None, f"reading the ledger {self.ledger}")
        return found.offset

    # --- one transaction ----------------------------------------------------------------------------------------

    def will_write(self, pieces: Iterable[Piece]) -> LaneNote:
        """Note that the next transaction consists of these pieces; return the note to write before it is ended."""
        self.note = self.note.begun(piece.place for piece in pieces)
        return self.note

    async def send(self, number: int, pieces: Sequence[Piece]) -> None:
        """Write all parts of a transaction; `end` comes next, or `take_over`.

        Raises: Blamed; as `_ask`: the transaction cannot be committed, for another reason.
        """
        by_place: dict[Place, list[Piece]] = {}
        for piece in pieces:
            by_place.setdefault(piece.place, []).append(piece)
        began_s = self._clock.monotonic()
        await together(*([self._join(by_place)] if by_place else []), self._add_ledger())
        if self.shaken or self._clock.monotonic() - began_s > SLOW_S:
            # The one before, which is committed, may not be told everywhere. Nothing of this one is written: committed
            # as empty as it is, it ends the one before as that ended. Its number is not in the ledger.
            self.shaken = True
            await self._end(committed=True)
            raise NotConnected("a broker was lost that may not have told how the transaction before ended")
        await self._write_places(by_place, self._count(number))

    async def end(self) -> None:
        """Commit. Raises: as `_ask`; then it is unknown if the transaction is committed."""
        await self._end(committed=True)

    async def _end(self, *, committed: bool, producer: ProducerIdentity | None = None) -> None:
        """End the transaction of this producer, or of another one."""
        whose = self._producer if producer is None else producer
        await self._ask(EndTxnRequest(transactional_id=self.transactional_id, producer=whose, committed=committed))

    async def _join(self, by_place: Mapping[Place, Sequence[Piece]]) -> None:
        """Add the partitions that are going to be written to."""
        try:
            await self._add(tuple(by_place))
        except ServerError as error:
            if error.code not in ABSENT and error.code not in REFUSED:
                raise
            await self._join_each(by_place)

    async def _join_each(self, by_place: Mapping[Place, Sequence[Piece]]) -> None:
        """Find the partitions that may not be written to: no answer names them. Raises Blamed."""
        found: dict[Piece, LogError] = {}
        for place, pieces in by_place.items():
            try:
                await self._add((place,))
            except ServerError as error:
                found.update({piece: await self._problem(piece, error) for piece in pieces})
        passing = {piece: problem for piece, problem in found.items() if isinstance(problem, StorageError)}
        refused = {piece: problem for piece, problem in found.items() if piece not in passing}
        if found:
            raise Blamed(refused or passing)

    async def _add(self, places: tuple[Place, ...]) -> None:
        await self._ask(
            AddPartitionsToTxnRequest(
                transactional_id=self.transactional_id, producer=self._producer, partitions=places
            )
        )

    async def _count(self, number: int) -> None:
        """Write the transaction's number to the ledger, to count when it is committed."""
        producer = self._producer
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=self.ledger,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            offsets=(OffsetToCommit(self._topic, self._slot, number),),
        )
        answer = await self._clock.wait_for(self._coordinators.send(request), self._settings.answer_s)
        for result in answer.partitions:
            check(result.error, None, f"committing to the ledger {self.ledger}")

    async def _add_ledger(self) -> None:
        await self._ask(
            AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id, producer=self._producer, group_id=self.ledger
            )
        )

    async def _write_places(self, by_place: Mapping[Place, Sequence[Piece]], count: Awaitable[None]) -> None:
        """Write the outputs of all partitions. Raises: Blamed; ServerError, ClientError, OSError.

        All refused outputs are found before the transaction is given up, since each try costs one transaction.
        """
        errors: dict[Piece, LogError] = {}
        rest: set[Place] = set()
        try:
            writes = [self._write_place(place, some, errors, rest) for place, some in by_place.items()]
            await together(*writes, count)
        except (OSError, ClientError) as error:
            if not errors:
                raise
            logger.info("a transaction is given up, not only for outputs that are refused: %s", error)
        if errors:
            raise Blamed(errors, rest=rest)

    async def _write_place(
        self, place: Place, pieces: Sequence[Piece], errors: dict[Piece, LogError], rest: set[Place]
    ) -> None:
        """Write the outputs of one partition, one batch after another. errors, rest: filled with refused outputs, and
        with the partition if it gives no answer. Raises ServerError, ClientError."""
        refused: dict[Piece, LogError] = {}
        try:
            await self._clock.wait_for(self._write_all(place, pieces, refused), self._settings.output_wait_s)
        except TimeoutError:
            await self._renew_connection()
            if not refused:
                problem = StorageError(
                    f"{place[0]}-{place[1]} took no outputs in for {self._settings.output_wait_s:g} s; it is left "
                    f"alone for {self._settings.rest_s:g} s"
                )
                errors.update(dict.fromkeys(pieces, problem))
                rest.add(place)
        finally:
            errors.update(refused)

    async def _write_all(self, place: Place, pieces: Sequence[Piece], refused: dict[Piece, LogError]) -> None:
        """Write all pieces, refused ones among them or not. refused: filled with the refused pieces."""
        for piece in pieces:
            sequence = self._sequences.get(place, 0)
            producer_id, epoch = self._producer
            batch = renumber(piece.batch, (producer_id, epoch, sequence), transactional=True)
            problem = await self._write(piece, batch)
            if problem is not None:
                refused[piece] = problem
            else:
                self._sequences[place] = (sequence + piece.records) & SEQUENCE_MASK

    async def _write(self, piece: Piece, batch: bytes) -> LogError | None:
        """Write a piece until the broker has it; else return the final problem. Raises: as `_write_place`."""
        topic, partition = piece.place
        tries = 0
        request = ProduceRequest(
            topic=topic, partition=partition, records=batch, transactional_id=self.transactional_id
        )
        while isinstance(problem := await self._written(piece, request), StorageError):
            tries += 1
            await self._clock.sleep(self._settings.backoff.after(tries))
        return problem

    async def _written(self, piece: Piece, request: ProduceRequest) -> LogError | None:
        """Write once; None: the broker has the batch; StorageError: the next try may succeed, after any other error
        none will. Raises: as `_write_place`."""
        where = f"writing to {request.topic}-{request.partition}"
        try:
            answer = await self._brokers.send(request)
            if answer.error is not ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                check(answer.error, answer.message, where)
        except OSError as error:
            logger.info("an output is written again: %s: %s", where, error)
            return StorageError(str(error))
        except ServerError as error:
            problem = await self._problem(piece, error)
            if isinstance(problem, StorageError) and not passes(error):
                raise
            return problem
        return None

    async def _problem(self, piece: Piece, error: ServerError) -> LogError:
        """Return the meaning of a partition's error for its outputs: final, unless it is a StorageError."""
        if error.code in ABSENT:
            return await self._exists(piece.source, True) or StorageError(str(error))
        if error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return NotAllowed(NOT_ALLOWED.format(topic=piece.place[0]))
        return REFUSED.get(error.code, StorageError)(str(error))

    async def _renew_connection(self) -> None:
        """Open a new connection to the brokers, so that requests that hang on the old one hold up nothing else."""
        old, self._brokers = self._brokers, self._connected()
        await old.close()


def _places(found: DescribeTransactionResponse) -> list[Place]:
    """Return the partitions of an open transaction."""
    return [LEDGER if topic == OFFSETS else (topic, partition) for topic, partition in found.partitions]


def _nothing() -> None:
    """Do nothing: the default of `on_shaken`."""


async def together(*parts: Awaitable[object]) -> None:
    """Wait until all are done, or the first has failed; then cancel the others. Raises the error of the failed one."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        await cancelled(*tasks)
