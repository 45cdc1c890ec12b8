"""Valid requests of every API, and what noise does to them; all choices come from one `random.Random`."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import random
import struct
import types
import typing
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode as KafkaError

from flowshare.cooperative.types import KeyRange
from flowshare.protocol import cooperative_settle, filter_codec
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.kafka import ApiKey, entity, write_request
from flowshare.protocol.messages import (
    CooperativeSettleRequest,
    FetchPartition,
    FetchRequest,
    KeyFilter,
    SettleOutput,
    ShareSettleRequest,
)
from flowshare.protocol.messages.cooperative import CommitEntry
from flowshare.protocol.settle_codec import encode_settle
from flowshare.server.edge.base import Endpoint
from flowshare.share.types import AckRange

TOPIC = "orders"
TOPIC_ID = uuid.UUID("7c9e6679-7425-40de-944b-e07fc1f90ae7")
WORDS = (
    "",
    TOPIC,
    "g",
    "m",
    "flowshare",
    "consumer",
    "range",
    "PLAIN",
    "SCRAM-SHA-256",
    "share.auto.offset.reset",
    "é",
)
WHOLE = (0, 0, 0, 1, 1, 2, 3, 5, 7, 100, -1, -2)
Known = Callable[[str, str], Any]
"""(name of a field, its kind) -> its value; None: any."""
EDGES = (
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\0\0\0\0",
    b"\xff\xff",
    b"\x80\x80\x80\x80\x08",
    b"\xff",
)


def records() -> bytes:
    """A record batch."""
    builder = BatchBuilder()
    for value in (b"one", b"two"):
        builder.add(b"key", value, [], timestamp_ms=1_000)
    return builder.build()


def settle(rng: random.Random) -> ShareSettleRequest:
    """A settle of up to three records, with up to two outputs."""
    topic_id, count = rng.choice((TOPIC_ID, uuid.UUID(int=1))), rng.randint(1, 3)
    return ShareSettleRequest(
        group_id="g",
        member_id="m",
        topic_id=topic_id,
        partition=rng.randint(0, 1),
        acks=(AckRange(0, count - 1, bytes(rng.choices((1, 3), k=count)), attempt=rng.randint(0, 2)),),
        outputs=tuple(SettleOutput(TOPIC, topic_id, 0, records()) for _ in range(rng.randint(0, 2))),
        ordered=rng.random() < 0.3,
    )


def some_keys(rng: random.Random) -> FetchRequest:
    """A fetch of up to two partitions, of some keys or all."""
    only = rng.choice((None, KeyFilter(((0, 1 << 30),), 10), KeyFilter(((7, 8), (9, 1 << 31)), 1 << 40)))
    parts = (FetchPartition(rng.choice((TOPIC, "no")), number, rng.randint(0, 3), only=only) for number in (0, 1))
    return FetchRequest(partitions=tuple(parts)[: rng.randint(0, 2)], max_wait_ms=rng.choice((0, 10)))


def cooperative(rng: random.Random) -> CooperativeSettleRequest:
    """A settle of a cooperative group."""
    share = settle(rng)
    ranges = [(first, first + rng.randint(1, 5)) for first in range(0, rng.randint(1, 40), 7)]
    entries = tuple(CommitEntry(KeyRange(first, rng.randint(1, 9)), rng.randint(0, 3), ranges) for first in (0, 9))
    return CooperativeSettleRequest(
        group_id=share.group_id,
        member_id=share.member_id,
        topic_id=share.topic_id,
        partition=share.partition,
        reset_epoch=rng.randint(0, 2),
        entries=entries[: rng.randint(0, 2)],
        outputs=share.outputs,
        ordered=rng.random() < 0.5,
        generation=rng.randint(0, 3),
    )


def private(rng: random.Random) -> bytes:
    """A call that browses or acts, with fields that are right, wrong, or of another kind."""
    odd: list[Any] = [
        None,
        -1,
        0,
        1,
        True,
        1 << 63,
        1.5,
        "",
        TOPIC,
        "g",
        [],
        [[0, 3]],
        [[3, 1]],
        ["acquired"],
        {},
        "\ud800",
    ]
    names = (
        "group_id", "topic", "partition", "offset", "limit", "states", "act", "ranges", "dry_run", "node", "server",
        "since",
    )  # fmt: skip
    place = {"group_id": "g", "topic": TOPIC, "partition": 0}
    good: dict[str, dict[str, Any]] = {
        "share_places": {"group_id": "g"},
        "share_browse": place,
        "share_intervene": {**place, "act": "release", "ranges": [[0, 3]]},
        "share_changes": {},
    }
    call = rng.choice(tuple(good))
    wrong = {name: rng.choice(odd) for name in rng.sample(names, rng.choice((0, 0, 1, 2, 5)))}
    return json.dumps({"call": call, **good[call], **wrong}).encode()


def valid(api: Endpoint, version: int, rng: random.Random) -> bytes:
    """A request that can be read, without its length."""
    client_id = rng.choice((None, "", "fuzz"))
    if api.key is ApiKey.FLOWSHARE:
        name = (client_id or "").encode()
        head = struct.pack(f">hhih{len(name)}sB", api.key, version, 1, len(name), name, 0)
        return head + rng.choice((b"{}", b"[]", b'{"call":"x"}', b'{"call":"offsets","group_id":"g","topics":{}}', b"",
                                  private(rng), private(rng)))  # fmt: skip
    if api.key is ApiKey.FLOWSHARE_SETTLE:
        return encode_settle(rng.getrandbits(31), client_id or "", settle(rng), version)[4:]
    if api.key is ApiKey.FLOWSHARE_FETCH:
        return filter_codec.encode_fetch(rng.getrandbits(31), client_id or "", some_keys(rng), version)[4:]
    if api.key is ApiKey.FLOWSHARE_COOPERATIVE_SETTLE:
        return cooperative_settle.encode_settle(rng.getrandbits(31), client_id or "", cooperative(rng), version)[4:]
    request = example(entity(api.key.name.lower(), version, "request"), rng)
    return write_request(rng.getrandbits(31), client_id, request)[4:]


def frames(table: Mapping[int, Endpoint], rng: random.Random, count: int) -> list[bytes]:
    """Some requests, most of them with a fault."""
    found: list[bytes] = []
    for _ in range(count):
        api = rng.choice(tuple(table.values()))
        data = valid(api, rng.randint(api.versions[0], api.versions[1]), rng)
        for _ in range(rng.choice((0, 1, 1, 2, 4))):
            data = rng.choice(FAULTS)(data, rng)
        found.append(data)
    return found


def stream(frames: list[bytes], rng: random.Random) -> bytes:
    """Frames with their lengths, of which a few lie."""
    data = b""
    for one in frames:
        length = len(one) if rng.random() < 0.95 else rng.choice((0, -1, len(one) + 1, len(one) - 1, 2**31 - 1))
        data += struct.pack(">i", length) + one
    return data


def example(schema: Any, rng: random.Random, known: Known = lambda name, kind: None) -> Any:
    """An entity of one of kio's classes; a field whose name is known has that value, those of its parts, too."""
    hints = _hints(schema)
    return schema(
        **{
            field.name: _value(hints[field.name], field.name, field.metadata.get("kafka_type"), rng, known)
            for field in dataclasses.fields(schema)
        }
    )


_hints = functools.cache(typing.get_type_hints)


def _value(hint: Any, name: str, kind: str | None, rng: random.Random, known: Known) -> Any:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else ()
    if type(None) in options:
        if rng.random() < 0.2:
            return None
        (hint,) = (option for option in options if option is not type(None))
    if typing.get_origin(hint) is tuple:
        part = typing.get_args(hint)[0]
        return tuple(_value(part, name, kind, rng, known) for _ in range(rng.choice((0, 1, 1, 2, 3))))
    if kind is None:
        return example(hint, rng, known)
    value = known(name, kind)
    return _PRIMITIVES[kind](rng) if value is None else value


def _whole(bits: int) -> Callable[[random.Random], int]:
    edges = (2 ** (bits - 1) - 1, -(2 ** (bits - 1)))
    return lambda rng: rng.choice(WHOLE if rng.random() < 0.9 else edges)


def _duration(bits: int) -> Callable[[random.Random], datetime.timedelta]:
    whole = _whole(min(bits, 40))
    return lambda rng: datetime.timedelta(milliseconds=whole(rng))


_PRIMITIVES: Mapping[str, Callable[[random.Random], Any]] = {
    "string": lambda rng: rng.choice(WORDS),
    "int8": _whole(8),
    "int16": _whole(16),
    "int32": _whole(32),
    "int64": _whole(64),
    "timedelta_i32": _duration(32),
    "timedelta_i64": _duration(64),
    "error_code": lambda rng: rng.choice(tuple(KafkaError)),
    "datetime_i64": lambda rng: datetime.datetime.fromtimestamp(rng.choice((0, 1, 10**9)), datetime.UTC),
    "bool": lambda rng: rng.random() < 0.5,
    "uuid": lambda rng: rng.choice((TOPIC_ID, TOPIC_ID, uuid.UUID(int=1))),
    "bytes": lambda rng: rng.randbytes(rng.choice((0, 1, 20))),
    "records": lambda rng: rng.choice((records(), records()[:40], b"")),
}


def _flip(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data)) if data else 0
    return data[:at] + bytes((rng.getrandbits(8),)) + data[at + 1 :]


def _edge(data: bytes, rng: random.Random) -> bytes:
    at, edge = rng.randint(0, len(data)), rng.choice(EDGES)
    return data[:at] + edge + data[at + len(edge) :]


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randint(0, len(data))]


def _insert(data: bytes, rng: random.Random) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + rng.randbytes(rng.choice((1, 2, 4, 40))) + data[at:]


def _remove(data: bytes, rng: random.Random) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + data[at + rng.choice((1, 2, 4)) :]


def _repeat(data: bytes, rng: random.Random) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + data[max(0, at - rng.choice((1, 4, 30))) :]


FAULTS: tuple[Callable[[bytes, random.Random], bytes], ...] = (_flip, _edge, _cut, _insert, _remove, _repeat)
