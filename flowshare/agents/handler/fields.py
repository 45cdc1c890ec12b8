"""Fields of the classes that values are made of, of any library: for schemas and columns."""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, get_origin, get_type_hints

from flowshare.agents.handler import attrs_values, msgspec_values, pydantic_values
from flowshare.agents.handler.errors import AnnotationError
from flowshare.agents.handler.texts import said

NO_DEFAULT: Final = object()


class Field(NamedTuple):
    """A field of a class. name: in the JSON; attribute: of the object. default: NO_DEFAULT without one to show."""

    name: str
    attribute: str
    hint: Any
    required: bool
    default: Any = NO_DEFAULT


def fields_of(tp: Any) -> list[Field] | None:
    """Return the fields of a class; None: it has none of its own. Raises: AnnotationError: their types are not
    found."""
    kind = get_origin(tp) or tp
    if not isinstance(kind, type):
        return None
    read = _reader(kind)
    if read is None:
        return None
    try:
        return list(read(tp))
    except (NameError, TypeError) as error:
        raise AnnotationError(
            f"the types of the fields of {kind.__qualname__} are not to be found: {said(error)}"
        ) from error


def is_of_fields(kind: type) -> bool:
    """Tell if values of the class have named fields."""
    return _reader(kind) is not None


def _reader(kind: type) -> Callable[[Any], Iterator[Field]] | None:
    if pydantic_values.is_model(kind) and hasattr(kind, "__pydantic_root_model__"):  # its dataclasses are others
        return None if kind.__pydantic_root_model__ else _pydantic
    if msgspec_values.is_struct(kind):
        return _msgspec
    if attrs_values.is_attrs(kind):
        return _attrs
    if dataclasses.is_dataclass(kind):
        return _dataclass
    if typing.is_typeddict(kind):
        return _typed_dict
    return _named_tuple if issubclass(kind, tuple) and hasattr(kind, "_fields") else None


def _pydantic(tp: Any) -> Iterator[Field]:
    missing: Any = sys.modules["pydantic_core"].PydanticUndefined
    for name, one in tp.model_fields.items():
        alias = one.serialization_alias or one.alias or name
        hint = typing.Annotated[(one.annotation, *one.metadata)] if one.metadata else one.annotation
        default = NO_DEFAULT if one.default is missing else one.default
        if default is NO_DEFAULT and one.default_factory in (list, dict):
            default = one.default_factory()
        yield Field(alias, name, hint, one.is_required(), default)


def _msgspec(tp: Any) -> Iterator[Field]:
    import msgspec

    for one in msgspec.structs.fields(tp):
        default: Any = NO_DEFAULT if one.default is msgspec.NODEFAULT else one.default
        if default is NO_DEFAULT and one.default_factory in (list, dict):
            default = one.default_factory()
        yield Field(one.encode_name, one.name, one.type, one.required, default)


def _attrs(tp: Any) -> Iterator[Field]:
    for one in attrs_values.attributes(tp):
        yield Field(one.name, one.name, one.hint, one.required, NO_DEFAULT if one.required else one.default)


def _dataclass(tp: Any) -> Iterator[Field]:
    hints = get_type_hints(tp, include_extras=True)
    for one in dataclasses.fields(tp):
        if not one.init:
            continue
        default = NO_DEFAULT if one.default is dataclasses.MISSING else one.default
        if one.default_factory in (list, dict):
            default = typing.cast("Callable[[], Any]", one.default_factory)()
        required = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        yield Field(one.name, one.name, hints[one.name], required, default)


def _typed_dict(tp: Any) -> Iterator[Field]:
    required: frozenset[str] = getattr(tp, "__required_keys__", frozenset())
    for name, hint in get_type_hints(tp, include_extras=True).items():
        plain = typing.get_args(hint)[0] if get_origin(hint) in (typing.Required, typing.NotRequired) else hint
        yield Field(name, name, plain, name in required and get_origin(hint) is not typing.NotRequired)


def _named_tuple(tp: Any) -> Iterator[Field]:
    hints = get_type_hints(tp, include_extras=True)
    defaults = tp._field_defaults
    for name in tp._fields:
        yield Field(name, name, hints.get(name, Any), name not in defaults, defaults.get(name, NO_DEFAULT))
