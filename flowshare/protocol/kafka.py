"""Reads and writes Kafka's messages with kio. Each (API, version) is imported at its first use: all would cost 0.6 s.

A frame is an int32 length and that many bytes: a header and a body (Kafka protocol guide, "Protocol Primitives").
Nothing here uses a socket.
"""

from __future__ import annotations

import enum
import functools
import importlib
import io
import struct
from collections.abc import Iterable
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple

from flowshare.protocol.walk import MalformedMessage, skip_tags, tidy

REQUEST_PARTS_MAX: Final = 50_000
"""The most elements of all arrays of a request, and tagged fields, together: kio makes an object of each, some µs and
hundreds of bytes, and a Produce request could have millions. Answers have no such bound: they come from our own server
or from a broker that was chosen."""

Side = Literal["request", "response"]

_START: Final = struct.Struct(">hhi")
_LENGTH: Final = struct.Struct(">i")
_TEXT_LENGTH: Final = struct.Struct(">h")


class ApiKey(enum.IntEnum):
    """Kafka's API keys; the names in lower case are kio's module names."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    FLOWSHARE = 32500
    """Flowshare's own calls, offered in ApiVersions; see `protocol.private`."""
    FLOWSHARE_SETTLE = 32501
    """ShareSettle, also flowshare's own; see `protocol.settle_codec`."""
    FLOWSHARE_FETCH = 32502
    """Fetch of some keys, also flowshare's own; see `protocol.filter_codec`."""
    FLOWSHARE_COOPERATIVE_SETTLE = 32503
    """A settle of a cooperative group, also flowshare's own; see `protocol.cooperative_settle`."""


_OWN: Final = frozenset(key.name.lower() for key in ApiKey if key >= ApiKey.FLOWSHARE)
"""APIs that kio does not know."""


class RequestStart(NamedTuple):
    """The part of a request header that has one form for every API and version."""

    key: int
    version: int
    correlation_id: int


class RequestHeader(NamedTuple):
    """The fields of a request header besides `RequestStart`'s key and version."""

    correlation_id: int
    client_id: str | None


def request_start(frame: bytes | bytearray | memoryview) -> RequestStart:
    """Return key, version and correlation id of a request frame (without its length). Raises: struct.error (too
    short)."""
    return RequestStart(*_START.unpack_from(frame))


_AHEAD: Final = {("api_versions", 5): "flowshare.protocol.api_versions_v5"}
"""Versions that kio does not have yet -> our module in kio's form, with both sides."""


@functools.cache
def module(name: str, version: int, side: Side) -> ModuleType:
    """Return kio's module with the entity and its nested types. Raises: ImportError (kio has no such version)."""
    if (name, version) in _AHEAD:
        return importlib.import_module(_AHEAD[name, version])
    return importlib.import_module(f"kio.schema.{name}.v{version}.{side}")


@functools.cache
def entity(name: str, version: int, side: Side) -> Any:
    """Return kio's class of a request or response."""
    suffix = side.capitalize()
    wanted = name.replace("_", "") + side
    found = module(name, version, side)
    for attribute in dir(found):
        if attribute.endswith(suffix) and attribute.lower() == wanted:
            return getattr(found, attribute)
    raise ImportError(f"kio has no {side} {name} version {version}")


@functools.cache
def _reader(schema: Any) -> Any:
    from kio.serial import entity_reader

    return entity_reader(schema)


@functools.cache
def _writer(schema: Any) -> Any:
    from kio.serial import entity_writer

    return entity_writer(schema)


def read_request(
    name: str, start: RequestStart, frame: bytes, *, parts_max: int = REQUEST_PARTS_MAX
) -> tuple[RequestHeader, Any]:
    """Return header and body of a request frame.

    Raises: TooManyParts (more than `parts_max`), else any error of kio for bytes that are no such request; treat every
    Exception as garbage.
    """
    header, position = request_body(name, start, frame)
    schema = entity(name, start.version, "request")
    body, _ = _reader(schema)(*tidy(schema, frame, position, parts_max=parts_max))
    return header, body


def load(names: Iterable[tuple[str, int]]) -> None:
    """Import the readers of requests and writers of answers of these APIs and versions now, instead of at their first
    use."""
    for name, version in names:
        _reader(entity(name, version, "request"))
        _writer(entity(name, version, "response"))


def request_body(name: str, start: RequestStart, frame: bytes) -> tuple[RequestHeader, int]:
    """Return the header of a request frame, and the position of its body. Raises: as `read_request`."""
    position = _START.size
    (length,) = _TEXT_LENGTH.unpack_from(frame, position)
    position += _TEXT_LENGTH.size
    client_id = None
    if length >= 0:
        if position + length > len(frame):
            raise MalformedMessage(f"the client id says that it has {length} bytes")
        client_id = frame[position : position + length].decode()
        position += length
    if _has_tags(name, start.version):
        position = skip_tags(frame, position)
    return RequestHeader(start.correlation_id, client_id), position


@functools.cache
def _has_tags(name: str, version: int) -> bool:
    """True if the request's header has tagged fields, as in flexible versions and flowshare's own APIs."""
    return name in _OWN or bool(entity(name, version, "request").__flexible__)


def write_response(correlation_id: int, response: Any) -> bytes:
    """Return the frame of a response entity, its length included."""
    return _frame(response.__header_schema__(correlation_id=correlation_id), response)


def write_request(correlation_id: int, client_id: str | None, request: Any) -> bytes:
    """Return the frame of a request entity, its length included."""
    header = request.__header_schema__(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    return _frame(header, request)


def read_response(name: str, version: int, frame: bytes) -> tuple[int, Any]:
    """Return correlation id and body of a response frame (without its length). Raises: as `read_request`."""
    schema = entity(name, version, "response")
    (correlation_id,) = _LENGTH.unpack_from(frame)
    position = _LENGTH.size
    if schema.__header_schema__.__flexible__:
        position = skip_tags(frame, position)
    body, _ = _reader(schema)(*tidy(schema, frame, position))
    return int(correlation_id), body


def _frame(header: Any, body: Any) -> bytes:
    buffer = io.BytesIO(b"\0\0\0\0")
    buffer.seek(4)
    _writer(header.__class__)(buffer, header)
    _writer(body.__class__)(buffer, body)
    with buffer.getbuffer() as view:
        _LENGTH.pack_into(view, 0, len(view) - 4)
    return buffer.getvalue()  # the bytes themselves, not a copy: fetches answer with megabytes
