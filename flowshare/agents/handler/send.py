"""Records that a handler produces: `Send`, sinks, headers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import faust

from flowshare.agents.coding import encode_for
from flowshare.agents.errors import Unencodable
from flowshare.agents.texts import shown

Headers = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]


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
    key_serializer: Any = None,
    value_serializer: Any = None,
) -> Produce:
    """Encode one record for `topic` (a topic of the app or a name).

    key_serializer, value_serializer: in place of the topic's. Raises: Unencodable, OptionError: there is no such one.
    """
    return Produce(
        topic_name(topic),
        encode_for(topic, "value", value, value_serializer),
        encode_for(topic, "key", key, key_serializer),
        encode_headers(headers, extra_headers),
        partition,
        None if timestamp is None else int(timestamp * 1000),
    )


def topic_name(topic: Any) -> str:
    """The name of a topic of the app, or the name itself. Raises: Unencodable."""
    if isinstance(topic, str):
        return topic
    if isinstance(topic, faust.TopicT):
        return str(topic.get_topic_name())
    raise Unencodable(f"{shown(topic)} is not a topic: give a name or what app.topic(…) returned")


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
