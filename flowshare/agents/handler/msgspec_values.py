"""Values of msgspec: structs, and `Annotated` with `msgspec.Meta`.

msgspec is a dependency of the application: it is imported when an annotation, or a sent value, needs it.
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
    """Tell if msgspec reads and writes this type (or this value's class); does not import msgspec."""
    if get_origin(tp) is typing.Annotated:
        named = ("msgspec", "Meta")
        metas = [one for one in tp.__metadata__ if (type(one).__module__, type(one).__name__) == named]
        return bool(metas) or is_msgspec(get_args(tp)[0])
    kind = get_origin(tp) or tp  # a generic struct of something
    return isinstance(kind, type) and is_struct(kind)


def is_struct(kind: type) -> bool:
    """Tell if the class is a `msgspec.Struct`."""
    return hasattr(kind, "__struct_fields__")


def from_json(tp: Any, make: Callable[[Any], _Convert]) -> _Convert:
    """Return a function that makes `tp` from JSON bytes, with msgspec's own reader, which is strict.

    make: gives the converter for a type that msgspec does not know. Raises: AnnotationError: msgspec does not take the
    type.
    """
    import msgspec

    try:
        decode: _Convert = msgspec.json.Decoder(tp, dec_hook=_hook(make)).decode
    except (TypeError, NameError) as error:
        raise AnnotationError(f"msgspec takes no {tp}: {said(error)}") from error
    return decode


def converter(tp: Any, make: Callable[[Any], _Convert]) -> _Convert:
    """Return a function that makes `tp` from a JSON value inside another value; a `tp` stays as it is."""
    import msgspec

    convert, hook = msgspec.convert, _hook(make)

    def of(value: Any) -> Any:
        return convert(value, tp, dec_hook=hook)

    return of


def to_json(value: Any, other: _Convert) -> bytes:
    """Encode a struct as JSON. other: for values that msgspec cannot write."""
    import msgspec

    return msgspec.json.encode(value, enc_hook=other)


def to_plain(value: Any, other: _Convert) -> Any:
    """Turn a struct into JSON's own types, inside another value."""
    import msgspec

    return msgspec.to_builtins(value, str_keys=True, enc_hook=other)


def json_schema(tp: Any) -> dict[str, Any]:
    """Return the JSON Schema of the values read and written."""
    import msgspec

    return dict(msgspec.json.schema(tp))


def _hook(make: Callable[[Any], _Convert]) -> Callable[[Any, Any], Any]:
    made = functools.lru_cache(maxsize=256)(make)
    return lambda tp, value: made(tp)(value)
