"""JSON values as columns: by Arrow's reader if a value fits the schema, field by field if it need not.

Arrow's reader takes no JSON object as a MAP. A schema with one is read in two steps: the object becomes a list of
entries, which Arrow reads, and that list becomes the MAP.

`value_mode=strict`: a value that does not fit is refused whole. `value_mode=permissive`: fields that do not fit are
null, and any other value in place of a STRING becomes its JSON text, as in Spark's `from_json`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Final, Never

import pyarrow as pa
import pyarrow.json as arrow_json

from flowshare.agents.handler.errors import OptionError

UNFIT: Final = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""Errors of values that do not fit their schema."""

Read = Callable[[Sequence[bytes | None]], pa.StructArray]


def reader(type_: pa.StructType, *, permissive: bool) -> Read:
    """Return a function from JSON texts to structs; null stays null. It raises one of UNFIT for a value that does not
    fit.

    Raises: OptionError: no JSON can be read as a column of the schema.
    """
    strict = partial(_read, type_=type_, as_read=_as_read(type_), maps=_has_map(type_))
    return partial(_permissive, strict=strict, type_=type_) if permissive else strict


def _permissive(values: Sequence[bytes | None], strict: Read, type_: pa.StructType) -> pa.StructArray:
    """Read all values at once if they fit; a single value that does not fit, field by field."""
    try:
        return strict(values)
    except UNFIT:
        if len(values) != 1 or values[0] is None:
            raise  # the caller looks for the one that does not fit
        return pa.array([_what_fits(values[0], type_)], type_)


def _read(
    values: Sequence[bytes | None], type_: pa.StructType, as_read: pa.StructType, *, maps: bool
) -> pa.StructArray:
    """Read JSON objects as structs; fields that the schema lacks are left out, fields that a record lacks are null."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        whole = iter(_read(known, type_, as_read, maps=maps).to_pylist())
        return pa.array([None if value is None else next(whole) for value in values], type_)
    if not known:
        return pa.array([], type_)
    stripped = [value.strip() for value in known]
    if not all(value[:1] == b"{" and value[-1:] == b"}" for value in stripped):
        # Checked for each value: an empty one beside one of two objects would give as many objects as there are values.
        raise ValueError("a value is no JSON object")
    if maps:
        stripped = [_text(_with_entries(_parsed(value), type_)).encode() for value in stripped]
    text = b"\n".join(stripped)
    table = arrow_json.read_json(
        io.BytesIO(text),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=max(1 << 20, len(text) + 1)),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=pa.schema(list(as_read)), newlines_in_values=True, unexpected_field_behavior="ignore"
        ),
    )
    if table.num_rows != len(known):
        raise ValueError(f"{len(known)} values hold {table.num_rows} JSON objects")
    batch = table.combine_chunks().to_batches()[0]
    found = pa.StructArray.from_arrays(batch.columns, fields=list(as_read))
    found.validate(full=True)  # Arrow's reader takes strings that are no UTF-8
    if maps:
        return pa.array(_with_pairs(found.to_pylist(), pa.list_(type_)), type_)
    return found if as_read == type_ else found.cast(type_)


def _as_read(type_: pa.DataType) -> pa.DataType:
    """Return the type that Arrow's reader can make for a column: timestamps for dates, lists of entries for maps.

    Raises: OptionError: JSON has no such keys.
    """
    if pa.types.is_date(type_):
        return pa.timestamp("s")
    if pa.types.is_struct(type_):
        return pa.struct([one.with_type(_as_read(one.type)) for one in type_])
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_as_read(type_.value_type)))
    if pa.types.is_map(type_):
        if not pa.types.is_string(type_.key_type):
            raise OptionError(
                f"value=json reads a MAP with keys of STRING, not of {type_.key_type}: change value_schema"
            )
        return pa.list_(pa.struct([("key", pa.string()), ("value", _as_read(type_.item_type))]))
    return type_


def _has_map(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        return any(_has_map(one.type) for one in type_)
    return pa.types.is_map(type_) or (pa.types.is_list(type_) and _has_map(type_.value_type))


def _parsed(text: bytes) -> Any:
    """Parse a JSON text; numbers with a point keep all their digits. Raises: ValueError."""
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("the JSON is nested too deep") from None


def _refuse(constant: str) -> Never:
    raise ValueError(f"{constant} is no JSON")


def _with_entries(value: Any, type_: pa.DataType) -> Any:
    """Return the value with a list of entries for each object that shall be a MAP; fields that the schema lacks are
    left out.

    Raises: ValueError: another value stands in place of a MAP.
    """
    if value is None:
        return None
    if pa.types.is_map(type_):
        if not isinstance(value, dict):
            raise ValueError("a MAP takes a JSON object")
        return [{"key": key, "value": _with_entries(one, type_.item_type)} for key, one in value.items()]
    if pa.types.is_struct(type_) and isinstance(value, dict):
        return {one.name: _with_entries(value[one.name], one.type) for one in type_ if one.name in value}
    if pa.types.is_list(type_) and isinstance(value, list):
        return [_with_entries(one, type_.value_type) for one in value]
    return _plain(value, type_)


def _plain(value: Any, type_: pa.DataType) -> Any:
    """Return a decimal as text, from which Arrow reads all its digits; any other value unchanged."""
    return str(value) if isinstance(value, Decimal) and pa.types.is_decimal(type_) else value


def _text(value: Any) -> str:
    """Return the JSON text of a parsed value. Raises: ValueError."""
    try:
        return json.dumps(value, default=float, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise ValueError("the JSON is nested too deep") from None


def _with_pairs(value: Any, type_: pa.DataType) -> Any:
    """Return the value with a list of pairs, which Arrow takes as a MAP, for each list of entries."""
    if value is None:
        return None
    if pa.types.is_map(type_):
        return [(one["key"], _with_pairs(one["value"], type_.item_type)) for one in value]
    if pa.types.is_struct(type_):
        return {one.name: _with_pairs(value[one.name], one.type) for one in type_}
    return [_with_pairs(one, type_.value_type) for one in value] if pa.types.is_list(type_) else value


def _what_fits(text: bytes, type_: pa.StructType) -> dict[str, Any] | None:
    """Return the fields of a JSON text that fit; all are null if it is no JSON object; None for null itself."""
    try:
        value = _parsed(text)
    except ValueError:
        value = {}
    return None if value is None else _fitted(value if isinstance(value, dict) else {}, type_)


def _fitted(value: Any, type_: pa.DataType) -> Any:
    """Return the value as Arrow takes it for a type; None: it does not fit."""
    if pa.types.is_struct(type_) and isinstance(value, dict):
        return {one.name: _fitted(value.get(one.name), one.type) for one in type_}
    if pa.types.is_list(type_) and isinstance(value, list):
        return [_fitted(one, type_.value_type) for one in value]
    if pa.types.is_map(type_) and isinstance(value, dict):
        return [(key, _fitted(one, type_.item_type)) for key, one in value.items()]
    if value is None or pa.types.is_nested(type_):
        return None
    try:
        text = _text(value)
        wanted = (
            _text(text) if pa.types.is_string(type_) and not isinstance(value, str) else _text(_plain(value, type_))
        )
        return _alone(wanted, type_)
    except UNFIT:
        return None


def _alone(text: str, type_: pa.DataType) -> Any:
    """Read a JSON text as the only field of a struct. Raises: one of UNFIT."""
    struct = pa.struct([("x", type_)])
    read = _read([f'{{"x":{text}}}'.encode()], struct, pa.struct([("x", _as_read(type_))]), maps=False)
    return read.to_pylist()[0]["x"]
