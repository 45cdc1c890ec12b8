"""`ProducerTransactions`: a transactional id's producer identity, and its open transaction (KIP-98).

    ready -- begin --> open -- commit --> ready
                       open -- commit, not answered in time --> in doubt -- commit --> ready
                       open -- abort --> ready        with a new epoch, which fences batches on their way
                       open -- a record fails --> failed -- abort --> ready
    any -- another producer has the transactional id --> fenced

In doubt only `commit` is accepted: an abort might undo nothing, and yet be reported as one.

A partition joins before the first batch that it gets in a transaction. A transaction that is neither committed nor
aborted stays open when the producer is closed: a holder of its producer id and epoch may end it, and the server does
when `transaction_timeout` is over.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flowshare.client.errors import ClientError, IllegalState, ServerError, check
from flowshare.client.producer.channel import may_pass
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest
from flowshare.protocol.messages.transactions import NOBODY, ProducerIdentity

if TYPE_CHECKING:
    from flowshare.client.producer.channel import Channel
    from flowshare.client.producer.sequence import Identity


class ProducerTransactions:
    """Begins and ends transactions. All requests are repeated until they are answered, for the settings'
    delivery_timeout."""

    def __init__(self, channel: Channel, transactional_id: str, *, timeout_s: float) -> None:
        self._channel = channel
        self.transactional_id = transactional_id
        self._timeout_ms = round(timeout_s * 1000)
        self._partitions: set[tuple[str, int]] = set()
        self._begun = False
        """True if the coordinator may know the open transaction: it was asked to add a partition."""
        self.identity: Identity | None = None
        self.open = False
        self.number = 0
        """The number of the open transaction, or of the last one."""
        self._ending = False
        self.in_doubt = False
        """True if it is unknown whether the open transaction is committed: a commit was requested and not answered."""
        self.problem: ClientError | None = None
        """The error after which the open transaction can only be aborted."""

    async def begin(self) -> None:
        """Open a transaction. The first one fences older producers of the id and aborts their open transactions.

        Raises: IllegalState, ServerError, NotConnected, ConnectionLost.
        """
        if self.open:
            raise IllegalState(f"transaction {self.transactional_id} is open already: commit or abort it first")
        if self.identity is None:
            await self._init(NOBODY)
        self.open = True
        self.number += 1

    def check_open(self) -> None:
        """Check that the transaction takes new records. Raises: IllegalState; the error that failed the transaction."""
        if self.open and self._ending and not self.in_doubt:
            raise IllegalState(
                f"transaction {self.transactional_id} is being ended, and takes no record any more: await all sends "
                "before commit() or abort(), and send what was refused after the next begin()"
            )
        self.check_sending()

    def check_sending(self) -> None:
        """Check that records that the transaction has taken may be sent, as a commit does. Raises: as `check_open`."""
        if not self.open:
            raise IllegalState(f"transaction {self.transactional_id} is not open: begin() comes first")
        self.check_known()
        self.check_problem()

    def check_problem(self) -> None:
        """Check that the transaction has not failed. Raises: the error that failed the transaction."""
        if self.problem is not None:
            raise self.problem

    def failed(self, error: ClientError) -> None:
        """Note that a record of the open transaction failed: nothing but an abort is possible. The first error is
        kept."""
        if self.open and self.problem is None:
            self.problem = error

    @contextmanager
    def ending(self) -> Generator[None]:
        """Refuse new records within the context: they would count towards the next transaction."""
        self._ending = True
        try:
            yield
        finally:
            self._ending = False

    def check_known(self) -> None:
        """Check that the outcome of the last commit is known. Raises: IllegalState."""
        if self.in_doubt:
            raise IllegalState(
                f"whether transaction {self.transactional_id} is committed is not known: commit() again, or leave it "
                "to the next producer of this id, whose begin() aborts what is not committed"
            )

    async def join(self, topic: str, partition: int) -> None:
        """Add a partition to the transaction before it is written to. Raises: ServerError, NotConnected,
        ConnectionLost."""
        place = topic, partition
        if place not in self._partitions:
            self._begun = True
            request = AddPartitionsToTxnRequest(
                transactional_id=self.transactional_id, producer=self._producer, partitions=(place,)
            )
            await self._ask(request, f"adding {topic}-{partition} to transaction {self.transactional_id}")
            self._partitions.add(place)

    async def end(self, *, commit: bool) -> None:
        """Commit or abort, when all batches are confirmed or given up. After an abort the producer has a new epoch.

        Raises: ServerError, NotConnected, ConnectionLost.
        """
        if self._begun:
            self.in_doubt = commit
            request = EndTxnRequest(transactional_id=self.transactional_id, producer=self._producer, committed=commit)
            try:
                await self._ask(request, f"{'committing' if commit else 'aborting'} {self.transactional_id}")
            except ServerError as error:
                self.in_doubt = commit and may_pass(error)
                if commit or error.code is not ErrorCode.INVALID_TXN_STATE:  # there is nothing to abort
                    raise
            self._begun = False  # an abort that is repeated, as its new epoch was not told, has nothing to end
        if not commit:
            await self._init(self._producer)
        self._partitions.clear()
        self.open, self.in_doubt, self.problem = False, False, None

    @property
    def _producer(self) -> ProducerIdentity:
        assert self.identity is not None, "a transaction is open"
        return ProducerIdentity(*self.identity)

    async def _init(self, known: ProducerIdentity) -> None:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, timeout_ms=self._timeout_ms, known=known
        )
        channel = self._channel
        self.identity = await channel.until_answered(
            lambda left_s: channel.init(request, left_s), channel.settings.delivery_timeout
        )

    async def _ask(self, request: AddPartitionsToTxnRequest | EndTxnRequest, about: str) -> None:
        async def once(left_s: float) -> None:
            answer = await self._channel.ask(request, left_s)
            check(answer.error, answer.message, about)

        try:
            await self._channel.until_answered(once, self._channel.settings.delivery_timeout)
        except ServerError as error:
            if not (self.in_doubt and may_pass(error)):
                self.problem = error
            raise
