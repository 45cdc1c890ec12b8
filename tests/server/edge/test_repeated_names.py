"""The same name many times is answered as if it stood there once, in every API that has a list."""

from __future__ import annotations

import dataclasses
import datetime
import types
import typing
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey, entity, read_response, request_start, write_request
from flowshare.protocol.messages import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    HeldRanges,
    OffsetCommitRequest,
    OffsetToCommit,
    ShareResumeRequest,
)
from flowshare.protocol.private import write
from flowshare.server.edge.base import AdvertisedNode, Peer, SocketCall
from flowshare.server.edge.table import endpoints, table
from flowshare.server.runtime.turns import Turns
from tests.server.edge.kit import batch, edge

pytestmark = pytest.mark.asyncio

TIMES = 40
NAME = "t"
BY_POSITION = {ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS}
"""Each part is answered at its place, so that one that stands there twice is answered twice: `edge.acls` bounds how
many there may be, and how much all of them mean together."""
OWN_FORM = {
    ApiKey.FLOWSHARE,
    ApiKey.FLOWSHARE_SETTLE,
    ApiKey.FLOWSHARE_FETCH,
    ApiKey.FLOWSHARE_COOPERATIVE_SETTLE,
}
"""Not Kafka's; `test_private_calls_take_a_partition_once` has it."""
WORDS: dict[str, Any] = {
    "acks": -1,
    "transactional_id": None,
    "member_id": "",
    "generation_id_or_member_epoch": -1,
    "records": batch(b"v"),
    "replica_id": -1,
    "max_bytes": 1_000,
    "partition_max_bytes": 1_000,
    "resource_type": 2,
    "configuration_keys": None,
    "count": 2,
    "num_partitions": 1,
    "replication_factor": 1,
    "session_epoch": 0,
    "cursor": None,
    "response_partition_limit": 100,
}


class Maker:
    """Requests in which every list has one part, the one at `path` as many as it is told."""

    def __init__(self, topic_id, path: tuple[str, ...] = (), times: int = 1) -> None:
        self._topic_id = topic_id
        self._path = path
        self._times = times

    def make(self, schema: Any, at: tuple[str, ...] = ()) -> Any:
        """An entity of one of kio's classes."""
        hints = typing.get_type_hints(schema)
        return schema(
            **{
                field.name: self._value(hints[field.name], field, (*at, field.name))
                for field in dataclasses.fields(schema)
            }
        )

    def _value(self, hint: Any, field: dataclasses.Field[Any], at: tuple[str, ...]) -> Any:
        if at != self._path and field.name in WORDS and fits(WORDS[field.name], hint):
            return WORDS[field.name]
        part = listed(hint)
        kind = field.metadata.get("kafka_type", "")
        if part is not None:
            one = self.make(part, at) if not kind else self._single(kind)
            return (one,) * (self._times if at == self._path else 1)
        plain = without_none(hint)
        return self.make(plain, at) if not kind else self._single(kind)

    def _single(self, kind: str) -> Any:
        if kind == "uuid":
            return self._topic_id
        if kind == "error_code":
            raise AssertionError("no request has an error")
        if kind.startswith("timedelta"):
            return datetime.timedelta()
        return {"string": NAME, "bytes": b"", "records": b"", "bool": False, "float64": 0.0}.get(kind, 0)


def fits(word: Any, hint: Any) -> bool:
    """True if a field may have the value: not all versions let one be None."""
    return word is not None or isinstance(hint, types.UnionType)


def without_none(hint: Any) -> Any:
    """The type that is not None."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    (plain,) = (option for option in options if option is not type(None))
    return plain


def listed(hint: Any) -> Any:
    """Return the type of a list's parts; None: the type is no list."""
    plain = without_none(hint)
    return without_none(typing.get_args(plain)[0]) if typing.get_origin(plain) is tuple else None


def lists(schema: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where the lists of a request are."""
    hints = typing.get_type_hints(schema)
    for field in dataclasses.fields(schema):
        part, here = listed(hints[field.name]), (*at, field.name)
        if part is not None:
            yield here
        inner = part if part is not None else without_none(hints[field.name])
        if not field.metadata.get("kafka_type", "") and dataclasses.is_dataclass(inner):
            yield from lists(inner, here)


def parts(answer: Any) -> int:
    """Elements of all lists of an answer, however deep."""
    if isinstance(answer, tuple):
        return len(answer) + sum(parts(one) for one in answer)
    if dataclasses.is_dataclass(answer):
        return sum(parts(getattr(answer, field.name)) for field in dataclasses.fields(answer))
    return 0


async def something_to_tell(e) -> Any:
    """A topic, and a group with an offset, of the one name that all requests have; the topic's id."""
    topic_id = await e.topic(NAME)
    offset = OffsetToCommit(NAME, 0, 0, -1, "")
    await e.admin.send(OffsetCommitRequest(group_id=NAME, offsets=(offset,), version=2))
    return topic_id


def kafkas() -> list[tuple[ApiKey, int]]:
    """All of Kafka's APIs that are served and have lists, in their lowest and highest version."""
    found = []
    for key, api in table(endpoints(clock=None)).items():
        for version in sorted(set(api.versions)):
            if key not in BY_POSITION | OWN_FORM and any(lists(entity(api.key.name.lower(), version, "request"))):
                found.append((api.key, version))
    return found


@pytest.mark.parametrize(("key", "version"), kafkas(), ids=lambda one: getattr(one, "name", f"v{one}").lower())
async def test_what_stands_in_a_request_many_times_is_answered_as_if_it_stood_there_once(key, version):
    name = key.name.lower()
    schema = entity(name, version, "request")
    async with edge() as e:
        topic_id = await something_to_tell(e)
        endpoint = e.listener.endpoints[key]

        async def answered(maker: Maker) -> Any:
            frame = write_request(1, "c", maker.make(schema))[4:]
            _, request = endpoint.read(request_start(frame), frame)
            connection = e.server.connect(client_id="c")
            peer = Peer(
                server=e.server,
                connection=connection,
                node=AdvertisedNode(host="h", port=1),
                host="h",
                turns=Turns(e.server.clock),
            )
            answer = await endpoint.answer(SocketCall(peer=peer, version=version, client_id="c", request=request))
            await connection.close()
            return read_response(name, version, endpoint.write(1, version, answer)[4:])[1]

        for path in lists(schema):
            once = parts(await answered(Maker(topic_id, path)))
            often = parts(await answered(Maker(topic_id, path, TIMES)))
            assert often <= once + 2, f"{'.'.join(path)} {TIMES} times: {often} parts instead of {once}"


async def test_private_calls_take_a_partition_once():
    async with edge() as e:
        topic_id = await something_to_tell(e)
        sent = []

        async def send(request):
            sent.append(request)
            return DescribeShareGroupOffsetsResponse()

        connection, turns = SimpleNamespace(send=send), Turns(e.server.clock)
        peer = SimpleNamespace(connection=connection, may=lambda *_: True, need=lambda *_: None, turns=turns)
        api = e.listener.endpoints[ApiKey.FLOWSHARE]

        async def ask(request) -> ErrorCode:
            asked = api.decode(write(request), 0, 0)
            return (await api.answer(SocketCall(peer=peer, version=0, client_id="c", request=asked))).error

        assert await ask(DescribeShareGroupOffsetsRequest(group_id="g", topics={NAME: (0,) * TIMES})) is ErrorCode.NONE
        assert sent[0].topics == {NAME: (0,)}
        held = HeldRanges(topic_id, 0, ((0, 1),))
        twice = ShareResumeRequest(group_id="g", member_id="m", partitions=(held, held))
        assert await ask(twice) is ErrorCode.INVALID_REQUEST
        assert len(sent) == 1
