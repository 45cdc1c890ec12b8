"""Records to Arrow: the columns of the source, and values that have a schema.

A value that does not fit its schema is poison: it is left out, and told, so that the query goes on without it.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.json as arrow_json

from flowshare.agents.handler.errors import OptionError
from flowshare.spark import registry
from flowshare.spark.source import avro

if TYPE_CHECKING:
    from flowshare.protocol.decoding import RawDecoded, RawRecord
    from flowshare.spark.source.options import SourceOptions

HEADERS: Final = "ARRAY<STRUCT<key: STRING, value: BINARY>>"
ROWS: Final = 10_000
"""Records of an Arrow batch, as Spark has it (spark.sql.execution.arrow.maxRecordsPerBatch)."""
_MS: Final = pa.timestamp("ms", tz="UTC")
_US: Final = pa.timestamp("us", tz="UTC")
_MS_MAX: Final = (2**63 - 1) // 1000

Decode = Callable[[Sequence[bytes | None]], pa.Array]
"""Values of many records as one array. Raises: pa.ArrowInvalid, ValueError when one of them does not fit."""


class Poison(NamedTuple):
    """A record that cannot be read, and why."""

    record: RawRecord
    delivery: int
    reason: str


def source_schema(options: SourceOptions) -> str:
    """The source's columns in Spark's DDL."""
    value = "BINARY"
    if options.value == "json":
        value = f"STRUCT<{options.value_schema}>"
    elif options.value == "avro":
        value = avro.spark_type(options.value_schema)
    elif options.value == "protobuf":
        value = registry.protobuf_type(options.value_message)
    columns = ["key BINARY", f"value {value}", "topic STRING", "partition INT", "offset BIGINT"]
    columns += ["timestamp TIMESTAMP", "timestamp_type INT"]
    if options.headers:
        columns.append(f"headers {HEADERS}")
    return ", ".join([*columns, "attempt INT"])


def value_decoder(options: SourceOptions, schema: pa.Schema) -> Decode | None:
    """What makes values of bytes; None: they stay bytes. Raises: OptionError (a schema that cannot be read)."""
    if options.value == "bytes":
        return None
    type_ = schema.field("value").type
    if options.value == "json":
        read = partial(_from_json, type_=type_, as_read=_as_read(type_))
        return _each_first(registry.json_values(options), read) if options.registry else read
    if options.value == "avro" and not options.registry:
        return avro.decoder(options.value_schema, type_)
    one = registry.protobuf_values(options) if options.value == "protobuf" else avro.values(options)
    return _each_first(one, lambda values: pa.array(values, type_))


def _each_first(one: Callable[[bytes], Any], then: Callable[[Sequence[Any]], pa.Array]) -> Decode:
    """Values one by one, nulls left as they are, before all of them become an array."""
    return lambda values: then([None if value is None else one(value) for value in values])


def to_arrow(
    topic: str, partition: int, decoded: RawDecoded, schema: pa.Schema, decode: Decode | None
) -> tuple[list[pa.RecordBatch], list[Poison]]:
    """Batches of records of one delivery count each, and the records that do not fit."""
    batches: list[pa.RecordBatch] = []
    poison: list[Poison] = []
    for records, count in _longer(decoded.runs):
        values: pa.Array
        fits: Sequence[RawRecord] = records
        if decode is None:
            values = pa.array([record.value for record in records], pa.binary())
        else:
            fits, values, bad = _decode_all(records, decode)
            poison += [Poison(record, count, reason) for record, reason in bad]
        if fits:
            batches.append(_batch(topic, partition, fits, count, values, schema))
    return batches, poison


def all_poison(decoded: RawDecoded, reason: str) -> list[Poison]:
    """All records, as ones that are left out for a reason."""
    return [Poison(record, count, reason) for records, count in decoded.runs for record in records]


def _longer(runs: Iterable[tuple[list[RawRecord], int]]) -> Iterator[tuple[Sequence[RawRecord], int]]:
    """Runs of one delivery count as one, up to about ROWS records: each costs Spark as much as some hundred rows."""
    for count, same in itertools.groupby(runs, key=itemgetter(1)):
        found: list[RawRecord] = []
        for records, _ in same:
            if found and len(found) + len(records) > ROWS:
                yield found, count
                found = []
            found += records
        yield found, count


def _batch(
    topic: str, partition: int, records: Sequence[RawRecord], count: int, values: pa.Array, schema: pa.Schema
) -> pa.RecordBatch:
    size = len(records)
    columns: dict[str, Any] = {
        "key": pa.array([record.key for record in records], pa.binary()),
        "value": values,
        "topic": pa.repeat(pa.scalar(topic, pa.string()), size),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), size),
        "offset": pa.array([record.offset for record in records], pa.int64()),
        "timestamp": _times(records),
        "timestamp_type": pa.array([record.timestamp_type for record in records], pa.int32()),  # type: ignore[attr-defined]
        "attempt": pa.repeat(pa.scalar(count, pa.int32()), size),
    }
    if "headers" in schema.names:
        columns["headers"] = _headers(records, schema.field("headers").type)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _headers(records: Sequence[RawRecord], type_: pa.ListType) -> pa.Array:
    found = [record.headers for record in records]
    if not any(found):
        return pa.ListArray.from_arrays(
            pa.repeat(pa.scalar(0, pa.int32()), len(found) + 1), pa.array([], type_.value_type), type_
        )
    return pa.array([[{"key": name, "value": value} for name, value in one] for one in found], type_)


def _times(records: Sequence[RawRecord]) -> pa.Array:
    """When they were written; null where Spark has no such time: a producer may write any number."""
    stamps_ms = [record.timestamp for record in records]
    try:
        return pa.array(stamps_ms, pa.int64()).cast(_MS).cast(_US)
    except pa.ArrowInvalid:
        known = [stamp_ms if -_MS_MAX <= stamp_ms <= _MS_MAX else None for stamp_ms in stamps_ms]
        return pa.array(known, pa.int64()).cast(_MS).cast(_US)


# --- values that have a schema ------------------------------------------------------------------------------------


def _decode_all(
    records: Sequence[RawRecord], decode: Decode
) -> tuple[Sequence[RawRecord], pa.Array, list[tuple[RawRecord, str]]]:
    """All at once; where one does not fit, each half of them by itself, down to those that do not."""
    fits: list[RawRecord] = []
    values: list[pa.Array] = []
    bad: list[tuple[RawRecord, str]] = []
    waiting = [records]
    while waiting:
        part = waiting.pop()
        try:
            values.append(decode([record.value for record in part]))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            if len(part) == 1:
                bad.append((part[0], f"{type(error).__name__}: {error}"))
            else:
                half = len(part) // 2
                waiting += [part[half:], part[:half]]
        else:
            fits += part
    return fits, pa.concat_arrays(values) if values else None, bad


def _as_read(type_: pa.DataType) -> pa.DataType:
    """What Arrow's reader makes of JSON for a column of a type: of dates, times. Raises: OptionError."""
    if pa.types.is_date(type_):
        return pa.timestamp("s")
    if pa.types.is_struct(type_):
        return pa.struct([one.with_type(_as_read(one.type)) for one in type_])
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_as_read(type_.value_type)))
    if pa.types.is_map(type_):
        raise OptionError("value=json cannot read a MAP: leave value=bytes, and use Spark's from_json")
    return type_


def _from_json(values: Sequence[bytes | None], type_: pa.StructType, as_read: pa.StructType) -> pa.Array:
    """JSON objects as structs; what the schema does not have is left out, what a record does not have is null."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        whole = iter(_from_json(known, type_, as_read).to_pylist())
        return pa.array([None if value is None else next(whole) for value in values], type_)
    if not known:
        return pa.array([], type_)
    stripped = [value.strip() for value in known]
    if not all(value[:1] == b"{" and value[-1:] == b"}" for value in stripped):
        # Checked by value: an empty one beside one of two objects would be as many objects as there are values.
        raise ValueError("a value is no JSON object")
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
    return found if as_read == type_ else found.cast(type_)
