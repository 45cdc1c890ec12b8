"""Codecs: an application's own step between bytes and values, and the look-ups that such a step needs.

A codec takes the place of JSON: `app.topic(…, value_codec=…)`, `@app.share_agent(…, value_codec=…)`. The decoded value
is checked against the handler's annotation; the encoded bytes are sent. flowshare's own codecs, for values with a
schema registry, are in `agents.codecs`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from flowshare.agents.handler.errors import AgentError, AnnotationError, OptionError, Unencodable, nearest
from flowshare.agents.handler.texts import said, shown
from flowshare.agents.handler.values import converter, describe, strip_none

RecordHeaders = Sequence[tuple[str, bytes | None]]
"""A record's headers, in order."""
Encoded = bytes | tuple[bytes, RecordHeaders]
"""A codec's output for a value: bytes, or bytes and headers to add."""


@runtime_checkable
class Codec(Protocol):
    """A codec turns a topic's keys or values from bytes into objects and back. Called from any thread, never for a
    null.

    A codec may have more methods. `bind(topic, what) -> Codec` is called once for each of its topics and `what` ("key",
    "value"); the returned codec is used there. `missing(raw, headers)` and `missing_to_encode()` return the look-up
    that is needed first (a `Missing`; None: nothing), so that no event loop waits for it. With an attribute `model` a
    handler needs no annotation.
    """

    def decode(self, raw: bytes, headers: RecordHeaders) -> Any:
        """Decode a value. An error sends the record to the dead letters."""
        ...

    def encode(self, value: Any) -> Encoded:
        """Encode a value. The sender gets the error."""
        ...


class CodecUnavailable(AgentError):
    """Raised by a codec's `decode` if something it needs is not available now: the record comes again in 30 s.

    This uses no attempt, except on Kafka's own share groups. With `missing`, a codec waits without a release.
    """


class Missing(NamedTuple):
    """A look-up that a codec needs before it can go on.

    key: names the look-up; one key is fetched once at a time. what: in words, for the log. fetch: blocks for a limited
    time; returns when the answer is known (also "no such thing", which `decode` tells then), and raises when the other
    side does not answer: then records wait, and the fetch is tried again.
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
    """Return the codec that an option names or is, for a topic's keys or values (`what`). Raises: OptionError."""
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
    for method in (given.decode, given.encode):
        if inspect.iscoroutinefunction(method):
            raise OptionError(
                f"{option}: {method.__name__} of {shown(given)} is an `async def`, and a codec is called where nothing "
                "can be awaited: make it a plain def, and have `missing` say what is to be fetched before"
            )
    return given


class CodecDecoder:
    """A decoder over a codec; the codec may read a record's headers and ask for a look-up."""

    __slots__ = ("_decode", "_missing", "_optional", "_shape")

    def __init__(self, codec: Codec, annotation: Any) -> None:
        """annotation: type that the codec's values are turned into, or must have. Raises: AnnotationError."""
        inner, self._optional = strip_none(annotation)
        self._decode = codec.decode
        self._missing: Callable[[bytes, RecordHeaders], Missing | None] | None = getattr(codec, "missing", None)
        self._shape = None if inner is Any or getattr(codec, "model", None) is inner else _shape(inner)

    def __call__(self, raw: bytes | None) -> Any:
        """Decode a value without headers to what the handler gets. Raises: the errors of the codec."""
        return self.of(raw, ())

    def of(self, raw: bytes | None, headers: RecordHeaders) -> Any:
        """Decode a value to what the handler gets. Raises: the errors of the codec; ValueError: the value is null."""
        if raw is None:
            if self._optional:
                return None
            raise ValueError("null")
        value = self._decode(raw, headers)
        return value if self._shape is None else self._shape(value)

    @property
    def looks_up(self) -> bool:
        """True if the codec has a `missing`, which may ask for a look-up."""
        return self._missing is not None

    def missing(self, raw: bytes | None, headers: RecordHeaders) -> Missing | None:
        """Return the look-up that is needed before this value can be decoded; None: none is needed."""
        return None if raw is None or self._missing is None else self._missing(raw, headers)


def _shape(inner: Any) -> Callable[[Any], Any]:
    """Return a function that turns the codec's values into `inner`, if they are not that already."""
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
    """Encode a value. where: its place, for the error. Raises: Unencodable."""
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
