"""Values of msgspec: structs, and `Annotated` with `msgspec.Meta`.

msgspec is the application's: it is imported when an annotation, or a value that is sent, is of it.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable
from typing import Any, get_args, get_origin

from flowshare.agents.handler.errors import AnnotationError
from flowshare.agents.handler.texts import said

_Convert = Callable[[Any], Any]


def is_msgspec(tp: Any) -> bool:
    """Whether a type (or a value's class) is msgspec's business; without importing it."""
    if get_origin(tp) is typing.Annotated:
        named = ("msgspec", "Meta")
        metas = [one for one in tp.__metadata__ if (type(one).__module__, type(one).__name__) == named]
        return bool(metas) or is_msgspec(get_args(tp)[0])
    kind = get_origin(tp) or tp  # a generic struct of something
    return isinstance(kind, type) and is_struct(kind)


def is_struct(kind: type) -> bool:
    """Whether a class is a `msgspec.Struct`."""
    return hasattr(kind, "__struct_fields__")


def from_json(tp: Any, make: Callable[[Any], _Convert]) -> _Convert:
    """What makes `tp` out of JSON in bytes, by msgspec's own reader, which is strict.

    make: the converter of a type that msgspec does not know. Raises: AnnotationError: msgspec takes no such type.
    """
    import msgspec

    try:
        decode: _Convert = msgspec.json.Decoder(tp, dec_hook=_hook(make)).decode
    except (TypeError, NameError) as error:
        raise AnnotationError(f"msgspec takes no {tp}: {said(error)}") from error
    return decode


def converter(tp: Any, make: Callable[[Any], _Convert]) -> _Convert:
    """What makes `tp` out of a value that was read from JSON, within something else; what is one already stays."""
    import msgspec

    convert, hook = msgspec.convert, _hook(make)

    def of(value: Any) -> Any:
        return convert(value, tp, dec_hook=hook)

    return of


def to_json(value: Any, other: _Convert) -> bytes:
    """A struct as JSON. other: for what msgspec cannot write."""
    import msgspec

    return msgspec.json.encode(value, enc_hook=other)


def to_plain(value: Any, other: _Convert) -> Any:
    """A struct as what JSON has, inside something else."""
    import msgspec

    return msgspec.to_builtins(value, str_keys=True, enc_hook=other)


def json_schema(tp: Any) -> dict[str, Any]:
    """The JSON Schema of what is read and written."""
    import msgspec

    return dict(msgspec.json.schema(tp))


def _hook(make: Callable[[Any], _Convert]) -> Callable[[Any, Any], Any]:
    made = functools.lru_cache(maxsize=256)(make)
    return lambda tp, value: made(tp)(value)
