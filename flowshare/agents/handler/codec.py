"""Codecs: an application's own step between bytes and values, and what such a step has to look up first.

A codec stands where JSON stands else: `app.topic(…, value_codec=…)`, `@app.share_agent(…, value_codec=…)`. What it
makes of bytes is held against the handler's annotation; what it makes of a value is what is sent. flowshare's own, for
values with a schema registry, are in `agents.codecs`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from flowshare.agents.handler.errors import AgentError, AnnotationError, OptionError, Unencodable, nearest
from flowshare.agents.handler.texts import said, shown
from flowshare.agents.handler.values import converter, describe, strip_none

RecordHeaders = Sequence[tuple[str, bytes | None]]
"""A record's headers, in order."""
Encoded = bytes | tuple[bytes, RecordHeaders]
"""What a codec makes of a value: bytes, or bytes and headers that go with them."""


@runtime_checkable
class Codec(Protocol):
    """Turns a topic's keys or values from bytes into objects and back. Called from any thread, and never for a null.

    It may have more methods. `bind(topic, what) -> Codec` is asked once for each topic that it is given for, and `what`
    ("key", "value"); what it returns is used there. `missing(raw, headers)` and `missing_to_encode()` say what has to
    be fetched first (a `Missing`; None: nothing), so that no event loop waits for it. With an attribute `model` a
    handler needs no annotation.
    """

    def decode(self, raw: bytes, headers: RecordHeaders) -> Any:
        """The value. What it raises sends the record to the dead letters."""
        ...

    def encode(self, value: Any) -> Encoded:
        """In bytes. What it raises is the error of whoever sends."""
        ...


class CodecUnavailable(AgentError):
    """What a codec needs cannot be had now: raised by `decode`, the record comes again in 30 s. No attempt is used, but
    on Kafka's own share groups. A codec with `missing` waits without either."""


class Missing(NamedTuple):
    """Something that a codec has to look up before it can go on.

    key: names it; it is fetched once at a time. what: in words, for the log. fetch: blocks for a limited time; returns
        when it is known (also that there is no such thing, which `decode` says then), and raises when whoever is asked
        does not answer: then records wait, and it is tried again.
    """

    key: Hashable
    what: str
    fetch: Callable[[], object]


_registered: Final[dict[str, Codec]] = {}


def register_codec(name: str, codec: Codec) -> None:
    """Let topics and agents name a codec: `value_codec="name"`. Raises: OptionError: another one has the name."""
    if not isinstance(name, str) or not name:
        raise OptionError(f"a codec's name is a text, not {name!r}")
    if _registered.setdefault(name, _checked(codec, f"register_codec({name!r}, …)")) is not codec:
        raise OptionError(f"there is a codec {name!r} already")


def find_codec(given: Any, option: str, topic: str, what: str) -> Codec | None:
    """The codec that an option names or is, for a topic's keys or values (`what`). Raises: OptionError."""
    if given is None:
        return None
    if isinstance(given, str):
        if given not in _registered:
            known = nearest(given, _registered) if _registered else "None is: fs.register_codec(name, codec) does it."
            raise OptionError(f"{option}={given!r}: no codec of this name is registered. {known}")
        given = _registered[given]
    codec = _checked(given, option)
    bind = getattr(codec, "bind", None)
    return codec if bind is None else _checked(bind(topic, what), option)


def _checked(given: Any, option: str) -> Codec:
    if isinstance(given, type) or not isinstance(given, Codec):
        raise OptionError(
            f"{option} takes a codec, an object with decode(raw, headers) and encode(value), or the name of a "
            f"registered one, not {shown(given)}"
        )
    return given


class CodecDecoder:
    """A decoder that asks a codec, which may look at a record's headers and have something looked up first."""

    __slots__ = ("_decode", "_missing", "_optional", "_shape")

    def __init__(self, codec: Codec, annotation: Any) -> None:
        """annotation: what the codec's values are made, or have to be. Raises: AnnotationError."""
        inner, self._optional = strip_none(annotation)
        self._decode = codec.decode
        self._missing: Callable[[bytes, RecordHeaders], Missing | None] | None = getattr(codec, "missing", None)
        self._shape = None if inner is Any or getattr(codec, "model", None) is inner else _shape(inner)

    def __call__(self, raw: bytes | None) -> Any:
        """What the handler gets of a value without headers. Raises: what the codec raises."""
        return self.of(raw, ())

    def of(self, raw: bytes | None, headers: RecordHeaders) -> Any:
        """What the handler gets. Raises: what the codec raises."""
        if raw is None:
            if self._optional:
                return None
            raise ValueError("null")
        value = self._decode(raw, headers)
        return value if self._shape is None else self._shape(value)

    @property
    def looks_up(self) -> bool:
        """Whether `missing` may say something."""
        return self._missing is not None

    def missing(self, raw: bytes | None, headers: RecordHeaders) -> Missing | None:
        """What has to be fetched before this can be decoded; None: nothing."""
        return None if raw is None or self._missing is None else self._missing(raw, headers)


def _shape(inner: Any) -> Callable[[Any], Any]:
    """Makes `inner` of what a codec made, where it is not that already."""
    convert: Callable[[Any], Any] | None = None
    try:
        convert = converter(inner)
    except AnnotationError:
        if not isinstance(inner, type):
            raise

    def shape(value: Any) -> Any:
        if isinstance(inner, type) and isinstance(value, inner):
            return value
        if convert is None:
            raise ValueError(f"the codec made a {type(value).__name__} of it, not a {describe(inner)}")
        return convert(value)

    return shape


def encode_by(codec: Codec, value: Any, where: str) -> Encoded:
    """A value in bytes. where: what it is for, in the error. Raises: Unencodable."""
    try:
        made = codec.encode(value)
    except CodecUnavailable:
        raise
    except Unencodable as error:
        raise Unencodable(f"{where}: {error}") from error
    except Exception as error:
        raise Unencodable(f"{where}: {type(error).__name__} for {shown(value)}: {said(error)}") from error
    raw = made[0] if isinstance(made, tuple) and len(made) == 2 else made
    if not isinstance(raw, bytes):
        raise Unencodable(f"{where}: the codec makes a {type(raw).__name__} of {shown(value)}, not bytes")
    return made
