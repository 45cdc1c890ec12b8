"""`JsonSchema`: values as JSON, with their JSON Schema in a registry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import orjson

from flowshare.agents.codecs import wire
from flowshare.agents.codecs.base import AT_ONCE_BYTES, RegistryCodec, Subject
from flowshare.agents.codecs.client import SchemaText
from flowshare.agents.codecs.json_look import STEPS_AT_ONCE, STEPS_BESIDE, Look, TooLong, dynamic, unbounded
from flowshare.agents.codecs.registry import Registry, Schema
from flowshare.agents.codecs.schemas import json_schema
from flowshare.agents.handler.encoding import encode
from flowshare.agents.handler.errors import OptionError, Unencodable
from flowshare.agents.handler.texts import said, shown
from flowshare.agents.handler.values import decoder

M = TypeVar("M")


class JsonSchema(RegistryCodec[M]):
    """JSON with a schema registry.

    model: type of a value: any annotation of a handler; None or dict: the JSON's content. schema: a JSON Schema, as
    text or as a dict; None: made of the model. A codec that only reads needs neither.

    A value that is read must fit the model, as without a registry; without a model it must fit `schema`, and without
    either the schema that it was written with. A value that is written must fit `schema`, if given, or the newest one
    with use_latest.

    references: schemas that `schema` refers to: (name, subject, version), where the name is the one in `$ref`. Other
    addresses are never asked. subject: `topic` (`<topic>-value`, `<topic>-key`), `record` (the schema's `title`),
    `topic_record`, or a function. register, use_latest: as of `Avro`.
    """

    kind = "JSON"

    def __init__(
        self,
        model: Any = None,
        *,
        registry: Registry,
        schema: str | Mapping[str, Any] | None = None,
        references: Iterable[tuple[str, str, int]] = (),
        subject: Subject = "topic",
        register: bool = True,
        use_latest: bool = False,
    ) -> None:
        """Raises: OptionError: the schema is not usable, or jsonschema is not installed."""
        super().__init__(registry, references=references, subject=subject, register=register, use_latest=use_latest)
        self.model = None if model in (None, dict, Any) else model
        self._given = schema is not None
        self._own = _loaded(schema) if schema is not None else json_schema(self.model) if self.model else None
        self._read = None if self.model is None else decoder(self.model)
        if self._given and not self._references:
            _validator(Schema(self.text()), trusted=True)

    @property
    def record_name(self) -> str:
        """The schema's title; of a made one the class's name."""
        own = self._own or {}
        return str(own.get("title") or getattr(self.model, "__name__", "") or "")

    @property
    def writes(self) -> bool:
        """True if the codec has a schema of its own."""
        return self._own is not None

    def text(self) -> SchemaText:
        """Return the schema for writing. Raises: Unencodable: there is none."""
        if self._own is None:
            raise Unencodable("this codec only reads: give fs.JsonSchema(…) a model or a schema")
        return SchemaText(self.kind, json.dumps(self._own), self._references)

    def reader(self, schema: Schema, number: int) -> Callable[[bytes], Any]:
        """Return the decoder for values of this schema. Raises: ValueError: the schema is not a JSON Schema."""
        read = self._read
        if read is not None:
            return lambda raw: read(raw[wire.HEADER :])
        try:
            against = self.registry.whole(self.text()) if self._given else schema
            check = _validator(against, trusted=self._given)
        except OptionError as error:
            raise ValueError(f"schema {number}: {error}") from error

        self._dear.add(number)

        def decode(raw: bytes) -> Any:
            value = orjson.loads(memoryview(raw)[wire.HEADER :])
            if why := check(value, STEPS_AT_ONCE if len(raw) <= AT_ONCE_BYTES else STEPS_BESIDE):
                raise ValueError(why)
            return value

        return decode

    def writer(self, schema: Schema | None) -> Callable[[Any], bytes]:
        """Return the encoder for values. The encoder raises Unencodable if a value does not fit the schema."""
        against = schema if schema is not None else self.registry.whole(self.text()) if self._given else None
        check = None if against is None else _validator(against, trusted=schema is None)
        fits = None if self.model is None or self._read is None else self._read

        def write(value: Any) -> bytes:
            raw = orjson.dumps(value) if isinstance(value, str) else encode(value)
            assert raw is not None
            if isinstance(value, (bytes, bytearray, memoryview)):
                raise Unencodable(f"{shown(value)} is no value that JSON has")
            if check is not None and (why := check(orjson.loads(raw))):
                raise Unencodable(f"{shown(value)} does not fit the JSON Schema: {why}")
            if check is None and fits is not None:
                try:
                    fits(raw)
                except Exception as error:
                    raise Unencodable(f"{shown(value)} does not fit: {said(error)}") from error
            return raw

        return write


def _loaded(schema: Any) -> Any:
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except ValueError as error:
        raise OptionError(f"it is no JSON Schema, which is JSON: {error}") from error


def _validator(schema: Schema, *, trusted: bool = False) -> Callable[..., str]:
    """Return a function that says where a value does not fit the schema; an empty text means that the value fits.

    trusted: the application wrote the schema itself. Raises: OptionError: the schema is not usable.
    """
    try:
        import referencing
        from jsonschema import Draft7Validator
        from jsonschema.exceptions import best_match
        from jsonschema.validators import extend, validator_for
        from referencing.jsonschema import DRAFT7
    except ImportError:
        raise OptionError("fs.JsonSchema needs jsonschema: pip install 'flowshare[registry]'") from None
    own, others = _loaded(schema.text.text), {name: _loaded(other.text) for name, other in schema.others}
    if not trusted and any(map(unbounded, (own, *others.values()))):
        raise OptionError("unevaluatedProperties beside patternProperties is not looked at: it may take hours")
    resources = [
        (name, referencing.Resource.from_contents(other, default_specification=DRAFT7))
        for name, other in others.items()
    ]
    kind: Any = validator_for(own, default=Draft7Validator)
    _check_schema(kind, own)
    known: Any = referencing.Registry()
    look = Look(trusted=trusted)
    kind = extend(kind, look.keywords(kind.VALIDATORS, refs=not any(map(dynamic, (own, *others.values())))))
    checker = kind(own, registry=known.with_resources(resources))  # a registry of its own, so that no address is asked

    def check(value: Any, steps: int = STEPS_BESIDE) -> str:
        try:
            with look.of_one_value(steps):
                error = best_match(checker.iter_errors(value))
        except RecursionError:
            return "it is nested too deep"
        except TooLong:
            return f"to look whether it fits takes more than {steps} steps: give the codec a model, or a simpler schema"
        except ValueError as unreadable:
            return str(unreadable)
        except referencing.exceptions.Unresolvable as unknown:
            return f"the schema refers to {said(unknown, 200)}, which is none of its references"
        if error is None:
            return ""
        where = ".".join(str(part) for part in error.absolute_path)
        rule = f"{error.validator}: {shown(error.validator_value)}"  # not its message, which shows the value
        return f"{where or 'it'} does not fit {rule}"

    return check


def _check_schema(kind: Any, schema: Any) -> None:
    """Check a JSON Schema. Raises: OptionError: it is none, or would take too many steps."""
    from jsonschema.exceptions import best_match
    from jsonschema.validators import extend, validator_for

    look = Look(trusted=True)
    meta: Any = validator_for(kind.META_SCHEMA, default=kind)
    checker = extend(meta, look.keywords(meta.VALIDATORS, refs=False))(kind.META_SCHEMA)
    try:
        with look.of_one_value(STEPS_BESIDE):
            error = best_match(checker.iter_errors(schema))
    except TooLong:
        raise OptionError("the JSON Schema is too large") from None
    except RecursionError as deep:
        raise OptionError(f"it is no JSON Schema: {said(deep, 300)}") from deep
    if error is not None:
        raise OptionError(f"it is no JSON Schema: {said(error.message, 300)}") from error
