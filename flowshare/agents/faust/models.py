"""Keys and values of a topic with a type or a serializer: Faust's model class `Record`, its codecs and its registry.

The types that go with a topic's serializer, against which sent values are checked:

| first codec of the serializer | types that go with it |
|---|---|
| none | those of `agents.handler.values` |
| `json`, `yaml` | the same without bytes, which they cannot carry |
| `raw`, `binary` | bytes, str |
| `pickle…`, others | any; an object that was pickled is taken as it is |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, get_args

from faust import Record
from faust.serializers import codecs
from faust.serializers.registry import Registry as FaustRegistry

from flowshare.agents.handler.arriving import arrives
from flowshare.agents.handler.encoding import encode, in_json
from flowshare.agents.handler.errors import AnnotationError, OptionError, Unencodable
from flowshare.agents.handler.fields import fields_of
from flowshare.agents.handler.texts import said, shown
from flowshare.agents.handler.values import (
    Decoder,
    alternatives,
    cached_by_type,
    converter,
    decoder,
    describe,
    is_model,
    strip_none,
    text_is_json,
)

__all__ = ["Record", "Registry", "check_declared", "decoder_for", "encode_for"]

_PLAIN: Final = (bytes, str, int, bool)
"""Types whose values fit them, where no serializer comes between."""
_OPTIONS: Final = {"key": ("key_type", "key_serializer"), "value": ("value_type", "value_serializer")}
"""Options in which a topic declares the type and serializer of its keys and values."""
_FAUSTS = (int, float, str, bytes)


def check_declared(topic: str, what: str, typ: Any, serializer: Any) -> None:
    """Check that a topic's type and serializer can go together; `what` is "key" or "value". Raises: OptionError."""
    if serializer is None:
        _check_fields(topic, what, typ)
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


def _check_fields(topic: str, what: str, typ: Any) -> None:
    """Check that a class's fields can be read; a type that no handler takes may be Faust's. Raises: OptionError."""
    if typ is None or isinstance(typ, str):
        return
    try:
        is_made_of = any(fields_of(one) is not None or get_args(one) for one in alternatives(typ))
        if is_made_of:
            decoder(typ)
    except AnnotationError as error:
        raise OptionError(f"topic {topic!r}: {what}_type={describe(typ)}: {error}") from None
    except (NameError, TypeError):
        return  # a type that is defined further down, or has no hash


def check_serializer(topic: str, what: str, serializer: Any) -> None:
    """Check that a serializer is a codec of Faust's, or names of codecs with `|` between. Raises: OptionError."""
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
    """Return the decoder of an annotation's values behind a serializer (None: none); None: the bytes themselves.

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
    if is_model(inner):
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
    """Encode a key or value ("key", "value") as `topic` (of the app, or a name) has it.

    serializer: in place of the topic's own. Raises: Unencodable: it does not fit; OptionError: no such serializer.
    """
    of_type, of_serializer = _OPTIONS[what]
    typ, declared = getattr(topic, of_type, None), getattr(topic, of_serializer, None)
    if serializer is None and declared is None and type(given) is bytes and _decoder_of(typ, None) is None:
        return given
    if serializer is not None:
        check_serializer(topic.get_topic_name(), what, serializer)
    used = declared if serializer is None else serializer
    if given is None and (used is None or what == "key" or typ is None or _takes_none(typ)):
        return None  # a tombstone, never a serializer's null, which a compacted topic would keep for good
    raw = _encoded(typ, given) if used is None else _serialized(topic, what, given, used)
    decode = None if used is None and type(given) is typ in _PLAIN else _decoder_of(typ, declared)
    if decode is None:
        if (
            used is None
            and typ is not None
            and not isinstance(given, (str, *_IN_BYTES))
            and alternatives(typ) == (bytes,)
        ):
            raise Unencodable(
                f"topic {topic.get_topic_name()!r} has {what}_type={describe(typ)}, which {shown(given)} does not fit: "
                "it is neither bytes nor text"
            )
        return raw
    try:
        made = decode(raw)
        if type(given) not in _IN_BYTES and not arrives(typ, made, given):
            raise ValueError(f"it would arrive as {shown(made)}")
    except Exception as error:
        also = f"; {what}_type={describe(typ)} | None takes None, too" if given is None else ""
        codec = "" if used is None else f" and {what}_serializer={used!r}"
        raise Unencodable(
            f"topic {topic.get_topic_name()!r} has {what}_type={describe(typ)}{codec}, which {shown(given)} does not "
            f"fit: {said(error)}{also}"
        ) from error
    return raw


_IN_BYTES: Final = (bytes, bytearray, memoryview, type(None))
"""Types that are bytes already, or nothing."""


def _encoded(typ: Any, given: Any) -> bytes | None:
    """Encode by the topic's type: text becomes JSON if the type has more than text, so that "5" does not arrive as
    5."""
    is_text = isinstance(given, str) or (type(given) is bytes and bytes in alternatives(typ))
    return in_json(given) if is_text and typ is not None and text_is_json(typ) else encode(given)


def _serialized(topic: Any, what: str, given: Any, serializer: Any) -> bytes:
    where, typ = (
        f"topic {topic.get_topic_name()!r}: {what}_serializer={serializer!r}",
        getattr(topic, f"{what}_type", None),
    )
    codec = codecs.get_codec(serializer)
    try:
        if isinstance(given, Record):
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


@cached_by_type
def _takes_none(typ: Any) -> bool:
    return typ is not None and strip_none(typ)[1]


@cached_by_type
def _decoder_of(typ: Any, serializer: Any) -> Decoder | None:
    """Return the decoder; None: all bytes fit, as for a codec's name or a type that no handler takes."""
    try:
        return None if typ is None or isinstance(typ, str) else decoder_for(typ, serializer)
    except AnnotationError:
        return None


class Registry(FaustRegistry):
    """Faust's registry, with all types that a share agent's annotation can have (dataclass, TypedDict, dict, …).

    str and bytes are the bytes themselves unless the topic names a serializer, so that share agents and Faust's agents
    can read each other's records.
    """

    def _serializer(self, typ: Any, *alternatives: Any) -> Any:
        if typ in (str, bytes) and not alternatives[0]:
            return "raw"
        return super()._serializer(typ, *alternatives)

    def dumps_key(self, typ: Any, key: Any, *, serializer: Any = None, skip: Any = (bytes,)) -> bytes | None:
        """Encode a key; a key that is neither bytes nor text (the number of a `group_by`) becomes JSON, as
        elsewhere."""
        return encode(super().dumps_key(typ, key, serializer=serializer, skip=skip))

    def loads_value(self, typ: Any, value: bytes | None, *, serializer: Any = None) -> Any:
        """Decode a value; a null value is None, except for a record."""
        if value is None and not is_model(typ):
            return None
        return super().loads_value(typ, value, serializer=serializer)

    def _prepare_payload(self, typ: Any, value: Any) -> Any:
        if typ is None or typ in _FAUSTS or is_model(typ):
            return super()._prepare_payload(typ, value)
        return _converter(typ)(value)


@cached_by_type
def _converter(typ: Any) -> Callable[[Any], Any]:
    return converter(typ)
