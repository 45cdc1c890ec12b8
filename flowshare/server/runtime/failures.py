"""From an exception to what an answer carries: an error code and a text.

Core errors have their tables in `protocol.errors`; the log's errors have theirs here. Anything else is a fault of ours:
`UNKNOWN_SERVER_ERROR`, and the place that catches it logs it with its traceback.
"""

from __future__ import annotations

from typing import Final

from flowshare.groups.errors import GroupError
from flowshare.log.base import (
    CorruptRecords,
    InvalidRecord,
    InvalidTimestamp,
    InvalidTopic,
    InvalidTopicConfig,
    LogError,
    NotLed,
    OffsetOutOfRange,
    ProducerRefused,
    RecordsTooLarge,
    StorageDamaged,
    StorageError,
    StorageFull,
    TopicExists,
    UnknownTopic,
)
from flowshare.protocol.errors import ErrorCode, error_code
from flowshare.share.errors import ShareError
from flowshare.transactions import errors as transactions

LOG_ERRORS: Final[dict[type[LogError], ErrorCode]] = {
    TopicExists: ErrorCode.TOPIC_ALREADY_EXISTS,
    UnknownTopic: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    InvalidTopic: ErrorCode.INVALID_TOPIC_EXCEPTION,
    InvalidTopicConfig: ErrorCode.INVALID_CONFIG,
    NotLed: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
    CorruptRecords: ErrorCode.CORRUPT_MESSAGE,
    InvalidRecord: ErrorCode.INVALID_RECORD,
    InvalidTimestamp: ErrorCode.INVALID_TIMESTAMP,
    RecordsTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    StorageError: ErrorCode.KAFKA_STORAGE_ERROR,
    StorageFull: ErrorCode.KAFKA_STORAGE_ERROR,
    StorageDamaged: ErrorCode.KAFKA_STORAGE_ERROR,
}

TRANSACTION_ERRORS: Final[dict[type[transactions.TransactionError], ErrorCode]] = {
    transactions.OutOfOrderSequence: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    transactions.InvalidProducerEpoch: ErrorCode.INVALID_PRODUCER_EPOCH,
    transactions.ProducerFenced: ErrorCode.PRODUCER_FENCED,
    transactions.InvalidProducerIdMapping: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    transactions.InvalidTxnState: ErrorCode.INVALID_TXN_STATE,
    transactions.ConcurrentTransactions: ErrorCode.CONCURRENT_TRANSACTIONS,
    transactions.InvalidTransactionTimeout: ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    transactions.TransactionalIdNotFound: ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    transactions.InvalidTransactionRequest: ErrorCode.INVALID_REQUEST,
    transactions.TransactionLimit: ErrorCode.POLICY_VIOLATION,
    transactions.TransactionStateCorrupt: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


class Refused(Exception):
    """An answer with an error code that no core error stands for. `code`: the number, the text says why."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


EXPECTED: Final = (ShareError, GroupError, LogError, Refused, transactions.TransactionError)
"""What a request may end with without anything being wrong with the server."""


def failure(error: BaseException) -> tuple[ErrorCode, str]:
    """Code and text that tell a client of `error`."""
    text = str(error) or type(error).__name__
    if isinstance(error, Refused):
        return error.code, text
    if isinstance(error, ShareError | GroupError):
        return error_code(error), text
    if isinstance(error, ProducerRefused):
        return TRANSACTION_ERRORS[type(error.reason)], text
    if isinstance(error, transactions.TransactionError):
        return TRANSACTION_ERRORS[type(error)], text
    if isinstance(error, LogError):
        return LOG_ERRORS.get(type(error), ErrorCode.KAFKA_STORAGE_ERROR), text
    return ErrorCode.UNKNOWN_SERVER_ERROR, f"internal error ({type(error).__name__}); see the server's log"
