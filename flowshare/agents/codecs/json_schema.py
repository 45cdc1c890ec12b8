"""`JsonSchema`: values as JSON, with their JSON Schema in a registry."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import orjson

from flowshare.agents.codecs import wire
from flowshare.agents.codecs.base import RegistryCodec, Subject
from flowshare.agents.codecs.client import SchemaText
from flowshare.agents.codecs.registry import Registry, Schema
from flowshare.agents.codecs.schemas import json_schema
from flowshare.agents.handler.encoding import encode
from flowshare.agents.handler.errors import OptionError, Unencodable
from flowshare.agents.handler.texts import said, shown
from flowshare.agents.handler.values import decoder

M = TypeVar("M")


class JsonSchema(RegistryCodec[M]):
    """JSON with a schema registry.

    model: what a value is: whatever a handler can be annotated with; None or dict: what the JSON holds. schema: a JSON
    Schema, as text or as a dict; None: it is made of the model. A codec that only reads needs neither.

    A value that is read has to fit the model, as without a registry; without a model it has to fit `schema`, and
    without either the schema that it was written with. One that is written has to fit `schema`, where that is given, or
    the newest one with use_latest.

    references: schemas that `schema` refers to: (name, subject, version), where the name is what stands in `$ref`.
    Other addresses are never asked. subject: `topic` (`<topic>-value`, `<topic>-key`), `record` (the schema's `title`),
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
        """Raises: OptionError: there is no such schema, or jsonschema is not installed."""
        super().__init__(registry, references=references, subject=subject, register=register, use_latest=use_latest)
        self.model = None if model in (None, dict, Any) else model
        self._given = schema is not None
        self._own = _loaded(schema) if schema is not None else json_schema(self.model) if self.model else None
        self._read = None if self.model is None else decoder(self.model)
        if self._given and not self._references:
            _validator(Schema(self.text()))

    @property
    def record_name(self) -> str:
        """The schema's title; of a made one the class's name."""
        own = self._own or {}
        return str(own.get("title") or getattr(self.model, "__name__", "") or "")

    @property
    def writes(self) -> bool:
        """Whether it has a schema of its own."""
        return self._own is not None

    def text(self) -> SchemaText:
        """The schema that is written with. Raises: Unencodable: there is none."""
        if self._own is None:
            raise Unencodable("this codec only reads: give fs.JsonSchema(…) a model or a schema")
        return SchemaText(self.kind, json.dumps(self._own), self._references)

    def reader(self, schema: Schema, number: int) -> Callable[[bytes], Any]:
        """What reads values of this schema. Raises: ValueError: it is no JSON Schema."""
        read = self._read
        if read is not None:
            return lambda raw: read(raw[wire.HEADER :])
        try:
            check = _validator(self.registry.whole(self.text()) if self._given else schema)
        except OptionError as error:
            raise ValueError(f"schema {number}: {error}") from error

        def decode(raw: bytes) -> Any:
            value = orjson.loads(memoryview(raw)[wire.HEADER :])
            if why := check(value):
                raise ValueError(why)
            return value

        return decode

    def writer(self, schema: Schema | None) -> Callable[[Any], bytes]:
        """What writes values. Raises: Unencodable: a value does not fit."""
        against = schema if schema is not None else self.registry.whole(self.text()) if self._given else None
        check = None if against is None else _validator(against)
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


class _Refs(threading.local):
    """What schemas that are referred to find in a value, each looked at once for each part of it.

    Where a schema holds itself in `anyOf` or `oneOf`, it would else be looked at again at each level for each
    alternative of the level above: of 330 bytes that took half a second, and twice as long with each level more.
    """

    def __init__(self, look: Callable[..., Iterable[Any]]) -> None:
        """look: jsonschema's own `$ref`. (Called again in each thread.)"""
        self._look = look
        self._found: dict[tuple[int, int], tuple[str, Any] | None] = {}

    @contextmanager
    def of_one_value(self) -> Iterator[None]:
        """While this one is checked; its parts, and so their ids, live as long."""
        self._found.clear()
        try:
            yield
        finally:
            self._found.clear()

    def errors(self, validator: Any, ref: str, instance: Any, schema: Any) -> Iterator[Any]:
        """As jsonschema's `$ref`; of what was looked at before, the first error alone."""
        key = id(schema), id(instance)
        if key not in self._found:
            errors = list(self._look(validator, ref, instance, schema))
            self._found[key] = (errors[0].validator, errors[0].validator_value) if errors else None
            yield from errors
        elif (first := self._found[key]) is not None:
            from jsonschema.exceptions import ValidationError

            yield ValidationError("as before", validator=first[0], validator_value=first[1])


def _validator(schema: Schema) -> Callable[[Any], str]:
    """What says where a value does not fit; empty: it fits. Raises: OptionError: it is no schema."""
    try:
        import referencing
        from jsonschema import Draft7Validator
        from jsonschema.exceptions import SchemaError, best_match
        from jsonschema.validators import extend, validator_for
        from referencing.jsonschema import DRAFT7
    except ImportError:
        raise OptionError("fs.JsonSchema needs jsonschema: pip install 'flowshare[registry]'") from None
    own = _loaded(schema.text.text)
    resources = [
        (name, referencing.Resource.from_contents(_loaded(other.text), default_specification=DRAFT7))
        for name, other in schema.others
    ]
    kind: Any = validator_for(own, default=Draft7Validator)
    try:
        kind.check_schema(own)
    except (SchemaError, RecursionError) as error:
        raise OptionError(f"it is no JSON Schema: {said(getattr(error, 'message', error), 300)}") from error
    known: Any = referencing.Registry()
    refs = _Refs(kind.VALIDATORS["$ref"])
    if not any(
        "dynamicRef" in one.text or "recursiveRef" in one.text for one in (schema.text, *dict(schema.others).values())
    ):
        kind = extend(kind, {"$ref": refs.errors})  # those may find something else by another way
    checker = kind(own, registry=known.with_resources(resources))  # one of its own, so that no address is asked

    def check(value: Any) -> str:
        try:
            with refs.of_one_value():
                error = best_match(checker.iter_errors(value))
        except RecursionError:
            return "it is nested too deep"
        except referencing.exceptions.Unresolvable as unknown:
            return f"the schema refers to {said(unknown, 200)}, which is none of its references"
        if error is None:
            return ""
        where = ".".join(str(part) for part in error.absolute_path)
        rule = f"{error.validator}: {shown(error.validator_value)}"  # not its message, which shows the value
        return f"{where or 'it'} does not fit {rule}"

    return check
