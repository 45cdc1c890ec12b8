"""Records that a handler produces: `Send`, sinks, and how values become bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

import faust
import orjson

from flowshare.agents.errors import AnnotationError, Unencodable
from flowshare.agents.texts import said, shown
from flowshare.agents.values import Decoder, decoder, describe

Headers = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]

_PLAIN: Final = (bytes, str, int, float, bool)
"""Types whose values fit them."""


class Produce(NamedTuple):
    """One record to produce, in bytes."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int | None
    timestamp_ms: int | None


class SendGroup:
    """Records to produce together; what waits for them is accepted when all are confirmed.

    One group may stand behind several records (a batch's result). The mutable parts are the service loop's.
    """

    __slots__ = ("error", "missing", "produces", "started", "waiting")

    def __init__(self, produces: tuple[Produce, ...]) -> None:
        self.produces = produces
        self.missing = len(produces)
        self.started = False
        self.error: BaseException | None = None
        self.waiting: list[Callable[[BaseException | None], None]] = []


@dataclass(frozen=True, slots=True)
class Send:
    """A record to produce, returned by a handler (one, or a list of them); confirmed before the input is accepted.

    topic: a topic of the app or a name. value, key: bytes, str, or anything JSON can hold. headers: mapping or pairs.
    partition: None leaves it to the partitioner (by key as Kafka's, else any). timestamp: seconds since 1970.
    """

    topic: Any
    value: Any = None
    key: Any = None
    headers: Headers | None = None
    partition: int | None = None
    timestamp: float | None = None

    def encode(self, extra_headers: tuple[tuple[str, bytes], ...] = ()) -> Produce:
        """In bytes, `extra_headers` added where the name is not taken. Raises: Unencodable."""
        return produce(
            self.topic,
            self.value,
            self.key,
            headers=self.headers,
            partition=self.partition,
            timestamp=self.timestamp,
            extra_headers=extra_headers,
        )


def produce(
    topic: Any,
    value: Any,
    key: Any = None,
    *,
    headers: Headers | None = None,
    partition: int | None = None,
    timestamp: float | None = None,
    extra_headers: tuple[tuple[str, bytes], ...] = (),
) -> Produce:
    """Encode one record for `topic` (a topic of the app or a name). Raises: Unencodable."""
    value_serializer = getattr(topic, "value_serializer", None)
    key_serializer = getattr(topic, "key_serializer", None)
    if value_serializer is None:
        encoded = encode(value)
        _check_type(topic, value, encoded)
    else:
        encoded = bytes_of(topic.prepare_value(value, value_serializer)[0])
    return Produce(
        topic_name(topic),
        encoded,
        encode(key) if key_serializer is None else bytes_of(topic.prepare_key(key, key_serializer)[0]),
        encode_headers(headers, extra_headers),
        partition,
        None if timestamp is None else int(timestamp * 1000),
    )


def _check_type(topic: Any, value: Any, encoded: bytes | None) -> None:
    """Refuse here what a handler of the topic's `value_type` would not get. Raises: Unencodable."""
    value_type = getattr(topic, "value_type", None)
    if value_type is None or encoded is None or type(value) is value_type in _PLAIN:
        return
    decode = _decoder_of(value_type)
    if decode is None:
        return
    try:
        decode(encoded)
    except Exception as error:
        raise Unencodable(
            f"topic {topic_name(topic)!r} has value_type={describe(value_type)}, which {shown(value)} does not fit: "
            f"{said(error)}"
        ) from error


@cache
def _decoder_of(value_type: Any) -> Decoder | None:
    """None: all bytes fit, as they do a codec's name and what no handler can be annotated with."""
    try:
        return None if isinstance(value_type, str) else decoder(value_type)
    except AnnotationError:
        return None


def topic_name(topic: Any) -> str:
    """The name of a topic of the app, or the name itself. Raises: Unencodable."""
    if isinstance(topic, str):
        return topic
    if isinstance(topic, faust.TopicT):
        return str(topic.get_topic_name())
    raise Unencodable(f"{shown(topic)} is not a topic: give a name or what app.topic(…) returned")


def encode(value: Any) -> bytes | None:
    """A key or value as bytes: bytes stay, str is UTF-8, None stays None, everything else becomes JSON.

    Raises: Unencodable.
    """
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, faust.Record):
        return bytes_of(value.dumps(serializer=value._options.serializer or "json"))  # noqa: SLF001 - faust's only door
    try:
        return orjson.dumps(value, default=_other, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError as error:
        raise Unencodable(f"a value of type {type(value).__name__} cannot be sent: {said(error)}") from error


def bytes_of(value: Any) -> bytes | None:
    """What a Faust codec returned, as bytes."""
    return value.encode() if isinstance(value, str) else value


def _other(value: Any) -> Any:
    if isinstance(value, faust.Record):
        return value.to_representation()
    if isinstance(value, (set, frozenset)):
        return list(value)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode()
    if type(value).__module__ == "decimal":
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def encode_headers(
    headers: Headers | None, extra: tuple[tuple[str, bytes], ...] = ()
) -> tuple[tuple[str, bytes | None], ...]:
    """Headers in bytes; `extra` follows where the name is not taken."""
    if not headers:
        return extra
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    given = tuple((str(name), value.encode() if isinstance(value, str) else value) for name, value in pairs)
    if not extra:
        return given
    names = {name for name, _ in given}
    return given + tuple(pair for pair in extra if pair[0] not in names)
