"""Endpoints that read requests and write answers by the API's declaration; a handler only answers.

A handler answers one plain request at a time. A wire request may be many plain ones (`declaration.One`): each is
answered once, even if it stands there twice; the last counts, as in Kafka. Other work runs between (`Turns`), and an
answer that gets too large tells only the error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from flowshare.protocol import messages, translation
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.rights import CLUSTER_NAME
from flowshare.protocol.translation import EntityReader, EntityWriter
from flowshare.server.edge.base import Endpoint
from flowshare.server.edge.entities import counted
from flowshare.server.runtime import answers
from flowshare.server.runtime.failures import refusal, refusing

if TYPE_CHECKING:
    from flowshare.protocol.declaration import Api
    from flowshare.protocol.rights import NeededRight
    from flowshare.server.edge.base import SocketCall
    from flowshare.server.runtime.failures import Refused
    from flowshare.server.runtime.turns import Turns

Answer = Callable[["SocketCall", Any], Awaitable[Any]]
"""(call, plain request) -> plain answer, or an object with its fields."""
Fields = dict[Any, Any]


def derived(api: Api, answer: Answer, *, twice: str | None = None, joined: bool = False) -> Endpoint:
    """Return an endpoint for a handler; its refusals become answers.

    twice: the error's text for a part that stands in a request twice; None: the last counts, or, where parts are
    `joined`, all parts about one thing together.
    """
    assert api.response is not None
    return Endpoint(api, partial(_respond, api, refusing(api.response)(answer), twice, joined))


async def _respond(api: Api, answer: Answer, twice: str | None, joined: bool, call: SocketCall) -> Any:
    read, write = (translation.reader(api, call.version, "request"), translation.writer(api, call.version, "response"))
    common = await fields_of(call.peer.turns, read, call.request)
    if read.one is None:
        assert api.request is not None
        return await entity_of(call.peer.turns, write, await answer(call, api.request(**common)), common)
    each = _Each(api, answer, call, twice, joined)
    name, (_, part) = _one_of(write), read.one
    if isinstance(part, EntityReader) and part.one is not None:
        elements = tuple(await each.below(read, write, common))
    else:
        elements = await each.all(read, write, call.request, common)
    return counted(write.schema, {**write.short(counted, None, common), name: elements})


def handed_on() -> tuple[Endpoint, ...]:
    """Return endpoints generated from declarations alone: check `api.right`, then forward."""
    return tuple(derived(api, partial(_hand_on, api.right)) for api in messages.apis() if api.right is not None)


async def _hand_on(right: NeededRight, call: SocketCall, request: Any) -> Any:
    operation, resource, field = right
    call.peer.need(operation, resource, CLUSTER_NAME if field is None else getattr(request, field))
    return await call.peer.connection.send(request)


class _Each:
    """Answers the plain requests that make up one wire request."""

    def __init__(self, api: Api, answer: Answer, call: SocketCall, twice: str | None, joined: bool) -> None:
        self._api = api
        self._answer = answer
        self._call = call
        self._twice = twice
        self._joined = joined

    async def below(self, read: EntityReader, write: EntityWriter, common: Fields) -> list[Any]:
        """Return elements of elements: partitions below their topics."""
        assert read.one is not None
        array, outer = read.one
        writer = _part_of(write)
        assert isinstance(outer, EntityReader)
        topics: dict[Any, tuple[Fields, dict[Any, Any], set[Any]]] = {}
        for one in array(self._call.request) or ():
            fields = outer.short(one)
            named = topics.setdefault(_key(writer, fields), (fields, {}, set()))
            await self._gather(outer, writer, one, named[1], named[2])
        elements: list[Any] = []
        for fields, parts, twice in topics.values():
            made = await self._elements(outer, writer, parts, twice, {**common, **fields})
            elements.append(counted(writer.schema, {**writer.short(counted, None, fields), _one_of(writer): made}))
        return elements

    async def all(self, read: EntityReader, write: EntityWriter, whole: Any, common: Fields) -> tuple[Any, ...]:
        """Return elements of an entity."""
        parts: dict[Any, Any] = {}
        twice: set[Any] = set()
        await self._gather(read, write, whole, parts, twice)
        return await self._elements(read, write, parts, twice, common)

    async def _gather(
        self, read: EntityReader, write: EntityWriter, whole: Any, parts: dict[Any, Any], twice: set[Any]
    ) -> None:
        """Gather an array's elements by the fields that the answer repeats. Later requests wait meanwhile."""
        assert read.one is not None
        array, part = read.one
        writer = _part_of(write)
        async for some in self._call.peer.turns.few(array(whole) or ()):
            for one in some:
                key = one if isinstance(part, str) else _key(writer, part.short(one))
                earlier = parts.get(key)
                if earlier is not None:
                    twice.add(key)
                parts[key] = (*earlier, one) if earlier is not None and self._joined else (one,)

    async def _elements(
        self, read: EntityReader, write: EntityWriter, parts: Mapping[Any, Any], twice: set[Any], common: Fields
    ) -> tuple[Any, ...]:
        assert read.one is not None
        turns, part, writer = self._call.peer.turns, read.one[1], _part_of(write)
        elements: list[Any] = []
        for key, same in parts.items():
            await turns.take()
            fields = dict(common)
            for one in same:
                own = {part: one} if isinstance(part, str) else await fields_of(turns, part, one)
                fields = {**fields, **own} if one is same[0] else _join(part, fields, own)
            if self._twice is not None and key in twice:
                answer = self._api.response(error=ErrorCode.INVALID_REQUEST, message=self._twice)  # type: ignore[misc]
            else:
                answer = await self._answer(self._call, self._api.request(**fields))  # type: ignore[misc]
            told = partial(entity_of, turns, writer, answer, fields)
            elements.append(await answers.space().fitting(told, partial(self._refused, writer, fields)))
        return tuple(elements)

    def _refused(self, writer: EntityWriter, fields: Fields, error: Refused) -> Any:
        assert self._api.response is not None
        return writer.all(counted, refusal(self._api.response, error), fields)


def _one_of(write: EntityWriter) -> str:
    assert write.one is not None
    return write.one[0]


def _part_of(write: EntityWriter) -> EntityWriter:
    assert write.one is not None
    part = write.one[1]
    assert isinstance(part, EntityWriter)
    return part


def _join(read: EntityReader | str, fields: Fields, more: Fields) -> Fields:
    """Join the fields of two elements about the same thing: the rows of both; None stands for all rows."""
    joined = dict(fields)
    for name, rows in read.rows.items() if isinstance(read, EntityReader) else ():
        both = (joined[name], more[name])
        if None in both:
            joined[name] = None
        else:
            joined[name] = rows.together([row for some in both for row in _rows(some)])
    return joined


def _rows(rows: Any) -> Iterable[Any]:
    return rows.items() if rows.__class__ is dict else rows


def _key(write: EntityWriter, fields: Fields) -> Any:
    return tuple([fields[name] for name in write.keys])


async def fields_of(turns: Turns, read: EntityReader, whole: Any) -> Fields:
    """Return the plain values of an entity, long arrays read in turns."""
    found = read.short(whole)
    for name, rows in read.rows.items():
        array = rows.array(whole)
        if array is None:
            found[name] = None
            continue
        taken: list[Any] = []
        async for some in turns.few(row for one in array for row in rows.each(one)):
            taken += some
        found[name] = rows.together(taken)
    return found


async def entity_of(turns: Turns, write: EntityWriter, answer: Any, asked: Mapping[Any, Any]) -> Any:
    """Return the entity of a plain answer, long arrays written in turns. Raises: AnswerTooLarge."""
    values = write.short(counted, answer, asked)
    for name, of in write.rows.items():
        rows, key, together = of.rows(answer), of.key, of.together
        if rows is None:
            values[name] = None
        elif key is None or together is None:
            values[name] = await turns.each(partial(of.row, counted), rows)
        else:
            found: dict[Any, tuple[Any, list[Any]]] = {}
            async for some in turns.few(rows):
                for row in some:
                    found.setdefault(key(row), (row, []))[1].append(of.row(counted, row))
            values[name] = await turns.each(partial(_together, together), tuple(found.values()))
    return counted(write.schema, values)


def _together(make: Callable[..., Any], rows: tuple[Any, list[Any]]) -> Any:
    return make(counted, rows[0], tuple(rows[1]))
