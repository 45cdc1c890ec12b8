"""What the cores of producers and transactions raise: always the peer's fault, never ours (that is AssertionError).

    TransactionError
      OutOfOrderSequence           batches before this one are missing
      InvalidProducerEpoch         the producer was replaced by a newer one (in answer to a write)
      ProducerFenced               the producer was replaced by a newer one (in answer to the coordinator's APIs)
      InvalidProducerIdMapping     the producer id is not the transactional id's
      InvalidTxnState              what is asked does not fit the transaction's state
      ConcurrentTransactions       the transaction is being finished; try again
      InvalidTransactionTimeout    zero, negative, or above transaction.max.timeout.ms
      TransactionalIdNotFound      nothing is known of the transactional id
      InvalidTransactionRequest    the request contradicts itself or a limit
      TransactionLimit             as many producers or transactional ids as there may be
      TransactionStateCorrupt      what is stored cannot be read

UNKNOWN_PRODUCER_ID has no class: since Kafka 2.5 a partition that forgot a producer takes its next batch whatever its
sequence (KIP-360). `server/failures.py` holds the table from these to Kafka's error codes.
"""

from __future__ import annotations


class TransactionError(Exception):
    """Base of all errors of producers and transactions. The text says what is wrong and what to do."""


class OutOfOrderSequence(TransactionError):
    """The batch does not follow the producer's last one."""


class InvalidProducerEpoch(TransactionError):
    """A producer with a higher epoch has taken over: this one is to stop."""


class ProducerFenced(TransactionError):
    """A producer with a higher epoch has taken over the transactional id, or its transaction timed out."""


class InvalidProducerIdMapping(TransactionError):
    """The transactional id is unknown, or has another producer id."""


class InvalidTxnState(TransactionError):
    """There is no such transaction, or it cannot do this now."""


class ConcurrentTransactions(TransactionError):
    """The transaction is being committed or aborted; the request is to be sent again."""


class InvalidTransactionTimeout(TransactionError):
    """The timeout is not positive, or longer than the server allows."""


class TransactionalIdNotFound(TransactionError):
    """There is no transaction of this id."""


class InvalidTransactionRequest(TransactionError):
    """The request contradicts itself or a limit."""


class TransactionLimit(TransactionError):
    """No more producers or transactional ids are taken."""


class TransactionStateCorrupt(TransactionError):
    """Stored state of producers or transactions cannot be read."""
