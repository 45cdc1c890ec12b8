"""From an exception to an answer's error code and text.

Core errors have their table in `protocol.errors`; the log's errors have theirs here. Any other error is a fault of
ours: `UNKNOWN_SERVER_ERROR`, and the place that catches it logs it with its traceback.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Final, ParamSpec, TypeVar

from flowshare.core_errors import CoreError
from flowshare.log.base import (
    CorruptBatches,
    InvalidRecord,
    InvalidTimestamp,
    InvalidTopic,
    InvalidTopicConfig,
    LogError,
    NotAllowed,
    NotLed,
    OffsetOutOfRange,
    ProducerRefused,
    RecordsTooLarge,
    TopicExists,
    Undecided,
    UnknownTopic,
)
from flowshare.protocol.errors import ErrorCode, error_code

P = ParamSpec("P")
R = TypeVar("R")

LOG_ERRORS: Final[dict[type[LogError], ErrorCode]] = {
    TopicExists: ErrorCode.TOPIC_ALREADY_EXISTS,
    UnknownTopic: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    InvalidTopic: ErrorCode.INVALID_TOPIC_EXCEPTION,
    InvalidTopicConfig: ErrorCode.INVALID_CONFIG,
    NotLed: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    Undecided: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    NotAllowed: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
    CorruptBatches: ErrorCode.CORRUPT_MESSAGE,
    InvalidRecord: ErrorCode.INVALID_RECORD,
    InvalidTimestamp: ErrorCode.INVALID_TIMESTAMP,
    RecordsTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
}
"""Codes of the log's errors. All others are the disk's: KAFKA_STORAGE_ERROR."""


class Refused(Exception):
    """An answer with an error code that no core error stands for. `code`: the number; the text gives the reason."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


EXPECTED: Final = (CoreError, LogError, Refused)
"""The errors that a request may end with although nothing is wrong with the server."""


def failure(error: BaseException) -> tuple[ErrorCode, str]:
    """Return the code and text that tell a client of `error`."""
    text = str(error) or type(error).__name__
    if isinstance(error, Refused):
        return error.code, text
    if isinstance(error, CoreError):
        return error_code(error), text
    if isinstance(error, ProducerRefused):
        return error_code(error.reason), text
    if isinstance(error, LogError):
        return LOG_ERRORS.get(type(error), ErrorCode.KAFKA_STORAGE_ERROR), text
    return ErrorCode.UNKNOWN_SERVER_ERROR, f"internal error ({type(error).__name__}); see the server's log"


def refusal(make: Callable[..., R], error: BaseException, **more: object) -> R:
    """Return the answer that tells of `error`: it has the code and text as `error` and `message`."""
    code, message = failure(error)
    return make(error=code, message=message, **more)


def refusing(make: Callable[..., R]) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
    """Decorate a handler so that an `EXPECTED` error becomes its answer, see `refusal`."""

    def wrap(handler: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        @functools.wraps(handler)
        async def answered(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return await handler(*args, **kwargs)
            except EXPECTED as error:
                return refusal(make, error)

        return answered

    return wrap
