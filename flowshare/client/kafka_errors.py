"""aiokafka's errors as the client's own, so that no caller has to know who sent its records."""

from __future__ import annotations

from flowshare.client.errors import (
    ClientError,
    Closed,
    ConnectionLost,
    DeliveryTimeout,
    NotConnected,
    RecordTooLarge,
    ServerError,
)
from flowshare.protocol.errors import ErrorCode


def problem_of(error: BaseException, about: str) -> ClientError:
    """The error as one of ours; `about` says what was being done."""
    from aiokafka import errors as kafka

    if isinstance(error, NotConnected | ConnectionLost):
        return DeliveryTimeout(f"{about} could not be looked up: {error}")
    if isinstance(error, ClientError):
        return error
    if isinstance(error, kafka.MessageSizeTooLargeError | kafka.RecordListTooLargeError):
        return RecordTooLarge(f"{about}: {error}; send less in one record, or raise the topic's max.message.bytes")
    if isinstance(error, kafka.KafkaTimeoutError | TimeoutError):
        return DeliveryTimeout(f"{about}: not confirmed in time: {error or type(error).__name__}")
    if isinstance(error, kafka.ProducerClosed):
        return Closed("the producer was closed before the record was confirmed")
    if isinstance(error, kafka.KafkaConnectionError | OSError):
        return NotConnected(f"{about}: {error}")
    number = getattr(error, "errno", None)
    if isinstance(error, kafka.BrokerResponseError) and isinstance(number, int) and number in set(ErrorCode):
        return ServerError(ErrorCode(number), about=about)
    return ClientError(f"{about}: {type(error).__name__}: {error}")
