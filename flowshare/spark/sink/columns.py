"""Rows of the sink: the allowed columns of a DataFrame, and their Arrow arrays as plain Python lists.

| column | type | when it is missing or null |
|---|---|---|
| value | binary or string | null: a tombstone; the column must be there |
| key | binary or string | no key: the record goes to any partition |
| topic | string | the option `topic`, which wins when both are there |
| partition | integer | by key, else spread |
| headers | array of struct of key and value, or map of string to binary | none |
| timestamp | timestamp | the moment at which it is sent |
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from flowshare.agents.handler.errors import OptionError, nearest
from flowshare.spark.checks import FORMAT
from flowshare.spark.sink.options import SinkOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Header = tuple[str, bytes | None]

BYTES: Final = frozenset({"binary", "string", "varchar", "char", "void"})
INTEGERS: Final = frozenset({"byte", "short", "integer", "long", "tinyint", "smallint", "int", "bigint", "void"})
MOMENTS: Final = frozenset({"timestamp", "timestamp_ntz", "void"})
TYPES: Final[Mapping[str, tuple[frozenset[str], str]]] = {
    "value": (BYTES, "binary or string"),
    "key": (BYTES, "binary or string"),
    "topic": (BYTES - {"binary"}, "string"),
    "partition": (INTEGERS, "int"),
    "timestamp": (MOMENTS, "timestamp"),
}
"""Spark's names of the allowed types of a column, and the wanted type in words."""
COLUMNS: Final = (*TYPES, "headers")
NESTED: Final = frozenset({"struct", "map", "array", "variant"})


class RowColumns(NamedTuple):
    """One Arrow batch, column by column; each has one entry a row, or repeats without end."""

    topics: Iterable[str]
    partitions: Iterable[int | None]
    keys: Iterable[bytes | None]
    values: list[bytes | None]
    headers: Iterable[list[Header]]
    timestamps: Iterable[int | None]


@dataclass(frozen=True, slots=True)
class Layout:
    """The positions of a DataFrame's columns. places: column -> its position. topic: of all rows, or empty."""

    places: Mapping[str, int]
    topic: str

    @classmethod
    def of(cls, schema: StructType, options: SinkOptions) -> Layout:
        """Check a DataFrame's columns. Raises: OptionError."""
        places: dict[str, int] = {}
        for place, column in enumerate(schema.fields):
            name = column.name.lower()
            if name not in COLUMNS:
                raise OptionError(
                    f"{FORMAT} has no column {column.name!r} to write. {nearest(name, COLUMNS)} Select what is to be "
                    "sent, for example to_json(struct('*')) AS value"
                )
            if name in places:
                raise OptionError(f"the column {name!r} is there twice")
            if name != "value" or options.value == "bytes":
                _check(name, column.dataType)
            places[name] = place
        if "value" not in places:
            raise OptionError(f"{FORMAT} needs a column 'value', for example to_json(struct('*')) AS value")
        if not options.topic and "topic" not in places:
            raise OptionError(f"{FORMAT} needs .option(\"topic\", …), or a column 'topic'")
        return cls(places, options.topic)

    @property
    def values_only(self) -> bool:
        """True if the columns hold only values for one topic: the fast case."""
        return bool(self.topic) and not self.places.keys() - {"value", "topic"}

    def rows(self, batch: pa.RecordBatch) -> RowColumns:
        """Return the rows of a batch, column by column. Raises: ValueError (a row without topic, a header without
        name)."""
        return RowColumns(
            itertools.repeat(self.topic) if self.topic else self._read(batch, "topic", names_of),
            self._read(batch, "partition", integers_of),
            self._read(batch, "key", bytes_of),
            bytes_of(batch.column(self.places["value"])),
            self._read(batch, "headers", headers_of) if "headers" in self.places else itertools.repeat([]),
            self._read(batch, "timestamp", milliseconds_of),
        )

    def _read(self, batch: pa.RecordBatch, name: str, read: Callable[[pa.Array], list[Any]]) -> Iterable[Any]:
        place = self.places.get(name)
        return itertools.repeat(None) if place is None else read(batch.column(place))


def _check(name: str, type_: Any) -> None:
    if name == "headers":
        if not _is_headers(type_):
            raise OptionError(
                f"the column 'headers' is {type_.simpleString()}; it takes array<struct<key:string,value:binary>> or "
                "map<string,binary>"
            )
        return
    kinds, wanted = TYPES[name]
    kind = type_.typeName()
    if kind in kinds:
        return
    advice = f"to_json({name})" if kind in NESTED else f"CAST({name} AS {wanted.split()[-1]})"
    raise OptionError(f"the column {name!r} is {type_.simpleString()} and has to be {wanted}: select {advice}")


def _is_headers(type_: Any) -> bool:
    kind = type_.typeName()
    if kind == "void":
        return True
    if kind == "map":
        return type_.keyType.typeName() in TYPES["topic"][0] and type_.valueType.typeName() in BYTES
    if kind != "array" or type_.elementType.typeName() != "struct":
        return False
    inner = {one.name: one.dataType.typeName() for one in type_.elementType.fields}
    return inner.keys() == {"key", "value"} and inner["key"] in TYPES["topic"][0] and inner["value"] in BYTES


# --- Arrow --------------------------------------------------------------------------------------------------------
# Arrow's own `to_pylist` first makes an Arrow object for each element, which takes several times as long.


def bytes_of(column: pa.Array) -> list[bytes | None]:
    """Return strings, as UTF-8, or binaries, as bytes."""
    count = len(column)
    if not count or pa.types.is_null(column.type):
        return [None] * count
    wide = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    if not pa.types.is_binary(column.type):
        column = column.cast(pa.large_binary() if wide else pa.binary())  # without copying
    _, marks_at, data = column.buffers()
    marks = _numbers(marks_at, "q" if wide else "i", column.offset, count + 1)
    whole = b"" if data is None else memoryview(data)[: marks[-1]].tobytes()
    found: list[bytes | None] = [whole[start:end] for start, end in itertools.pairwise(marks)]
    return _with_nulls(column, found)


def integers_of(column: pa.Array) -> list[int | None]:
    """Return integers of any width."""
    count = len(column)
    if not count or pa.types.is_null(column.type):
        return [None] * count
    wide = column.cast(pa.int64())
    return _with_nulls(wide, list(_numbers(wide.buffers()[1], "q", wide.offset, count)))


def milliseconds_of(column: pa.Array) -> list[int | None]:
    """Return timestamps as milliseconds since 1970; those without a zone count as UTC."""
    if pa.types.is_null(column.type):
        return [None] * len(column)
    return integers_of(column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64()))


def names_of(column: pa.Array) -> list[str]:
    """Return topics, one string object for each name. Raises: ValueError (a row has none)."""
    if column.null_count or pa.types.is_null(column.type):
        raise ValueError("a row has no topic: its column 'topic' is null, and there is no .option(\"topic\", …)")
    coded = column.dictionary_encode()
    names: list[str] = coded.dictionary.to_pylist()
    return [names[index] for index in integers_of(coded.indices) if index is not None]


def headers_of(column: pa.Array) -> list[list[Header]]:
    """Return each row's headers, from an array of structs or from a map. Raises: ValueError (a header has no name)."""
    if pa.types.is_null(column.type):
        return [[] for _ in range(len(column))]
    offsets = column.offsets
    marks = _numbers(offsets.buffers()[1], "i", offsets.offset, len(offsets))
    first, count = marks[0], marks[-1] - marks[0]  # the children of a slice are whole
    if pa.types.is_map(column.type):
        names, contents = column.keys.slice(first, count), column.items.slice(first, count)
    else:
        structs = column.values.slice(first, count)
        parts = dict(zip((one.name for one in structs.type), structs.flatten(), strict=True))
        names, contents = parts["key"], parts["value"]
    decoded = [None if name is None else name.decode() for name in bytes_of(names)]
    pairs = list(zip(decoded, bytes_of(contents), strict=True))
    kept = column.is_valid().to_pylist() if column.null_count else itertools.repeat(True)
    spans = zip(itertools.pairwise(mark - first for mark in marks), kept, strict=False)
    found = [pairs[start:end] if valid else [] for (start, end), valid in spans]
    if any(name is None for row in found for name, _ in row):
        raise ValueError("a header has no name: the column 'headers' holds a null key")
    return found  # type: ignore[return-value]  # no name is None


def _numbers(buffer: Any, form: str, start: int, count: int) -> list[int]:
    return memoryview(buffer).cast("B").cast(form)[start : start + count].tolist()  # type: ignore[call-overload, no-any-return]


def _with_nulls(column: pa.Array, found: list[Any]) -> list[Any]:
    if not column.null_count:
        return found
    return [value if valid else None for value, valid in zip(found, column.is_valid().to_pylist(), strict=True)]
