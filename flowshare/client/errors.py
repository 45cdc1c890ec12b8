"""The errors of the client. Every text says what happened and, where a user can act, what to do.

`flowshare.errors` has the tree of all errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flowshare.core_errors import FlowshareError
from flowshare.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Collection

NO_COORDINATOR: Final = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)
"""Codes of a node that does not coordinate a group or transaction, or not yet: nothing was done."""
RETRIABLE: Final = NO_COORDINATOR | frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)
"""Codes after which the same request can succeed later (Kafka's RetriableException)."""

SESSION_GONE: Final = frozenset(
    {
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)
"""Codes after which the share session is opened anew with epoch 0 (SG-17.2)."""

ADVICE: Final[dict[ErrorCode, str]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "create the topic, or check its name (flowshare topics ls)",
    ErrorCode.UNKNOWN_TOPIC_ID: "the topic was deleted, perhaps made anew; subscribe again",
    ErrorCode.MESSAGE_TOO_LARGE: "send less in one record, or raise the topic's max.message.bytes",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "ask for the right to use the topic",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "ask for the right to write to a topic, or IDEMPOTENT_WRITE on the cluster",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "ask for the right to use the group",
    ErrorCode.TOPIC_ALREADY_EXISTS: "use the topic that is there, or delete it first",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "topic names have 1 to 249 of the characters a-z A-Z 0-9 . _ -",
    ErrorCode.INVALID_REPLICATION_FACTOR: "start as many brokers as their default.replication.factor says, lower that "
    "setting of theirs, or make the topic by hand",
    ErrorCode.INVALID_PARTITIONS: "ask for at least one partition, and for more than there are when adding some",
    ErrorCode.UNSUPPORTED_VERSION: "the server does not offer this; use a newer one",
    ErrorCode.NON_EMPTY_GROUP: "stop the group's members first (flowshare groups members)",
    ErrorCode.GROUP_ID_NOT_FOUND: "check the group's name (flowshare groups ls), and that it is a share group",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "stop a member, or raise the server's group.share.max.size",
    ErrorCode.INVALID_RECORD_STATE: "the lock lapsed or the record was given back: it runs again elsewhere; "
    "renew records that take longer than the lock",
    ErrorCode.SHARE_SESSION_LIMIT_REACHED: "stop a member, or raise the server's group.share.max.share.sessions",
    ErrorCode.KAFKA_STORAGE_ERROR: "the server's disk fails: check its space and health, and the server's log",
    ErrorCode.NETWORK_EXCEPTION: "the connection ended; what was held runs again",
}
SHOWN: Final = 5
"""The most records that an error names in its text."""


class ClientError(FlowshareError):
    """Base of all errors that the client raises."""


class ServerError(ClientError):
    """The server refused. code: Kafka's error code. retriable: True: the same request can succeed later."""

    def __init__(self, code: ErrorCode, message: str | None = None, *, about: str = "") -> None:
        self.code = code
        self.message = message
        text = f"{about}: {code.name}" if about else code.name
        if message:
            text += f": {message}"
        advice = ADVICE.get(code)
        super().__init__(f"{text} ({advice})" if advice else text)

    @property
    def retriable(self) -> bool:
        """True if the same request can succeed later."""
        return self.code in RETRIABLE


class NotConnected(ClientError, ConnectionError):
    """No connection was open in time; the request was never sent."""


class AnotherBroker(NotConnected):
    """Another broker, or a broker of another cluster, is at the address of the broker that was meant."""


class ConnectionLost(ClientError, ConnectionError):
    """The connection ended before the answer came; the request may have been carried out."""


class Unsupported(ClientError):
    """The broker does not have the API, or only in versions without the requested fields."""


class IllegalState(ClientError):
    """The calls contradict each other."""


class Closed(IllegalState):
    """The object was closed."""


class Wakeup(ClientError):
    """`wakeup()` was called; the call that raises this changed nothing."""


class RecordError(ClientError):
    """One record cannot be decoded. It is released, unless it is acknowledged otherwise by topic, partition and
    offset."""

    def __init__(self, topic: str, partition: int, offset: int, cause: str) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        super().__init__(
            f"{topic}-{partition}@{offset} cannot be decoded: {cause} (it is released; to drop it, "
            "acknowledge(topic, partition, offset, AcknowledgeType.REJECT) before the next poll)"
        )


class CorruptRecords(ClientError):
    """Records (offsets `first` to `last`, inclusive) whose bytes are damaged; they were rejected."""

    def __init__(self, topic: str, partition: int, first: int, last: int, cause: str) -> None:
        self.topic = topic
        self.partition = partition
        self.first = first
        self.last = last
        super().__init__(
            f"{topic}-{partition}@{first} to {last} are damaged and were rejected: {cause} "
            "(restore them from where they came, and check the server's disk)"
        )


class RecordTooLarge(ClientError):
    """The record is larger than the allowed size."""


class BufferFull(ClientError):
    """The producer's buffer has no room now; await `send` instead of `send_nowait`, or raise `buffer_memory`."""


class NotCommitted(ClientError):
    """Finished `records` (topic, partition, offset) that may or may not be committed."""

    def __init__(self, records: Collection[tuple[str, int, int]], why: str) -> None:
        self.records = frozenset(records)
        first = sorted(self.records)[:SHOWN]
        shown = ", ".join(f"{topic}-{partition}@{offset}" for topic, partition, offset in first)
        more = f" and {len(self.records) - len(first)} more" if len(self.records) > len(first) else ""
        super().__init__(
            f"{why}; it is not known whether {shown}{more} {'are' if len(self.records) > 1 else 'is'} committed: "
            "what is not comes again"
        )


class DeliveryTimeout(ClientError):
    """A record was not confirmed in time; it may or may not be in the log."""


def check(code: ErrorCode, message: str | None, about: str) -> None:
    """Raise the error of a code; NONE: do nothing. Raises: ServerError."""
    if code is not ErrorCode.NONE:
        raise ServerError(code, message, about=about)
