"""What the codecs with a registry have in common: subjects, ids, and a reader for each schema that values were written
with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar

from flowshare.agents.codecs import wire
from flowshare.agents.codecs.client import Reference, SchemaRefused, SchemaText, UnknownSchema
from flowshare.agents.codecs.registry import KEPT, Registry, Schema
from flowshare.agents.handler.codec import CodecUnavailable, Missing, RecordHeaders
from flowshare.agents.handler.errors import OptionError, Unencodable
from flowshare.agents.handler.texts import said

M = TypeVar("M")
Subject = Literal["topic", "record", "topic_record"] | Callable[[str, str, str], str]
"""How the subject of a topic's schema is called; a function gets topic, "key" or "value", and the record's name."""
STRATEGIES: Final[dict[str, Callable[[str, str, str], str]]] = {
    "topic": lambda topic, what, _record: f"{topic}-{what}",
    "record": lambda _topic, _what, record: record,
    "topic_record": lambda topic, _what, record: f"{topic}-{record}",
}


class RegistryCodec(Generic[M]):
    """A codec whose values carry the id of their schema in a registry (`wire`)."""

    kind: ClassVar[str]
    """AVRO, JSON or PROTOBUF."""
    model: Any
    """What values are made of; None: whatever the format gives."""

    def __init__(
        self,
        registry: Registry,
        *,
        references: Iterable[tuple[str, str, int]] = (),
        subject: Subject = "topic",
        register: bool = True,
        use_latest: bool = False,
    ) -> None:
        """See `Avro`. Raises: OptionError."""
        name = f"fs.{type(self).__name__}"
        if not isinstance(registry, Registry):
            raise OptionError(f"{name}(registry=…) takes fs.Registry('http://…'), not {registry!r}")
        if isinstance(subject, str) and subject not in STRATEGIES:
            raise OptionError(
                f"{name}(subject=…) takes {', '.join(map(repr, STRATEGIES))} or a function, not {subject!r}"
            )
        self.registry = registry
        self._subject = subject
        self._register = register
        self._use_latest = use_latest
        self._references = tuple(Reference(*one) for one in references)
        self._topic = self._what = ""
        self.forget()

    def forget(self) -> None:
        """Ask and compile anew."""
        self._readers: dict[int, Callable[[bytes], Any]] = {}
        self._write: Callable[[Any], bytes] | None = None
        self._refused: Exception | None = None

    @property
    def made_of(self) -> dict[str, Any]:
        """What it was made of, for others that read and write the same: Spark's source and sink."""
        return {
            "references": self._references,
            "subject": self._subject,
            "use_latest": self._use_latest,
            "register": self._register,
        }

    def bind(self, topic: str, what: str) -> RegistryCodec[M]:
        """The same for a topic's keys or values."""
        bound = copy.copy(self)
        bound.__dict__.update(_topic=topic, _what=what)
        bound.forget()
        return bound

    def __getstate__(self) -> dict[str, Any]:
        """For other processes (Spark's): compiled schemas stay here."""
        return {**self.__dict__, "_readers": {}, "_write": None, "_refused": None}

    # --- reading ----------------------------------------------------------------------------------------------------

    def missing(self, raw: bytes, headers: RecordHeaders) -> Missing | None:
        """The schema that the value was written with, where it is not known yet."""
        del headers
        try:
            number = wire.schema_id(raw)
        except wire.NotFramed:
            return None
        if number in self._readers:
            return None
        if self.registry.has_not(number):
            return None
        return Missing((id(self), number), f"schema {number} of {self.registry.shown}", lambda: self._fetch(number))

    def _fetch(self, number: int) -> None:
        try:
            self._reader(number)  # made here, as a large schema takes a while
        except (UnknownSchema, SchemaRefused):
            return  # that is known now, and told to whoever decodes

    def decode(self, raw: bytes, headers: RecordHeaders = ()) -> Any:
        """The value. Raises: ValueError: it was not written so; UnknownSchema; RegistryUnavailable, where it blocks."""
        del headers
        number = wire.schema_id(raw)
        read = self._readers.get(number)
        return (self._reader(number) if read is None else read)(raw)

    def _reader(self, number: int) -> Callable[[bytes], Any]:
        schema = self.registry.schema(number)
        try:
            if schema.text.kind != self.kind:
                raise ValueError(f"schema {number} is of the kind {schema.text.kind}, and {self.kind} is read here")
            made = self.reader(schema, number)
        except CodecUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - it is no schema that values can be read by
            made = _refusing(said(error))
        if len(self._readers) >= KEPT:
            self._readers.clear()
        self._readers[number] = made
        return made

    def reader(self, schema: Schema, number: int) -> Callable[[bytes], Any]:
        """What reads values of this schema, the header included. Raises: ValueError: no value can be read."""
        raise NotImplementedError

    # --- writing ----------------------------------------------------------------------------------------------------

    @property
    def subject(self) -> str:
        """Under which the schema is registered. Raises: Unencodable: there is no schema."""
        strategy = STRATEGIES[self._subject] if isinstance(self._subject, str) else self._subject
        made = strategy(self._topic, self._what, self.record_name)
        if not made or not isinstance(made, str):
            raise Unencodable(f"there is no subject for the schema of {self._topic!r}: give the schema a name")
        return made

    @property
    def record_name(self) -> str:
        """The schema's own name; empty: it has none."""
        raise NotImplementedError

    @property
    def writes(self) -> bool:
        """Whether it has a schema of its own."""
        return True

    def text(self) -> SchemaText:
        """The schema that is written with. Raises: Unencodable: there is none; RegistryError, where it blocks."""
        raise NotImplementedError

    def writer(self, schema: Schema | None) -> Callable[[Any], bytes]:
        """What writes values, without the id; schema: the registry's newest, in place of the codec's own."""
        raise NotImplementedError

    def missing_to_encode(self) -> Missing | None:
        """The id that the schema has in the registry, where it is not known yet."""
        if self._write is not None or self._refused is not None:
            return None
        what = f"the id of the schema of {self._topic} ({self._what}) in {self.registry.shown}"
        return Missing((id(self), "id"), what, self._fetch_id)

    def _fetch_id(self) -> None:
        try:
            self._prepare()
        except CodecUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - it is known now, and told to whoever encodes
            self._refused = error

    def encode(self, value: Any) -> bytes:
        """In bytes. Raises: Unencodable; and what `missing_to_encode` would find, where it blocks."""
        if (refused := self._refused) is not None:
            self._refused = None  # the next value asks again: somebody may have mended it
            raise refused
        write = self._write
        return (self._prepare() if write is None else write)(value)

    def _prepare(self) -> Callable[[Any], bytes]:
        if self._use_latest:
            number, schema = self.registry.latest(self.subject)
            if schema.text.kind != self.kind:
                raise Unencodable(
                    f"subject {self.subject} has a schema of the kind {schema.text.kind}, not {self.kind}"
                )
            write = self.writer(schema)
        else:
            number = self.registry.id_of(self.subject, self.text(), register=self._register)
            write = self.writer(None)
        before = wire.prefix(number)

        def framed(value: Any) -> bytes:
            return before + write(value)

        self._write = framed
        return framed


def _refusing(why: str) -> Callable[[bytes], Any]:
    def read(_: bytes) -> Any:
        raise ValueError(why)

    return read
