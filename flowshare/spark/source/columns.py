"""Converts records to Arrow: the source's columns, and values with a schema.

A value that does not fit its schema is poison: it is left out and reported, so that the query goes on without it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from flowshare.spark import registry
from flowshare.spark.source import avro
from flowshare.spark.source.json_values import UNFIT, reader

if TYPE_CHECKING:
    from flowshare.protocol.decoding import RawDecoded, RawRecord
    from flowshare.spark.source.options import SourceOptions

HEADERS: Final = "ARRAY<STRUCT<key: STRING, value: BINARY>>"
ROWS: Final = 10_000
"""The records of an Arrow batch, Spark's default (spark.sql.execution.arrow.maxRecordsPerBatch)."""
_MS: Final = pa.timestamp("ms", tz="UTC")
_US: Final = pa.timestamp("us", tz="UTC")
_MS_MAX: Final = (2**63 - 1) // 1000

Decode = Callable[[Sequence[bytes | None]], pa.Array]
"""Decodes values of many records to one array. Raises: pa.ArrowInvalid, ValueError: a value does not fit."""


class Poison(NamedTuple):
    """A record that cannot be read, and the reason."""

    record: RawRecord
    delivery: int
    reason: str


def source_schema(options: SourceOptions) -> str:
    """Return the source's columns in Spark's DDL."""
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
    """Return a function that makes column values of bytes; None: the values stay bytes.

    Raises: OptionError (a schema that cannot be read).
    """
    if options.value == "bytes":
        return None
    type_ = schema.field("value").type
    if options.value == "json":
        read = reader(type_, permissive=options.value_mode == "permissive")
        return _each_first(registry.json_values(options), read) if options.registry else read
    if options.value == "avro" and not options.registry:
        return avro.decoder(options.value_schema, type_)
    one = registry.protobuf_values(options) if options.value == "protobuf" else avro.values(options)
    return _each_first(one, lambda values: pa.array(values, type_))


def _each_first(one: Callable[[bytes], Any], then: Callable[[Sequence[Any]], pa.Array]) -> Decode:
    """Return a decoder that first decodes values one by one, without nulls, and then makes an array of all."""
    return lambda values: then([None if value is None else one(value) for value in values])


def to_arrow(
    topic: str, partition: int, decoded: RawDecoded, schema: pa.Schema, decode: Decode | None
) -> tuple[list[pa.RecordBatch], list[Poison]]:
    """Return batches of records, each of one delivery count, and the records that do not fit."""
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
    """Return all records as poison, for one reason."""
    return [Poison(record, count, reason) for records, count in decoded.runs for record in records]


def _longer(runs: Iterable[tuple[list[RawRecord], int]]) -> Iterator[tuple[Sequence[RawRecord], int]]:
    """Join runs of one delivery count, up to about ROWS records: each run costs Spark as much as some hundred rows."""
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
    """Return the records' timestamps; null where Spark cannot hold one: a producer may write any number."""
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
    """Decode all values at once; if one does not fit, each half, down to the single values that do not fit."""
    fits: list[RawRecord] = []
    values: list[pa.Array] = []
    bad: list[tuple[RawRecord, str]] = []
    waiting = [records]
    while waiting:
        part = waiting.pop()
        try:
            values.append(decode([record.value for record in part]))
        except UNFIT as error:
            if len(part) == 1:
                bad.append((part[0], f"{type(error).__name__}: {error}"))
            else:
                half = len(part) // 2
                waiting += [part[half:], part[:half]]
        else:
            fits += part
    return fits, pa.concat_arrays(values) if values else None, bad
