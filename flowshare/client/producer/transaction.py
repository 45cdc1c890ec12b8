"""`ProducerTransactions`: a transactional id's producer: who it is, and the transaction that is open (KIP-98).

    ready -- begin --> open -- commit --> ready
                       open -- commit, not answered in time --> in doubt -- commit --> ready
                       open -- abort --> ready        with a new epoch, which shuts out what may still be on its way
                       open -- a batch cannot be written --> failed -- abort --> ready
    any -- somebody else has the transactional id --> fenced

In doubt nothing but `commit` is taken: an abort might undo nothing, and be told as one all the same.

A partition joins before the first batch that it gets in a transaction. A transaction that is neither committed nor
aborted stays open when the producer is closed: whoever has its producer id and epoch may end it, and the server does
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
    """All requests are repeated until they are answered, for the settings' delivery_timeout."""

    def __init__(self, channel: Channel, transactional_id: str, *, timeout_s: float) -> None:
        self._channel = channel
        self.transactional_id = transactional_id
        self._timeout_ms = round(timeout_s * 1000)
        self._partitions: set[tuple[str, int]] = set()
        self._begun = False
        """Whether the coordinator may know of the open transaction: it was asked to add a partition."""
        self.identity: Identity | None = None
        self.open = False
        self.number = 0
        """Of the open transaction, or of the last one."""
        self._ending = False
        self.in_doubt = False
        """Whether the open transaction may be committed: that was asked, and not answered."""
        self.problem: ClientError | None = None
        """Why the open transaction can only be aborted."""

    async def begin(self) -> None:
        """Open a transaction. The first one shuts out older producers of the id and aborts what they left open.

        Raises: IllegalState, ServerError, NotConnected, ConnectionLost.
        """
        if self.open:
            raise IllegalState(f"transaction {self.transactional_id} is open already: commit or abort it first")
        if self.identity is None:
            await self._init(NOBODY)
        self.open = True
        self.number += 1

    def check_open(self) -> None:
        """Raises: IllegalState; what has failed the transaction."""
        if not self.open:
            raise IllegalState(f"transaction {self.transactional_id} is not open: begin() comes first")
        self.check_known()
        if self._ending:
            raise IllegalState(f"transaction {self.transactional_id} is being ended: begin() comes first")
        self.check_problem()

    def check_problem(self) -> None:
        """Raises: what has failed the transaction."""
        if self.problem is not None:
            raise self.problem

    @contextmanager
    def ending(self) -> Generator[None]:
        """Nothing is added to the transaction meanwhile: it would be counted to the next one."""
        self._ending = True
        try:
            yield
        finally:
            self._ending = False

    def check_known(self) -> None:
        """Raises: IllegalState: whether the transaction is committed is not known."""
        if self.in_doubt:
            raise IllegalState(
                f"whether transaction {self.transactional_id} is committed is not known: commit() again, or leave it "
                "to the next producer of this id, whose begin() aborts what is not committed"
            )

    async def join(self, topic: str, partition: int) -> None:
        """The partition is going to be written to. Raises: ServerError, NotConnected, ConnectionLost."""
        place = topic, partition
        if place not in self._partitions:
            self._begun = True
            request = AddPartitionsToTxnRequest(
                transactional_id=self.transactional_id, producer=self._producer, partitions=(place,)
            )
            await self._ask(request, f"adding {topic}-{partition} to transaction {self.transactional_id}")
            self._partitions.add(place)

    async def end(self, *, commit: bool) -> None:
        """Commit or abort; after an abort the producer has a new epoch, and all batches are confirmed or given up.

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
        if not commit:
            await self._init(self._producer)
        self._partitions.clear()
        self._begun = False
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
