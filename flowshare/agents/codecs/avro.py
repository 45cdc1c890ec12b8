"""`Avro`: values in Avro's binary encoding, with their schema in a registry."""

from __future__ import annotations

import enum
import functools
import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from flowshare.agents.codecs import wire
from flowshare.agents.codecs.avro_walk import walk_of
from flowshare.agents.codecs.base import RegistryCodec, Subject
from flowshare.agents.codecs.client import SchemaText
from flowshare.agents.codecs.registry import Registry, Schema
from flowshare.agents.codecs.schemas import avro_records, avro_schema
from flowshare.agents.handler.errors import OptionError, Unencodable
from flowshare.agents.handler.fields import fields_of
from flowshare.agents.handler.texts import said, shown
from flowshare.agents.handler.values import converter

M = TypeVar("M")
_NO_NAMES: Final[Mapping[Any, str]] = {}
_KNOWN: Final = frozenset({str, int, float, bool, bytes, type(None)})


class Avro(RegistryCodec[M]):
    """Avro values with a schema registry.

    model: type of a value: a dataclass, a pydantic model, a msgspec struct, an attrs class, a TypedDict; None or dict:
    a dict. schema: Avro's, as JSON in text or as a dict; None: made of the model (`codecs.schemas`). A codec that only
    reads needs neither: then values are as they were written.

    Values are read by the schema that they were written with, resolved to this one: missing fields take their defaults,
    unknown fields are left out, aliases and wider numbers fit.

    namespace: of a made schema's records. references: schemas that `schema` refers to: (name, subject, version).
    subject: `topic` (`<topic>-value`, `<topic>-key`), `record` (the record's full name), `topic_record`, or a function.
    register: register the schema at the first value, if it is not there; False: it has to be there. use_latest: write
    by the subject's newest schema, as it is when the first value is written, in place of this one.
    """

    kind = "AVRO"

    def __init__(
        self,
        model: Any = None,
        *,
        registry: Registry,
        schema: str | Mapping[str, Any] | list[Any] | None = None,
        namespace: str | None = None,
        references: Iterable[tuple[str, str, int]] = (),
        subject: Subject = "topic",
        register: bool = True,
        use_latest: bool = False,
    ) -> None:
        """Raises: OptionError: the schema is not usable, or fastavro is not installed."""
        super().__init__(registry, references=references, subject=subject, register=register, use_latest=use_latest)
        self.model = None if model in (None, dict, Any) else model
        self._records = avro_records(self.model, namespace) if self.model is not None and schema is None else {}
        self._own = (
            _loaded(schema) if schema is not None else avro_schema(self.model, namespace) if self.model else None
        )
        if self._own is not None and not self._references:
            _parsed(Schema(self.text()))

    @property
    def record_name(self) -> str:
        """Full name of the schema's record; of a plain type its own."""
        own = self._own
        if isinstance(own, str):
            return own
        if not isinstance(own, Mapping):
            return ""
        name = str(own.get("name", own.get("type", "")))
        space = own.get("namespace")
        return f"{space}.{name}" if space and "." not in name else name

    @property
    def writes(self) -> bool:
        """True if the codec has a schema of its own."""
        return self._own is not None

    def text(self) -> SchemaText:
        """Return the schema for writing. Raises: Unencodable: there is none."""
        if self._own is None:
            raise Unencodable("this codec only reads: give fs.Avro(…) a model or a schema")
        return SchemaText(self.kind, json.dumps(self._own), self._references)

    def reader(self, schema: Schema, number: int) -> Callable[[bytes], Any]:
        """Return the decoder for values of this schema. Raises: ValueError: the schema is not valid Avro."""
        from fastavro import schemaless_reader as read
        from fastavro.read import SchemaResolutionError

        try:
            written, named = _parsed(schema)
        except OptionError as error:
            raise ValueError(f"schema {number}: {error}") from error
        own = None if self._own is None else _parsed(self.registry.whole(self.text()))[0]
        check = walk_of(written, named)
        if check is not None:
            self._dear.add(number)
        convert = None if self.model is None else converter(self.model)
        named_ones = {name: converter(kind) for name, kind in self._records.items()}
        divided = bool(named_ones)

        def decode(raw: bytes) -> Any:
            if check is not None:
                check(raw, wire.HEADER)
            stream = io.BytesIO(raw)
            stream.seek(wire.HEADER)
            try:
                value = read(stream, written, own, divided, divided)
            except SchemaResolutionError as error:
                raise ValueError(f"it was written with schema {number}, which does not fit: {said(error)}") from error
            except (EOFError, IndexError, KeyError, StopIteration, OverflowError, ArithmeticError) as error:
                raise ValueError(f"it is no value of schema {number}: {type(error).__name__}: {said(error)}") from error
            if stream.tell() != len(raw):
                raise ValueError(f"{len(raw) - stream.tell()} bytes are left behind the value of schema {number}")
            if divided:
                value = _divided(value, named_ones)
            return value if convert is None else convert(value)

        return decode

    def writer(self, schema: Schema | None) -> Callable[[Any], bytes]:
        """Return the encoder for values. The encoder raises Unencodable if a value does not fit the schema."""
        from fastavro import schemaless_writer as write

        parsed, _ = _parsed(self.registry.whole(self.text()) if schema is None else schema)

        names = {kind: name for name, kind in self._records.items()}
        strict = not names  # else a record's type stands beside its fields

        def encode(value: Any) -> bytes:
            stream = io.BytesIO()
            if type(value) is dict and strict:  # mostly with types that Avro knows
                try:
                    write(stream, parsed, value, strict_allow_default=True)
                    return stream.getvalue()
                except Exception:  # noqa: BLE001 - something in it is not; what else is wrong is told below
                    stream = io.BytesIO()
            plain = plain_of(value, names)
            try:
                write(stream, parsed, plain, strict_allow_default=strict)
            except Exception as error:
                raise Unencodable(
                    f"{shown(value)} does not fit the Avro schema: {_why(plain, parsed, error)}"
                ) from error
            return stream.getvalue()

        return encode


def _divided(value: Any, records: Mapping[str, Callable[[Any], Any]]) -> Any:
    """Turn records out of unions, which fastavro gives with their names, into their classes."""
    if isinstance(value, dict):
        return {key: _divided(one, records) for key, one in value.items()}
    if isinstance(value, list):
        return [_divided(one, records) for one in value]
    if isinstance(value, tuple):
        name, found = value
        plain = _divided(found, records)
        made = records.get(name) or next((one for known, one in records.items() if _last(known) == _last(name)), None)
        return plain if made is None else made(plain)
    return value


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _why(plain: Any, parsed: Any, error: Exception) -> str:
    """Name the fields that do not fit; the writer's own error tells only the type."""
    from fastavro.validation import ValidationError, validate

    try:
        validate(plain, parsed, raise_errors=True)
    except ValidationError as found:
        return said("; ".join(str(one) for one in found.errors[:3]), 300)
    except Exception as found:  # noqa: BLE001 - it only explains
        return said(found, 300)
    return f"{type(error).__name__}: {said(error, 300)}"


def plain_of(value: Any, names: Mapping[Any, str] = _NO_NAMES) -> Any:
    """Turn a value into types that Avro knows: dicts, lists, texts, numbers, times. names: of classes whose records
    need their type beside them, in fastavro's way (`-type`), where a union has several."""
    kind: Any = type(value)
    if kind in _KNOWN:
        return value
    if isinstance(value, enum.Enum):
        return plain_of(value.value, names)
    if kind is dict:
        return {key: plain_of(one, names) for key, one in value.items()}
    if (fields := _names(kind)) is not None:
        plain = {name: plain_of(getattr(value, attribute), names) for name, attribute in fields}
        return {**plain, "-type": names[kind]} if kind in names else plain
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_of(one, names) for one in value]
    return value


@functools.lru_cache(maxsize=1024)
def _names(kind: Any) -> list[tuple[str, str]] | None:
    found = fields_of(kind)
    return None if found is None else [(one.name, one.attribute) for one in found]


def _loaded(schema: Any) -> Any:
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except ValueError:
        return schema  # a plain type, or a name


def _parsed(schema: Schema) -> tuple[Any, dict[str, Any]]:
    """Return a schema in fastavro's form, and its named schemas. Raises: OptionError."""
    try:
        from fastavro.schema import parse_schema
    except ImportError:
        raise OptionError("fs.Avro needs fastavro: pip install 'flowshare[registry]'") from None
    named: dict[str, Any] = {}
    try:
        for _, other in schema.others:
            parse_schema(_loaded(other.text), named)
        return parse_schema(_loaded(schema.text.text), named), named
    except RecursionError:
        raise OptionError("the Avro schema is nested too deep") from None
    except Exception as error:
        raise OptionError(f"it is no Avro schema: {type(error).__name__}: {said(error, 300)}") from error
