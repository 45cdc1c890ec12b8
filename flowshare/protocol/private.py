"""Flowshare's own API, key 32500: calls between flowshare's processes that Kafka's messages have no field for.

A request is a request header (v2) and the JSON object of a message's fields beside `call`, the name of the call. An
answer is a response header (v1) and the JSON object of the response's fields; `error` (Kafka's number) and `message`
refuse. ApiVersions names the key to flowshare's clients only, which so recognise flowshare's servers.

A call is declared below its two plain classes in `protocol.messages`, and nothing else is to be written for it:

    SHARE_PLACES = OwnCall("share_places", SharePlacesRequest, SharePlacesResponse, route=OF_GROUP,
                           rights=on_group(Operation.DESCRIBE))

The types of the fields are the bounds: `Text`, `Number` and `msgspec.Meta` limit what foreign bytes may cost. A field
that is left at its default is not sent; missing fields and those of another type refuse a message, unknown ones a
request: a newer server may tell more. An object within a field is sent whole, and what is unknown in it is passed over.
Named tuples are arrays, bytes are base64, and a type that JSON does not have is written as its `columns`, and made of
them.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, NamedTuple, TypeVar, cast, get_type_hints

import msgspec

from flowshare.protocol.compact import framed, head
from flowshare.protocol.declaration import ANY, Route
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.rights import Operation, ResourceType

M = TypeVar("M")
VERSION: Final = 0
NUMBER_MAX: Final = 1 << 62
TEXT_MAX: Final = 4_096
"""The most characters of any text in a request."""
LIST_MAX: Final = 10_000
"""The most topics, and partitions of a topic, that one request may name."""
REPLAY_HEADER: Final = "flowshare.dlq.replay"
"""The header of a replayed record of a parked key: `share.parking.Mark`."""
Number = Annotated[int, msgspec.Meta(ge=0, lt=NUMBER_MAX)]
NumberOrNone = Annotated[int, msgspec.Meta(ge=-1, lt=NUMBER_MAX)]
"""−1: none."""
Text = Annotated[str, msgspec.Meta(max_length=TEXT_MAX)]
Pair = tuple[Number, Number]

_RESPONSE: Final = struct.Struct(">iB")

Right = tuple[Operation, ResourceType, str]
May = Callable[[Operation, ResourceType, str], bool]
"""True if the peer has this right."""


class Form(NamedTuple):
    """A type on the wire for a field whose own type JSON does not have. write: makes it of the field's value. read:
    makes the value of it."""

    kind: Any
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _pairs(mapping: Mapping[Any, Any]) -> tuple[Any, ...]:
    return tuple(mapping.items())


PAIRS: Final[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = (_pairs, dict)
"""Writes and reads a mapping as pairs."""


@dataclass(frozen=True, slots=True, eq=False)
class OwnCall:
    """One of flowshare's own calls.

    rights: the rights that a request needs. shown: leaves out of an answer what the peer may not know. check: raises
    ValueError for a request of the right types that makes no sense. when: True for requests that are sent as this call;
    others are Kafka's. falls_back: True: a foreign broker is asked by Kafka's API instead; False: it is not asked.
    forms: fields of the request that are written as another type.
    """

    name: str
    request: type[Any]
    response: type[Any]
    route: Route = field(kw_only=True, default=ANY)
    rights: Callable[[Any], Iterable[Right]] = field(kw_only=True, default=lambda _: ())
    shown: Callable[[Any, May], Any] = field(kw_only=True, default=lambda answer, _: answer)
    check: Callable[[Any], object] = field(kw_only=True, default=lambda _: None)
    when: Callable[[Any], bool] = field(kw_only=True, default=lambda _: True)
    falls_back: bool = field(kw_only=True, default=False)
    forms: Mapping[str, Form] = field(kw_only=True, default_factory=dict[str, Form])

    def __post_init__(self) -> None:
        """Set the call of the request's class."""
        self.request.own = self


def on_group(operation: Operation) -> Callable[[Any], Iterable[Right]]:
    """Return the right to do `operation` on the request's group."""
    return lambda request: [(operation, ResourceType.GROUP, request.group_id)]


def on_group_and_topic(operation: Operation) -> Callable[[Any], Iterable[Right]]:
    """Return the rights to do `operation` on the request's group and on its topic, if it names one."""
    group = on_group(operation)
    return lambda request: [*group(request), *([(operation, ResourceType.TOPIC, request.topic)] * bool(request.topic))]


class AskedCall(NamedTuple):
    """A call from a socket, whose fields are not read yet."""

    name: str
    text: bytes


def encode_call(correlation_id: int, client_id: str, request: Any) -> bytes:
    """Return the frame of a call, its length included."""
    return framed([head(ApiKey.FLOWSHARE, VERSION, correlation_id, client_id), write(request)])


def decode_call(frame: bytes, position: int, version: int) -> AskedCall:
    """Read the name of the call whose body begins at `position`. Raises: DecodeError."""
    del version  # there is one
    text = frame[position:]
    return AskedCall(_decoded(_NAME, text, "a call of flowshare").call, text)


def encode_answer(correlation_id: int, version: int, answer: Any) -> bytes:
    """Return the frame of an answer, its length included."""
    del version
    return framed([_RESPONSE.pack(correlation_id, 0), write(answer)])


def decode_answer(frame: bytes, kind: type[M]) -> M:
    """Read the answer, a message of this class, in a frame without its length. Raises: DecodeError."""
    return read(kind, frame[_RESPONSE.size :])


def write(message: Any) -> bytes:
    """Return a message as JSON."""
    struct, _, forms, _ = _plan(message.__class__)
    fields = {name: getattr(message, name) for name in struct.__struct_fields__}
    for name, form in forms.items():
        fields[name] = form.write(fields[name])
    return _ENCODER.encode(struct(**fields))


def read(kind: type[M], text: bytes | str) -> M:
    """Read a message of this class. Raises: DecodeError, nothing else."""
    struct, decoder, forms, check = _plan(cast("Hashable", kind))
    found = _decoded(decoder, text, kind.__name__)
    fields = {name: getattr(found, name) for name in struct.__struct_fields__}
    try:
        for name, form in forms.items():
            fields[name] = form.read(fields[name])
        message = kind(**fields)
        check(message)
    except ValueError as error:
        raise DecodeError(f"{kind.__name__}: {error}") from None
    return message


def _decoded(decoder: msgspec.json.Decoder[M], text: bytes | str, about: str) -> M:
    try:
        return decoder.decode(text)
    except (ValueError, OverflowError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise DecodeError(f"{about} cannot be read: {error}") from None


class _Name(msgspec.Struct):
    call: Text


class _Plan(NamedTuple):
    """A message on the wire: a struct, as msgspec refuses unknown fields of structs only."""

    struct: type[msgspec.Struct]
    decoder: msgspec.json.Decoder[Any]
    forms: Mapping[str, Form]
    check: Callable[[Any], object]


@functools.cache
def _plan(kind: type[Any]) -> _Plan:
    hints = get_type_hints(kind, include_extras=True)
    own: OwnCall | None = getattr(kind, "own", None)
    forms, check = (own.forms, own.check) if own is not None else (dict[str, Form](), bool)
    tag: dict[str, Any] = {} if own is None else {"tag_field": "call", "tag": own.name}
    fields: list[tuple[str, Any, Any]] = []
    for one in dataclasses.fields(kind):
        hint = forms[one.name].kind if one.name in forms else hints[one.name]
        default = {
            name: value
            for name, value in (("default", one.default), ("default_factory", one.default_factory))
            if value is not dataclasses.MISSING
        }
        fields.append((one.name, hint, msgspec.field(**cast("Any", default))))
    strict = all(name != "error" for name, _, _ in fields)  # an answer has one
    struct = msgspec.defstruct(
        kind.__name__, fields, forbid_unknown_fields=strict, kw_only=True, omit_defaults=True, **tag
    )
    return _Plan(struct, msgspec.json.Decoder(struct, dec_hook=_made), forms, check)


def _told(value: Any) -> list[Any]:
    return list(getattr(value, "columns", value))  # an array has none


def _made(kind: Any, told: Any) -> Any:
    return array("q", told) if kind is array else kind(*told)


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_told)
_NAME: Final = msgspec.json.Decoder(_Name)
