"""`Message`: one record to send, its size in bytes, and the partition of a keyed record.

The partition is the one that every other Kafka client would choose: murmur2 over the key's bytes, as in Kafka's own
`Utils.murmur2` and built-in partitioner, so that producers in any language agree. The producer spreads records without
a key, a batch at a time (KIP-794).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from flowshare.client.arguments import check_argument, fits
from flowshare.client.errors import RecordTooLarge
from flowshare.client.producer.batching import RECORD_OVERHEAD
from flowshare.protocol.key_hash import murmur2

Headers = Sequence[tuple[str, bytes | None]]
BATCH_OVERHEAD: Final = 61
TIMESTAMP_MAX: Final = 253_402_300_800
"""Seconds from 1970 to the year 10000. A later timestamp was meant in milliseconds."""
KEYS_KEPT: Final = 16_384


class Message(NamedTuple):
    """One record for `send_many`. timestamp: seconds since 1970, None: now. partition: None: by key, or spread."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp: float | None = None
    partition: int | None = None


def items_of(items: Any, topic: Any) -> Iterator[Message | bytes | None]:
    """Iterate over the items given to `send_many`. Raises: TypeError."""
    check_argument("the topic", topic, str)
    if isinstance(items, str | bytes | Message) or not isinstance(items, Iterable):
        raise TypeError(
            f"send_many for {topic} takes a list of values or messages, not {type(items).__name__}: `send` one"
        )
    return iter(cast("Iterable[Message | bytes | None]", items))


def size_of(message: Any, topic: Any, max_request_size: int) -> int:
    """Check the fields of a user's `Message`, and return an upper estimate of its bytes.

    Raises: RecordTooLarge; TypeError: the message is no record.
    """
    value, key, headers, timestamp, partition = message
    if type(topic) is not str:
        check_argument("the topic", topic, str)
    if not (
        (value is None or isinstance(value, bytes))
        and (key is None or isinstance(key, bytes))
        and (timestamp is None or is_timestamp(timestamp))
        and (partition is None or type(partition) is int or fits(partition, int))
    ):
        raise TypeError(_wrong(message, topic))
    size = RECORD_OVERHEAD + (len(value) if value else 0) + (len(key) if key else 0)
    if headers:
        size += _headers_size(headers, topic)
    if size + BATCH_OVERHEAD > max_request_size:
        raise RecordTooLarge(
            f"a record of {size} bytes for {topic} is larger than max_request_size ({max_request_size}); "
            "send less, or raise it and the topic's max.message.bytes: fs.App(…, producer_max_request_size=…), or "
            "fs.Producer(…, settings=fs.ProducerSettings(max_request_size=…))"
        )
    return size


def _headers_size(headers: Any, topic: str) -> int:
    """Return an upper estimate of the headers' bytes. Raises: TypeError."""
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
        if not (name.isascii() or is_utf8(name)):
            raise TypeError(
                f"the name of a header of a record for {topic} is no text that UTF-8 can write: {name!a:.100}"
            )
        size += 10 + 4 * len(name) + (len(content) if content else 0)
    return size


def is_utf8(text: str) -> bool:
    """Tell if UTF-8 can write a text; it cannot write half of a surrogate pair, as `surrogateescape` makes it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _wrong(message: Any, topic: str) -> str:
    """Describe the message's invalid field and the value to give instead."""
    for field in ("value", "key"):
        given: object = getattr(message, field)
        if given is not None and not isinstance(given, bytes):
            return (
                f"the {field} of a record for {topic} is {type(given).__name__}, and must be bytes or None: encode it "
                "(str: text.encode(), otherwise: json.dumps(it).encode())"
            )
    if not fits(message.partition, int | None):
        return f"the partition of a record for {topic} is {type(message.partition).__name__}, and must be int or None"
    return no_timestamp(message.timestamp, topic)


def is_timestamp(given: Any) -> bool:
    """Tell if a value is a moment in seconds since 1970, before the year 10000."""
    return fits(given, float) and abs(given) < TIMESTAMP_MAX


def no_timestamp(given: Any, topic: str) -> str:
    """Return why a value is no timestamp, and the value to give instead."""
    text = f"the timestamp of a record for {topic} is {given!r:.40}, and must be seconds since 1970, or None"
    if fits(given, float):
        return f"{text}; so many are behind the year 9999: divide milliseconds by 1000"
    return f"{text}; of a datetime: its timestamp()" if isinstance(given, datetime) else text


@functools.lru_cache(maxsize=KEYS_KEPT)
def _positive(key: bytes) -> int:
    return murmur2(key) & 0x7FFFFFFF


def partition_for(key: bytes, partitions: int) -> int:
    """Return the partition of a keyed record among `partitions`; hashes of recent keys are cached."""
    return 0 if partitions == 1 else _positive(key) % partitions
