"""Translates between plain messages and kio's entities, by an API's declaration.

A declaration is compiled once for each version and side, at its first use. Long arrays are separate from the other
fields (`rows`), so that a server can read and write them piece by piece and let other tasks run between.
"""

from __future__ import annotations

import datetime
import functools
import operator
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from flowshare.protocol.declaration import Array, Coded, Each, Fixed, Inside, Key, One, Parts, Via
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import Side, entity
from flowshare.protocol.walk import without_none

if typing.TYPE_CHECKING:
    from flowshare.protocol.declaration import Api, Path, Shape

Make = Callable[[Any, dict[str, Any]], Any]
"""Makes an entity from (kio's class, values of its fields)."""
Get = Callable[[Any], Any]

NO_TIME: Final = datetime.timedelta()
MS: Final = datetime.timedelta(milliseconds=1)
START: Final = datetime.datetime.fromtimestamp(0, datetime.UTC)
MS_MAX: Final = 2**31 - 1
LEFT_OUT: Final = "the answer leaves out what was asked for"


def build(schema: Any, values: dict[str, Any]) -> Any:
    """Make an entity: the simplest `Make`."""
    return schema(**values)


# --- single values ----------------------------------------------------------------------------------------------------


@functools.cache
def kafka_error(code: ErrorCode) -> Any:
    """Return kio's error for ours."""
    from kio.schema.errors import ErrorCode as KafkaError

    return KafkaError(int(code))


def known_error(number: Any) -> ErrorCode:
    """Return our error for a number; an unknown number becomes UNKNOWN_SERVER_ERROR."""
    return ErrorCode.known(int(number))


def duration(duration_ms: int) -> datetime.timedelta:
    """Return a duration as kio writes it; it has 31 bits of milliseconds."""
    return datetime.timedelta(milliseconds=min(duration_ms, MS_MAX))


def milliseconds(length: datetime.timedelta) -> int:
    """Return the milliseconds of a duration that kio read."""
    return length // MS


_TO_KIO: Final[Mapping[str, Get]] = {
    "error_code": kafka_error,
    "timedelta_i32": duration,
    "timedelta_i64": duration,
    "datetime_i64": lambda ms: START + datetime.timedelta(milliseconds=ms),
}
_FROM_KIO: Final[Mapping[str, Get]] = {
    "error_code": known_error,
    "timedelta_i32": milliseconds,
    "timedelta_i64": milliseconds,
    "datetime_i64": lambda when: (when - START) // MS,
    "bytes": bytes,
}
_EMPTY: Final[Mapping[str, Any]] = {"string": "", "bytes": b""}
"""The value that stands for None in versions without null, by type."""


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of kio's: its type on the wire, the class of its entities, and its form."""

    kind: str
    entity: Any
    nullable: bool
    array: bool


@functools.cache
def _fields(schema: Any) -> Mapping[str, _Field]:
    hints = typing.get_type_hints(schema)
    return {one.name: _field(hints[one.name], one.metadata.get("kafka_type", "")) for one in fields(schema)}


def _field(hint: Any, kind: str) -> _Field:
    nullable, hint = without_none(hint)
    array = typing.get_origin(hint) is tuple
    return _Field(kind, typing.get_args(hint)[0] if array else hint, nullable, array)


USUAL: Final[Mapping[str, str]] = {
    "error_code": "error",
    "error_message": "message",
    "group_instance_id": "instance_id",
    "name": "topic",
    "partition_index": "partition",
    "topic_name": "topic",
}
"""Usual renamings: kio's field name -> the plain field's name. Other fields keep kio's name."""


@dataclass(frozen=True, slots=True)
class PlainNames:
    """Names of plain fields: of the object that is written or read, and of the request that it answers."""

    own: frozenset[str]
    asked: frozenset[str] = frozenset()


def _plain(make: Any, asked: Any = None) -> PlainNames:
    return PlainNames(_names(make), _names(asked))


def _names(make: Any) -> frozenset[str]:
    make = getattr(make, "func", make)
    return frozenset(getattr(make, "__dataclass_fields__", ())) | frozenset(getattr(make, "_fields", ()))


def _completed(known: Mapping[str, _Field], shape: Shape, plain: PlainNames) -> Shape:
    """Add the undeclared fields to a shape: those with the same name or a usual one."""
    found = dict(shape)
    said = set[str]()
    for names, part in shape.items():
        said.update(names if isinstance(part, Parts) else (names,))
    for name, of in known.items():
        if name in said or not of.kind:
            continue
        for path in (name, USUAL.get(name, name), f"{name}_ms"):
            if path in plain.own or path in plain.asked:
                found[name] = path if path in plain.own else Key(path)
                break
    return found


def _there(known: Mapping[str, _Field], shape: Shape, plain: PlainNames) -> list[tuple[Any, Any]]:
    """Return the parts of a shape that a version has."""
    shape = _completed(known, shape, plain)

    def has(names: Any, part: Any) -> bool:
        return all(name in known for name in names) if isinstance(part, Parts) else names in known

    return [(names, part) for names, part in shape.items() if has(names, part)]


def _getter(path: Path) -> Get:
    if isinstance(path, str):
        return operator.attrgetter(path)
    if isinstance(path, int):
        return operator.itemgetter(path)
    steps = tuple(map(_getter, path))
    return lambda plain: functools.reduce(lambda found, step: step(found), steps, plain)


# --- writing ----------------------------------------------------------------------------------------------------------

Write = Callable[[Make, Any, Any], Any]
"""Writes (make, plain object, fields of the request that it answers) -> value of a field."""


@dataclass(frozen=True, slots=True)
class RowWriter:
    """Writes an array of entities: each row by `row`; with `key`, rows with the same key are joined by `together`."""

    rows: Get
    """Plain object -> its rows; None: null."""
    row: Callable[[Make, Any], Any]
    key: Get | None = None
    together: Callable[[Make, Any, tuple[Any, ...]], Any] | None = None
    """Makes an entity from (make, the first row, the results of `row` for all)."""

    def all(self, make: Make, plain: Any) -> tuple[Any, ...] | None:
        """Return the whole array."""
        rows = self.rows(plain)
        if rows is None:
            return None
        if self.key is None or self.together is None:
            return tuple([self.row(make, row) for row in rows])
        found: dict[Any, tuple[Any, list[Any]]] = {}
        for row in rows:
            found.setdefault(self.key(row), (row, []))[1].append(self.row(make, row))
        return tuple([self.together(make, first, tuple(parts)) for first, parts in found.values()])


@dataclass(frozen=True, slots=True)
class EntityWriter:
    """Writes one kind of entity.

    rows: its long arrays. one: the array of which a message is about one element. parts: fields that are read from the
    plain object together.
    """

    schema: Any
    values: Mapping[str, Write]
    rows: Mapping[str, RowWriter]
    one: tuple[str, EntityWriter | Get] | None = None
    keys: tuple[str, ...] = ()
    """Fields of the request that the entity repeats."""
    parts: tuple[tuple[tuple[str, ...], Get], ...] = ()

    def short(self, make: Make, plain: Any, asked: Any) -> dict[str, Any]:
        """Return the values of all fields but `rows` and `one`."""
        found: dict[str, Any] = {}
        for names, get in self.parts:
            found.update(zip(names, get(plain), strict=True))
        for name, write in self.values.items():
            found[name] = write(make, plain, asked)
        return found

    def all(self, make: Make, plain: Any, asked: Any = None) -> Any:
        """Return the entity about one plain object."""
        found = self.short(make, plain, asked)
        for name, rows in self.rows.items():
            found[name] = rows.all(make, plain)
        if self.one is not None:
            name, part = self.one
            found[name] = (part.all(make, plain, asked) if isinstance(part, EntityWriter) else part(plain),)
        return make(self.schema, found)


def _writer(schema: Any, shape: Shape, plain: PlainNames) -> EntityWriter:
    values: dict[str, Write] = {}
    rows: dict[str, RowWriter] = {}
    parts: list[tuple[tuple[str, ...], Get]] = []
    known, one = _fields(schema), None
    if "throttle_time" in known:
        values["throttle_time"] = _always(NO_TIME)
    for name, part in _there(known, shape, plain):
        if isinstance(part, Parts):
            parts.append((name, _getter(part.path)))
        elif isinstance(part, One):
            inner = part.shape
            one = name, _getter(inner) if isinstance(inner, str) else _writer(known[name].entity, inner, plain)
        elif isinstance(part, Array):
            rows[name] = _row_writer(known[name].entity, part)
        else:
            values[name] = _value_writer(known[name], part, plain)
    same = {name: path for name, path in _there(known, shape, plain) if isinstance(path, str) and _is_same(known[name])}
    if len(same) > 1:
        parts.append((tuple(same), operator.attrgetter(*same.values())))
        values = {name: write for name, write in values.items() if name not in same}
    keys = tuple(part.asked for _, part in _there(known, shape, plain) if isinstance(part, Key))
    return EntityWriter(schema, values, rows, one, keys, tuple(parts))


def _always(value: Any) -> Write:
    return lambda _make, _plain, _asked: value


def _value_writer(of: _Field, part: Any, plain: PlainNames) -> Write:
    match part:
        case Fixed(value):
            return _always(_converter(of, _TO_KIO)(value))
        case Inside(shape, null_without):
            inner = _writer(of.entity, shape, plain)
            present = None if null_without is None else _getter(null_without)
            return lambda make, one, asked: (
                None if present is not None and present(one) is None else inner.all(make, one, asked)
            )
        case Key(name, _, codes):
            convert = _converter(of, _TO_KIO) if codes is None else codes.__getitem__
            return lambda _make, _plain, asked: convert(asked[name])
        case Coded(path, codes):
            get = _getter(path)
            return lambda _make, one, _asked: codes[get(one)]
        case Via(path, write):
            get = _getter(path)
            return lambda _make, one, _asked: write(get(one))
        case path:
            get, convert = _getter(path), _converter(of, _TO_KIO)
            if convert is _same:
                return lambda _make, one, _asked: get(one)
            return lambda _make, one, _asked: convert(get(one))


def _is_same(of: _Field) -> bool:
    """True if plain values of this field are written unchanged."""
    return _converter(of, _TO_KIO) is _same


def _same(value: Any) -> Any:
    return value


def _converter(of: _Field, by_kind: Mapping[str, Get]) -> Get:
    """Return the function that converts a field's values: plain to kio's, or the other way round (`by_kind`)."""
    convert = by_kind.get(of.kind)
    if of.array:
        return lambda value: None if value is None else tuple(map(convert, value) if convert else value)
    if convert is None:
        empty = _EMPTY.get(of.kind)
        if by_kind is _TO_KIO and not of.nullable and empty is not None:
            return lambda value: empty if value is None else value
        return _same
    return lambda value: value if value is None else convert(value)


def _row_writer(schema: Any, part: Array) -> RowWriter:
    rows = _getter(part.path)
    if part.make is dict:
        pairs = rows

        def items(plain: Any) -> Any:
            found = pairs(plain)
            return None if found is None else found.items()

        rows = items
    of_row = _plain(part.make)
    inner = next(((name, one) for name, one in part.shape.items() if isinstance(one, Each)), None)
    if inner is None:
        writer = _writer(schema, part.shape, of_row)
        return RowWriter(rows, lambda make, row: writer.all(make, row))
    at, each = inner
    common = {name: one for name, one in part.shape.items() if name != at}
    outer = _writer(schema, common, of_row)
    keys = [_getter(path) for path in _paths(_there(_fields(schema), common, of_row))]

    def key(row: Any) -> Any:
        return tuple([get(row) for get in keys])

    def together(make: Make, first: Any, made: tuple[Any, ...]) -> Any:
        return make(schema, {**outer.short(make, first, None), at: made})

    if isinstance(each.shape, Mapping):
        element = _writer(_fields(schema)[at].entity, each.shape, of_row)
        return RowWriter(rows, lambda make, row: element.all(make, row), key, together)
    get = _getter(each.shape)
    return RowWriter(rows, lambda _, row: get(row), key, together)


def _paths(parts: list[tuple[Any, Any]]) -> list[Path]:
    return [part for _, part in parts if part.__class__ in (str, int, tuple)]


# --- reading ----------------------------------------------------------------------------------------------------------

Read = Callable[[Any], Any]
"""Entity -> plain value."""


@dataclass(frozen=True, slots=True)
class RowReader:
    """Reads an array of entities; `each` makes the plain objects of one entity."""

    array: Get
    each: Callable[[Any], Iterable[Any]]
    make: Callable[..., Any]

    def all(self, whole: Any) -> Any:
        """Return all rows; None: the array is null."""
        array = self.array(whole)
        if array is None:
            return None
        return self.together(row for one in array for row in self.each(one))

    def together(self, rows: Iterable[Any]) -> Any:
        """Gather the rows into the plain message's collection; in a mapping, lists under one key are joined."""
        if self.make is not dict:
            return tuple(rows)
        found: dict[Any, Any] = {}
        for key, value in rows:
            found[key] = found[key] + value if isinstance(value, tuple) and key in found else value
        return found


@dataclass(frozen=True, slots=True)
class EntityReader:
    """Reads one kind of entity. values: plain fields. keys: fields that identify the request."""

    values: Mapping[Any, Read]
    rows: Mapping[str, RowReader]
    keys: Mapping[str, Read]
    one: tuple[Get, EntityReader | str] | None = None

    def short(self, whole: Any) -> dict[Any, Any]:
        """Return the plain values of all fields but `rows` and `one`."""
        return {name: read(whole) for name, read in self.values.items()}

    def fields(self, whole: Any) -> dict[Any, Any]:
        """Return the plain values of all fields but `one`."""
        found = self.short(whole)
        for name, rows in self.rows.items():
            found[name] = rows.all(whole)
        return found

    def about(self, whole: Any, request: Any) -> dict[Any, Any] | None:
        """Return the plain values of the part that answers this request; None: no part does."""
        if any(read(whole) != getattr(request, name) for name, read in self.keys.items()):
            return None
        if self.one is None:
            return self.fields(whole)
        array, part = self.one
        assert isinstance(part, EntityReader), "an answer's parts are entities"
        for found in (part.about(one, request) for one in array(whole)):
            if found is not None:
                return self.fields(whole) | found
        return None


def _reader(schema: Any, shape: Shape, plain: PlainNames) -> EntityReader:
    values: dict[Any, Read] = {}
    rows: dict[str, RowReader] = {}
    keys: dict[str, Read] = {}
    known, one = _fields(schema), None
    for name, part in _there(known, shape, plain):
        match part:
            case Fixed():
                pass
            case Parts(path, make):
                values[path] = _parts_reader(operator.attrgetter(*name), make)
            case Key(asked, copy, codes):
                keys[asked] = read = _value_reader(name, known[name], asked if codes is None else Coded(asked, codes))
                if copy is not None:
                    values[copy] = read
            case One(inner):
                one = (
                    operator.attrgetter(name),
                    inner if isinstance(inner, str) else _reader(known[name].entity, inner, plain),
                )
            case Array(path, make):
                rows[typing.cast("str", path)] = _row_reader(name, known[name].entity, part)
            case Inside(inner):
                values |= _inside_reader(operator.attrgetter(name), _reader(known[name].entity, inner, plain))
            case Via(path) | Coded(path) | path:
                values[path] = _value_reader(name, known[name], part)
    return EntityReader(values, rows, keys, one)


def _parts_reader(get: Get, make: Callable[..., Any]) -> Read:
    return lambda whole: make(*get(whole))


def _inside_reader(get: Get, of: EntityReader) -> dict[Any, Read]:
    def within(read: Read) -> Read:
        def found(whole: Any) -> Any:
            inside = get(whole)
            return None if inside is None else read(inside)

        return found

    found: dict[Any, Read] = {**of.values, **{at: rows.all for at, rows in of.rows.items()}}
    return {at: within(read) for at, read in found.items()}


def _value_reader(name: str, of: _Field, part: Any) -> Read:
    get = operator.attrgetter(name)
    match part:
        case Coded(_, codes, other):
            plain = {number: value for value, number in codes.items()}
            return lambda whole: plain.get(get(whole), other)
        case Via(_, _, read):
            return lambda whole: read(get(whole))
        case _:
            convert = _converter(of, _FROM_KIO)
            if name == "error_message":
                return lambda whole: get(whole) or None
            return get if convert is _same else lambda whole: convert(get(whole))


def _row_reader(name: str, schema: Any, part: Array) -> RowReader:
    array, make = operator.attrgetter(name), part.make
    build_row = _row_maker(make)
    of_row = _plain(make)
    inner = next(((at, one.shape) for at, one in part.shape.items() if isinstance(one, Each)), None)
    if inner is None:
        reader = _reader(schema, part.shape, of_row)
        return RowReader(array, lambda one: (build_row(reader.fields(one)),), make)
    at, shape = inner
    outer = _reader(schema, {key: one for key, one in part.shape.items() if key != at}, of_row)
    parts = operator.attrgetter(at)
    if isinstance(shape, Mapping):
        element = _reader(_fields(schema)[at].entity, shape, of_row)

        def each(one: Any) -> Iterable[Any]:
            common = outer.fields(one)
            return (build_row({**common, **element.fields(inside)}) for inside in parts(one))

    else:

        def each(one: Any) -> Iterable[Any]:
            common = outer.fields(one)
            return (build_row({**common, shape: inside}) for inside in parts(one))

    return RowReader(array, each, make)


def _row_maker(make: Callable[..., Any]) -> Callable[[dict[Any, Any]], Any]:
    """Return the function that makes a row from its values by path."""
    if make is str:
        return lambda values: values[()]
    if make in (dict, tuple):
        return _nested
    return lambda values: make(**values)


def _nested(values: dict[Any, Any]) -> tuple[Any, ...]:
    """Build a tuple from values by place, or by place within a place."""
    inner: dict[int, list[Any]] = {}
    found: dict[int, Any] = {}
    for path, value in values.items():
        if isinstance(path, tuple):
            inner.setdefault(typing.cast("tuple[int, ...]", path)[0], []).append(value)
        else:
            found[path] = value
    found.update((at, tuple(some)) for at, some in inner.items())
    return tuple([found[at] for at in sorted(found)])


# --- whole messages ---------------------------------------------------------------------------------------------------


def _plain_of(api: Api, side: Side) -> PlainNames:
    return _plain(api.request) if side == "request" else _plain(api.response, api.request)


@functools.cache
def writer(api: Api, version: int, side: Side) -> EntityWriter:
    """Return the writer of a side of the API. Raises: ImportError when kio has no such version."""
    shape = api.request_shape if side == "request" else api.response_shape
    assert shape is not None, f"{api.name} is written by hand"
    return _writer(entity(api.name, version, side), shape, _plain_of(api, side))


@functools.cache
def reader(api: Api, version: int, side: Side) -> EntityReader:
    """Return the reader of a side of the API. Raises: ImportError when kio has no such version."""
    shape = api.request_shape if side == "request" else api.response_shape
    assert shape is not None, f"{api.name} is read by hand"
    return _reader(entity(api.name, version, side), shape, _plain_of(api, side))


def read_answer(api: Api, response: Any, request: Any) -> Any:
    """Return the plain answer to a plain request from kio's response."""
    assert api.response is not None
    of = reader(api, response.__version__, "response")
    found = of.about(response, request)
    if found is not None:
        return api.response(**found)
    return api.response(error=ErrorCode.UNKNOWN_SERVER_ERROR, message=LEFT_OUT, **_copied(of, request))


def _copied(of: EntityReader, request: Any) -> dict[Any, Any]:
    """Return the fields of the request that the answer repeats."""
    found: dict[Any, Any] = {}
    while True:
        found |= {
            copy: getattr(request, asked)
            for asked, read in of.keys.items()
            for copy, other in of.values.items()
            if other is read
        }
        if of.one is None or not isinstance(of.one[1], EntityReader):
            return found
        of = of.one[1]
