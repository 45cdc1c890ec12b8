"""Values with a schema registry, as columns: decoded by the source, encoded by the sink.

Executors keep a registry's schemas for as long as their Python processes live. While the registry does not answer, a
task waits for a minute and then fails, so that its batch comes again. A value that does not fit is poison for the
source, as without a registry, and fails the sink's task. For a login that Spark does not show see `fs.Registry`.
"""

from __future__ import annotations

import functools
import importlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa

from flowshare.agents.codecs.avro import Avro
from flowshare.agents.codecs.base import RegistryCodec
from flowshare.agents.codecs.client import RegistryUnavailable, SchemaText
from flowshare.agents.codecs.json_schema import JsonSchema
from flowshare.agents.codecs.protobuf import Protobuf
from flowshare.agents.codecs.registry import Registry, Schema
from flowshare.agents.codecs.wire import HEADER, schema_id
from flowshare.agents.handler.codec import encode_by
from flowshare.agents.handler.ddl import struct_fields
from flowshare.agents.handler.errors import OptionError, UsageError
from flowshare.agents.handler.texts import said

T = TypeVar("T")
WAIT_S: Final = 60.0
AGAIN_S: Final = 1.0
Strip = Callable[[Mapping[str, Any]], Any]


class WithRegistry(Protocol):
    """The options that source and sink share."""

    @property
    def value(self) -> str:
        """The format: bytes, json, avro or protobuf."""
        ...

    @property
    def value_schema(self) -> str:
        """The schema, in Avro's or JSON Schema's JSON; of the source's JSON in Spark's DDL."""
        ...

    @property
    def value_message(self) -> str:
        """The class of a Protobuf message as `module:Class`."""
        ...

    @property
    def registry(self) -> str:
        """The registry's address; empty: no registry."""
        ...

    @property
    def registry_ca(self) -> str:
        """The path of a CA's certificate."""
        ...


def check(options: WithRegistry) -> None:
    """Check that options which need each other are present. Raises: OptionError."""
    if options.value == "protobuf" and not (options.registry and options.value_message):
        raise OptionError("value=protobuf needs registry=… and value_message=module:Class")
    if options.value_message and options.value != "protobuf":
        raise OptionError("value_message goes with value=protobuf")
    if options.registry and options.value == "bytes":
        raise OptionError("registry=… goes with value=avro, value=json or value=protobuf")
    if options.registry_ca and not options.registry:
        raise OptionError("registry_ca goes with registry=…")
    if options.registry:
        registry_of(options.registry, options.registry_ca)
    if options.value_message:
        message_class(options.value_message)


@functools.lru_cache(maxsize=16)
def registry_of(url: str, ca: str) -> Registry:
    """Return the registry at an address, one for each process. Raises: OptionError."""
    return Registry(url, tls=ca or None)


@functools.lru_cache(maxsize=64)
def message_class(path: str) -> Any:
    """Return the class that `module:Class` names. Raises: OptionError."""
    module, _, name = path.partition(":")
    try:
        return functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(f"value_message takes module:Class of a Protobuf message, not {path!r}: {error}") from error


def newest_schema(options: WithRegistry, topics: Sequence[str]) -> str:
    """Return the newest Avro schema of a topic's values, for options without one. Raises: OptionError,
    RegistryError."""
    if len(topics) != 1:
        raise OptionError("value=avro without value_schema takes one topic, whose schema the registry has: give one")
    found = until_answered(lambda: registry_of(options.registry, options.registry_ca).latest(f"{topics[0]}-value"))[1]
    if found.text.kind != "AVRO" or found.others:
        raise OptionError(
            f"the newest schema of {topics[0]}-value is of the kind {found.text.kind}, or refers to others: "
            "give value_schema=…"
        )
    return found.text.text


def source_options(codec: RegistryCodec[Any]) -> dict[str, str]:
    """Return the source's options for reading values of a codec.

    Raises: UsageError, NoColumn: options cannot express the codec.
    """
    found = _where(codec)
    if isinstance(codec, JsonSchema):
        fields = None if codec.model is None else struct_fields(codec.model)
        if fields is None:
            raise UsageError(
                "fs.JsonSchema of a pipeline's topic needs a class with fields: its columns are made of it"
            )
        return {**found, "value": "json", "value_schema": fields}
    return {**found, **_written(codec)}


def sink_options(codec: RegistryCodec[Any]) -> dict[str, str]:
    """Return the sink's options for writing values of a codec. Raises: UsageError: options cannot express the codec."""
    found = {**_where(codec), **_written(codec)}
    if codec.made_of["use_latest"]:
        found.pop("value_schema", None)
    subject = codec.made_of["subject"]
    if not isinstance(subject, str) or not codec.made_of["register"]:
        raise UsageError("the codec of a pipeline's sink has a subject by name, and registers its schema")
    return {**found, "subject": subject}


def _where(codec: RegistryCodec[Any]) -> dict[str, str]:
    registry = codec.registry
    if registry.has_secrets or codec.made_of["references"]:
        raise UsageError(
            "executors are told the registry's address and CA alone, and no references: give a login by the "
            "environment variable FLOWSHARE_REGISTRY_AUTH, of driver and executors, and a schema without references"
        )
    return {"registry": registry.url, **({"registry_ca": registry.ca} if registry.ca else {})}


def _written(codec: RegistryCodec[Any]) -> dict[str, str]:
    if isinstance(codec, Protobuf):
        return {"value": "protobuf", "value_message": f"{codec.model.__module__}:{codec.model.__qualname__}"}
    value = "avro" if isinstance(codec, Avro) else "json"
    return {"value": value, **({"value_schema": codec.text().text} if codec.writes else {})}


def until_answered(ask: Callable[[], T]) -> T:
    """Call `ask`, which asks a registry; repeat it for up to a minute while the registry does not answer.

    Raises: RegistryUnavailable; all errors of `ask`.
    """
    until_s = time.monotonic() + WAIT_S
    while True:
        try:
            return ask()
        except RegistryUnavailable:
            if time.monotonic() >= until_s:
                raise
            time.sleep(AGAIN_S)


# --- reading ----------------------------------------------------------------------------------------------------------


class _Columns(Avro[Any]):
    """Avro for columns: logical types without a column type become their base types, also in the writer's schema."""

    def __init__(self, schema: Any, registry: Registry, readable: Strip) -> None:
        super().__init__(schema=readable(schema), registry=registry)
        self._readable = readable

    def reader(self, schema: Schema, number: int) -> Callable[[bytes], Any]:
        """Return a reader as for any Avro, with the changed schema."""
        others = tuple((name, self._changed(text)) for name, text in schema.others)
        return super().reader(Schema(self._changed(schema.text), others), number)

    def _changed(self, text: SchemaText) -> SchemaText:
        try:
            found = json.loads(text.text)
        except ValueError:
            return text  # whoever parses it says what is wrong
        return SchemaText(text.kind, json.dumps(self._readable(found)), text.references)


def avro_values(options: WithRegistry, readable: Strip) -> Callable[[bytes], Any]:
    """Return a function that decodes an Avro value, with `value_schema` as the reader's schema."""
    codec = _Columns(json.loads(options.value_schema), registry_of(options.registry, options.registry_ca), readable)
    return lambda raw: until_answered(lambda: codec.decode(raw))


def json_values(options: WithRegistry) -> Callable[[bytes], bytes]:
    """Return a function that takes the JSON text out of a value."""
    registry = registry_of(options.registry, options.registry_ca)

    def read(raw: bytes) -> bytes:
        number = schema_id(raw)
        kind = until_answered(lambda: registry.schema(number)).text.kind
        if kind != "JSON":
            raise ValueError(f"schema {number} is of the kind {kind}, and JSON is read here")
        return raw[HEADER:]

    return read


def protobuf_values(options: WithRegistry) -> Callable[[bytes], dict[str, Any]]:
    """Return a function that decodes a Protobuf message as a row."""
    registry = registry_of(options.registry, options.registry_ca)
    codec: Protobuf[Any] = Protobuf(message_class(options.value_message), registry=registry)
    return lambda raw: _row(until_answered(lambda: codec.decode(raw)))


_PROTO: Final[Mapping[int, str]] = {
    1: "DOUBLE",
    2: "FLOAT",
    3: "BIGINT",
    4: "DECIMAL(20, 0)",  # uint64, which BIGINT does not hold
    5: "INT",
    6: "DECIMAL(20, 0)",
    7: "BIGINT",  # fixed32
    8: "BOOLEAN",
    9: "STRING",
    12: "BINARY",
    13: "BIGINT",
    14: "STRING",
    15: "INT",
    16: "BIGINT",
    17: "INT",
    18: "BIGINT",
}
"""Column types by the numbers of Protobuf's types (descriptor.proto); an enum becomes its name."""
_MESSAGE: Final = (10, 11)


def protobuf_type(path: str) -> str:
    """Return the column type of a message in Spark's DDL. Raises: OptionError: the message contains itself."""
    return _struct(message_class(path).DESCRIPTOR, ())


def _struct(described: Any, above: tuple[str, ...]) -> str:
    if described.full_name in above:
        raise OptionError(f"value_message: {described.full_name} holds itself, which no column can")
    inside = (*above, described.full_name)
    fields = [f"`{one.name}`: {_field_type(one, inside)}" for one in described.fields]
    if not fields:
        raise OptionError(f"value_message: {described.full_name} has no fields")
    return f"STRUCT<{', '.join(fields)}>"


def _field_type(field: Any, above: tuple[str, ...]) -> str:
    if _is_map(field):
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        return f"MAP<{_PROTO[key.type]}, {_one_type(value, above)}>"
    one = _one_type(field, above)
    return f"ARRAY<{one}>" if _is_repeated(field) else one


def _one_type(field: Any, above: tuple[str, ...]) -> str:
    return _struct(field.message_type, above) if field.type in _MESSAGE else _PROTO[field.type]


def _is_repeated(field: Any) -> bool:
    found = getattr(field, "is_repeated", None)
    return bool(field.label == 3 if found is None else found)  # LABEL_REPEATED, before Protobuf 6


def _is_map(field: Any) -> bool:
    return field.type in _MESSAGE and bool(field.message_type.GetOptions().map_entry)


def _row(message: Any) -> dict[str, Any]:
    """Return a message as a row; an absent field is null, if the message tells its absence."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            of = field.message_type.fields_by_name["value"]
            found[field.name] = [(key, _one(of, one)) for key, one in value.items()]
        elif _is_repeated(field):
            found[field.name] = [_one(field, one) for one in value]
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _one(field, value)
    return found


def _one(field: Any, value: Any) -> Any:
    if field.type in _MESSAGE:
        return _row(value)
    if field.type == 14:  # an enum; a number that the class does not know stays one
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return value


# --- writing ----------------------------------------------------------------------------------------------------------


class ValueEncoder:
    """Encodes a column of values as bytes. Raises: Unencodable, RegistryError."""

    def __init__(self, options: WithRegistry, subject: str) -> None:
        """subject: as of `fs.Avro`. Without a schema in the options the subject's newest one is used."""
        registry = registry_of(options.registry, options.registry_ca)
        named: Any = {"registry": registry, "subject": subject}
        if options.value == "protobuf":
            self._model: Any = message_class(options.value_message)
            self._codec: Any = Protobuf(self._model, **named)
        else:
            self._model = None
            kind: Any = Avro if options.value == "avro" else JsonSchema
            given = {"schema": options.value_schema} if options.value_schema else {"use_latest": True}
            self._codec = kind(**named, **given)
        self._bound: dict[str, Any] = {}

    def batches(self, batches: Iterator[pa.RecordBatch], place: int, topic: str, at: int) -> Iterator[pa.RecordBatch]:
        """Yield the batches with encoded values. place: the values' column. topic: of all rows; empty: column `at` has
        it."""
        for batch in batches:
            values, type_ = batch.column(place), batch.schema.field(place).type
            topics = [topic] * batch.num_rows if topic else batch.column(at).to_pylist()
            encoded = [
                None if value is None else self._encoded(one, _plain(value, type_))
                for one, value in zip(topics, values.to_pylist(), strict=True)
            ]
            yield batch.set_column(place, batch.schema.field(place).name, pa.array(encoded, pa.binary()))

    def _encoded(self, topic: str | None, value: Any) -> bytes:
        name = topic or ""
        if name not in self._bound:
            self._bound[name] = self._codec.bind(name, "value")
        codec = self._bound[name]
        given = value if self._model is None else self._message(value)
        made = until_answered(lambda: encode_by(codec, given, f"topic {name!r}: a row's value"))
        assert isinstance(made, bytes)
        return made

    def _message(self, row: Any) -> Any:
        try:
            return self._model(**{name: value for name, value in row.items() if value is not None})
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"a row's value is no {self._model.DESCRIPTOR.full_name}: {said(error, 300)}") from error


def _plain(value: Any, type_: pa.DataType) -> Any:
    """Return a value of Arrow with dicts in place of its maps."""
    if value is None:
        return None
    if pa.types.is_map(type_):
        return {key: _plain(one, type_.item_type) for key, one in value}
    if pa.types.is_struct(type_):
        return {field.name: _plain(value[field.name], field.type) for field in type_}
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return [_plain(one, type_.value_type) for one in value]
    return value
