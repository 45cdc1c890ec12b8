"""Records that a handler produces: `Send`, sinks, headers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from flowshare.agents.handler.codec import Encoded, Missing
from flowshare.agents.handler.encoding import encode
from flowshare.agents.handler.errors import Unencodable
from flowshare.agents.handler.texts import shown

T = TypeVar("T")
RESERVED: Final = "__"
"""Prefix of topics that no application may write."""
Headers = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]


class ProducerRecord(NamedTuple):
    """One record to produce, in bytes."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int | None
    timestamp: float | None

    def send_by(self, send: Callable[..., T]) -> T:
        """Call `send`, a producer's method, with this record, and return its result."""
        return send(
            self.topic,
            self.value,
            key=self.key,
            headers=self.headers,
            partition=self.partition,
            timestamp=self.timestamp,
        )


class SendGroup:
    """Records to produce together; input records that wait for the group are accepted when all are confirmed.

    One group may serve several input records (a batch's result). The mutable parts are the service loop's.
    """

    __slots__ = ("error", "missing", "produces", "records", "started", "waiting")

    def __init__(self, produces: tuple[ProducerRecord, ...]) -> None:
        self.produces = produces
        self.missing = len(produces)
        self.records = 1
        """Number of input records that wait for this group."""
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

    def encode(self, extra_headers: tuple[tuple[str, bytes], ...] = ()) -> ProducerRecord:
        """Encode the record; `extra_headers` are added where the name is not taken. Raises: Unencodable."""
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
    key_serializer: Any = None,
    value_serializer: Any = None,
) -> ProducerRecord:
    """Encode one record for `topic` (a topic of the app or a name).

    key_serializer, value_serializer: in place of the topic's. Raises: Unencodable, OptionError: an unknown serializer.
    """
    named = isinstance(topic, str)
    name = output_topic(topic)
    if timestamp is not None:
        check_timestamp(timestamp, name)
    if partition is not None:
        check_partition(partition, name)
    in_value = encode(value) if named else topic.encode("value", value, value_serializer)
    in_key = encode(key) if named else topic.encode("key", key, key_serializer)
    given = encode_headers(headers, extra_headers)
    if type(in_key) is tuple:
        in_key, more = in_key
        given = (*given, *encode_headers(more))
    return record_of(name, in_value, given, in_key, partition, timestamp)


def record_of(
    topic: str,
    value: Encoded | None,
    headers: tuple[tuple[str, bytes | None], ...],
    key: bytes | None = None,
    partition: int | None = None,
    timestamp: float | None = None,
) -> ProducerRecord:
    """Make a record of an encoded value, with the headers that its codec adds. Raises: Unencodable."""
    if isinstance(value, tuple):
        value, more = value
        headers = (*headers, *encode_headers(more))
    return ProducerRecord(topic, value, key, headers, partition, timestamp)


def missing_to_send(topic: Any) -> Missing | None:
    """Return the look-up that the codecs of a topic need before a record is sent to it; None: they need none.

    topic: a topic of the app, or a name.
    """
    asks: Callable[[], Missing | None] | None = getattr(topic, "missing_to_send", None)
    return None if asks is None else asks()


def is_topic(value: Any) -> bool:
    """Tell if the value is a topic of the app (`agents.faust.topic.Topic`), which encodes and decodes by its types."""
    return hasattr(value, "get_topic_name")


def topic_name(topic: Any) -> str:
    """Return the name of a topic of the app, or the given name itself. Raises: Unencodable."""
    if isinstance(topic, str):
        return topic
    if is_topic(topic):
        return str(topic.get_topic_name())
    raise Unencodable(f"{shown(topic)} is not a topic: give a name or what app.topic(…) returned")


def output_topic(topic: Any) -> str:
    """Return the name of a topic to write to. Raises: Unencodable: it is no topic, or a reserved one."""
    name = topic_name(topic)
    if name.startswith(RESERVED):
        raise Unencodable(
            f"topic {name!r} is not written to: names that start with {RESERVED!r} are Kafka's own and flowshare's "
            "state, and a record that is not theirs stops all that is kept there; send to another topic"
        )
    return name


def encode_headers(
    headers: Headers | None, extra: tuple[tuple[str, bytes], ...] = ()
) -> tuple[tuple[str, bytes | None], ...]:
    """Encode headers; `extra` follows where the name is not taken. Raises: Unencodable."""
    if not headers:
        return extra
    given = tuple(_header(one) for one in _pairs(headers))
    if not extra:
        return given
    names = {name for name, _ in given}
    return given + tuple(pair for pair in extra if pair[0] not in names)


def check_timestamp(timestamp: Any, topic: str) -> None:
    """Check a timestamp in seconds since 1970. Raises: Unencodable."""
    from flowshare.client.producer.message import is_timestamp, no_timestamp

    if not is_timestamp(timestamp):
        raise Unencodable(no_timestamp(timestamp, topic))


def check_partition(partition: Any, topic: str) -> None:
    """Check a partition's number. Raises: Unencodable."""
    if not isinstance(partition, int) or isinstance(partition, bool) or partition < 0:
        raise Unencodable(
            f"the partition of a record for {topic} is {shown(partition)}, and must be 0, 1, … or None, which leaves "
            "it to the key"
        )


HEADERS: Final = 'headers are a dict or pairs of names and bytes, str or None ({"trace": b"1"}, [("trace", b"1")])'


def _pairs(headers: Any) -> Iterable[Any]:
    if isinstance(headers, Mapping):
        return headers.items()
    if isinstance(headers, (str, bytes)) or not isinstance(headers, Iterable):
        raise Unencodable(f"{HEADERS}, not {shown(headers)}")
    return headers


def _header(pair: Any) -> tuple[str, bytes | None]:
    if isinstance(pair, (tuple, list)) and len(pair) == 2:
        name, value = pair
        try:
            content = value.encode() if isinstance(value, str) else value
            if isinstance(name, str) and name.encode() is not None and isinstance(content, bytes | None):
                return name, content
        except UnicodeEncodeError as error:
            raise Unencodable(f"{HEADERS}; this has a character that has no UTF-8: {shown(pair)}") from error
    raise Unencodable(f"{HEADERS}; this is none: {shown(pair)}")
