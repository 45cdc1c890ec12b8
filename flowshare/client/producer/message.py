"""`Message`: one record as it is sent, and the bytes that it takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, cast

from flowshare.client.arguments import check_argument, fits
from flowshare.client.batching import RECORD_OVERHEAD
from flowshare.client.errors import RecordTooLarge

Headers = Sequence[tuple[str, bytes | None]]
BATCH_OVERHEAD: Final = 61


class Message(NamedTuple):
    """One record for `send_many`. `timestamp_ms` None: now; `partition` None: by key, or spread."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int | None = None


def items_of(items: Any, topic: Any) -> Iterator[Message | bytes | None]:
    """What `send_many` was given, one after the other. Raises: TypeError."""
    check_argument("the topic", topic, str)
    if isinstance(items, str | bytes | Message) or not isinstance(items, Iterable):
        raise TypeError(
            f"send_many for {topic} takes a list of values or messages, not {type(items).__name__}: `send` one"
        )
    return iter(cast("Iterable[Message | bytes | None]", items))


def size_of(message: Any, topic: Any, request_bytes_max: int) -> int:
    """Bytes that a `Message` takes, about, and from above; its fields are checked here, whatever users put there.

    Raises: RecordTooLarge; TypeError: it is no record.
    """
    value, key, headers, timestamp_ms, partition = message
    if type(topic) is not str:
        check_argument("the topic", topic, str)
    if not (
        (value is None or isinstance(value, bytes))
        and (key is None or isinstance(key, bytes))
        and (timestamp_ms is None or type(timestamp_ms) is int or fits(timestamp_ms, int))
        and (partition is None or type(partition) is int or fits(partition, int))
    ):
        raise TypeError(_wrong(message, topic))
    size = RECORD_OVERHEAD + (len(value) if value else 0) + (len(key) if key else 0)
    if headers:
        size += _headers_size(headers, topic)
    if size + BATCH_OVERHEAD > request_bytes_max:
        raise RecordTooLarge(
            f"a record of {size} bytes for {topic} is larger than request_bytes_max ({request_bytes_max}); "
            "send less, or raise it and the topic's max.message.bytes: fs.App(…, producer_max_request_size=…), or "
            "producer(settings=fs.ProducerSettings(request_bytes_max=…)) of a fs.Broker"
        )
    return size


def _headers_size(headers: Any, topic: str) -> int:
    """Raises: TypeError."""
    if not isinstance(headers, (list, tuple)):
        raise TypeError(
            f"headers of a record for {topic} are a list of (name, bytes) pairs, not {type(headers).__name__}"
            + (": list(headers.items())" if isinstance(headers, dict) else "")
        )
    size = 0
    for header in cast("Sequence[Any]", headers):
        try:
            name, content = header
        except (TypeError, ValueError):
            name, content = "", header
        if not (isinstance(name, str) and (content is None or isinstance(content, bytes))):
            raise TypeError(f"a header of a record for {topic} is a pair (str, bytes or None), not {header!r:.100}")
        size += 10 + 4 * len(name) + (len(content) if content else 0)
    return size


def _wrong(message: Any, topic: str) -> str:
    """What is no field of a record, and what to give instead."""
    for field in ("value", "key"):
        given: object = getattr(message, field)
        if given is not None and not isinstance(given, bytes):
            return (
                f"the {field} of a record for {topic} is {type(given).__name__}, and must be bytes or None: encode it "
                "(str: text.encode(), otherwise: json.dumps(it).encode())"
            )
    numbers: dict[str, object] = {"timestamp_ms": message.timestamp_ms, "partition": message.partition}
    field, number = next(pair for pair in numbers.items() if not fits(pair[1], int | None))
    return f"the {field} of a record for {topic} is {type(number).__name__}, and must be int or None"
