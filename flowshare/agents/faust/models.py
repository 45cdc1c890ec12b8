"""A topic's keys and values in bytes: which type and serializer go together, and what is held against them when sent.

| first codec of the serializer | types that go with it |
|---|---|
| none | those of `values` |
| `json`, `yaml` | the same without bytes, which they cannot carry |
| `raw`, `binary` | bytes, str |
| `pickle…`, others | any; an object that was pickled is taken as it is |
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import isfinite
from typing import Any, Final

import faust
import orjson
from faust.serializers import codecs

from flowshare.agents.errors import AnnotationError, OptionError, Unencodable
from flowshare.agents.texts import said, shown
from flowshare.agents.values import Decoder, converter, decoder, describe, strip_none

_PLAIN: Final = (bytes, str, int, bool)
"""Types whose values fit them, where no serializer comes between."""


def check_declared(topic: str, what: str, typ: Any, serializer: Any) -> None:
    """See whether a topic's type and serializer can go together; `what` is "key" or "value". Raises: OptionError."""
    if serializer is None:
        return
    check_serializer(topic, what, serializer)
    inner = strip_none(typ)[0]
    if typ is None or isinstance(typ, str) or inner is Any:
        return
    first = codecs.get_codec(serializer)
    refused = f"topic {topic!r}: {what}_serializer={serializer!r} does not go with {what}_type={describe(typ)}: "
    if isinstance(first, codecs.raw | codecs.binary) and inner not in (bytes, str):
        raise OptionError(refused + "it carries bytes and str only; leave it out, or use 'json'")
    if isinstance(first, codecs.json | codecs.yaml) and inner is bytes:
        raise OptionError(refused + "it cannot carry bytes; leave it out, or use 'raw' or 'binary'")
    try:
        decoder_for(typ, serializer)
    except AnnotationError as error:
        raise OptionError(refused + str(error)) from None


def check_serializer(topic: str, what: str, serializer: Any) -> None:
    """Raises: OptionError when it is no codec of Faust's, nor names of some with `|` between."""
    codecs.get_codec("json")  # loads those of other packages
    nodes = serializer.split("|") if isinstance(serializer, str) else []
    if isinstance(serializer, codecs.Codec) or (nodes and all(node in codecs.codecs for node in nodes)):
        return
    wrong = next((node for node in nodes if node not in codecs.codecs), serializer)
    raise OptionError(
        f"topic {topic!r}: {what}_serializer={serializer!r}: there is no codec {wrong!r}. Known are "
        f"{', '.join(sorted(codecs.codecs))}; register your own before (faust.serializers.codecs.register)"
    )


def decoder_for(annotation: Any, serializer: Any) -> Decoder | None:
    """The decoder for an annotation of what a serializer (None: none) has encoded; None: the bytes themselves.

    Raises: AnnotationError when none can be made.
    """
    if serializer is None:
        return decoder(annotation)
    inner, optional = strip_none(annotation)
    load, convert = _loading(inner, serializer)

    def decode(raw: Any) -> Any:
        value = None if raw is None else load(raw)
        if value is None and optional:
            return None
        if raw is None:
            raise ValueError("null")
        return convert(value)

    return decode


def _loading(inner: Any, serializer: Any) -> tuple[Callable[[bytes], Any], Callable[[Any], Any]]:
    if isinstance(inner, type) and issubclass(inner, faust.Record):
        record: Any = inner
        return (lambda raw: record.loads(raw, serializer=serializer)), lambda value: value
    codec = codecs.get_codec(serializer)
    if inner is bytes:
        return codec.loads, _bytes
    if inner is str and isinstance(codec, codecs.raw | codecs.binary):
        return codec.loads, bytes.decode
    return codec.loads, converter(inner)


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"expected bytes, got {type(value).__name__}")
    return value


def encode_for(topic: Any, what: str, given: Any, serializer: Any = None) -> bytes | None:
    """A key or value ("key", "value") in bytes, as `topic` (of the app, or a name) has it.

    serializer: in place of the topic's own. Raises: Unencodable: it does not fit; OptionError: no such serializer.
    """
    typ, declared = getattr(topic, f"{what}_type", None), getattr(topic, f"{what}_serializer", None)
    if serializer is not None:
        check_serializer(topic.get_topic_name(), what, serializer)
    used = declared if serializer is None else serializer
    if given is None and (used is None or what == "key" or _takes_none(typ)):
        return None
    raw = encode(given) if used is None else _serialized(topic, what, given, used)
    decode = None if used is None and type(given) is typ in _PLAIN else _decoder_of(typ, declared)
    if decode is None:
        return raw
    try:
        decode(raw)
    except Exception as error:
        also = f"; {what}_type={describe(typ)} | None takes None, too" if given is None else ""
        codec = "" if used is None else f" and {what}_serializer={used!r}"
        raise Unencodable(
            f"topic {topic.get_topic_name()!r} has {what}_type={describe(typ)}{codec}, which {shown(given)} does not "
            f"fit: {said(error)}{also}"
        ) from error
    return raw


def _serialized(topic: Any, what: str, given: Any, serializer: Any) -> bytes:
    where, typ = (
        f"topic {topic.get_topic_name()!r}: {what}_serializer={serializer!r}",
        getattr(topic, f"{what}_type", None),
    )
    codec = codecs.get_codec(serializer)
    try:
        if isinstance(given, faust.Record):
            raw = given.dumps(serializer=given._options.serializer or serializer)  # noqa: SLF001 - faust's only door
        elif type(given) is bytes and (typ is None or strip_none(typ)[0] is not bytes):
            raw = given  # encoded already, as Faust has it
        else:
            raw = codec.dumps(given)
    except Exception as error:
        raise Unencodable(f"{where} cannot encode {shown(given)}: {said(error)}") from error
    if not isinstance(raw, bytes):
        raise Unencodable(f"{where} makes no bytes of {shown(given)}")
    return raw


@cache
def _takes_none(typ: Any) -> bool:
    return typ is not None and strip_none(typ)[1]


@cache
def _decoder_of(typ: Any, serializer: Any) -> Decoder | None:
    """None: all bytes fit, as they do a codec's name and what no handler can be annotated with."""
    try:
        return None if typ is None or isinstance(typ, str) else decoder_for(typ, serializer)
    except AnnotationError:
        return None


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
    if isinstance(value, float) and not isfinite(value):
        raise Unencodable(f"{value} cannot be sent: JSON has no such number; send None, or a str")
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
