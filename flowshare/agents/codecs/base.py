"""Common part of the codecs with a registry: subjects, ids, and one reader per schema that values were written with."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar

from flowshare.agents.codecs import wire
from flowshare.agents.codecs.client import Reference, SchemaRefused, SchemaText, UnknownSchema
from flowshare.agents.codecs.registry import KEPT, Registry, Schema
from flowshare.agents.handler.codec import CodecUnavailable, Missing, RecordHeaders
from flowshare.agents.handler.errors import OptionError, Unencodable
from flowshare.agents.handler.texts import said

M = TypeVar("M")
AT_ONCE_BYTES: Final = 8 * 1024
"""Bytes: a longer value of a schema that allows expensive ones is read in a thread, before its handler's turn; others
go on."""
LOOKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Most bytes of such values that wait for their handlers."""
_NOTHING: Final[Any] = object()
_NOT_LOOKED: Final[tuple[Any, Exception | None]] = (_NOTHING, None)
_MADE_HERE: Final = frozenset({"_readers", "_dear", "_looked", "_looking", "_one_look", "_write", "_refused"})
Subject = Literal["topic", "record", "topic_record"] | Callable[[str, str, str], str]
"""Rule for the subject of a topic's schema; a function gets topic, "key" or "value", and the record's name."""
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
    """Class of decoded values; None: the type that the format gives."""

    def __init__(
        self,
        registry: Registry,
        *,
        references: Iterable[tuple[str, str, int]] = (),
        subject: Subject = "topic",
        register: bool = True,
        use_latest: bool = False,
    ) -> None:
        """Takes the options of `Avro`. Raises: OptionError."""
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
        """Forget schemas, to ask and compile anew."""
        self._readers: dict[int, Callable[[bytes], Any]] = {}
        self._dear: set[int] = set()
        """Schemas whose large values are looked over before they are decoded."""
        self._looked: OrderedDict[bytes, tuple[Any, Exception | None]] = OrderedDict()
        self._looking, self._one_look = threading.Lock(), threading.Lock()
        self._write: Callable[[Any], bytes] | None = None
        self._refused: Exception | None = None

    @property
    def made_of(self) -> dict[str, Any]:
        """Return the codec's arguments, to make equal ones: Spark's source and sink."""
        return {
            "references": self._references,
            "subject": self._subject,
            "use_latest": self._use_latest,
            "register": self._register,
        }

    def bind(self, topic: str, what: str) -> RegistryCodec[M]:
        """Return a copy for a topic's keys or values."""
        bound = copy.copy(self)
        bound.__dict__.update(_topic=topic, _what=what)
        bound.forget()
        return bound

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for other processes (Spark's), without compiled schemas."""
        return {name: one for name, one in self.__dict__.items() if name not in _MADE_HERE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore it."""
        self.__dict__.update(state)
        self.forget()

    # --- reading ----------------------------------------------------------------------------------------------------

    def missing(self, raw: bytes, headers: RecordHeaders) -> Missing | None:
        """Return the look-up of the value's schema, if unknown; then that of a large value."""
        del headers
        try:
            number = wire.schema_id(raw)
        except wire.NotFramed:
            return None
        if number in self._readers:
            if len(raw) <= AT_ONCE_BYTES or number not in self._dear or raw in self._looked:
                return None
            return Missing((id(self), raw), f"a look at a value of {len(raw)} bytes", lambda: self._look(raw))
        if self.registry.has_not(number):
            return None
        return Missing((id(self), number), f"schema {number} of {self.registry.shown}", lambda: self._fetch(number))

    def _fetch(self, number: int) -> None:
        try:
            self._reader(number)  # made here, as a large schema takes a while
        except (UnknownSchema, SchemaRefused):
            return  # the error is known now, and `decode` tells it

    def decode(self, raw: bytes, headers: RecordHeaders = ()) -> Any:
        """Decode a value. Raises: ValueError: not written so; UnknownSchema; RegistryUnavailable, where it blocks."""
        del headers
        if self._looked:
            with self._looking:
                found, wrong = self._looked.pop(raw, _NOT_LOOKED)
            if wrong is not None:
                raise wrong
            if found is not _NOTHING:
                return found
        return self._decoded(raw)

    def _decoded(self, raw: bytes) -> Any:
        number = wire.schema_id(raw)
        read = self._readers.get(number)
        return (self._reader(number) if read is None else read)(raw)

    def _look(self, raw: bytes) -> None:
        """Decode a large value in a thread, for its later `decode`; one at a time. Raises: CodecUnavailable."""
        with self._looking:
            if raw in self._looked:
                return
        try:
            with self._one_look:
                found, wrong = self._decoded(raw), None
        except CodecUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - it is known now, and told to whoever decodes
            found, wrong = None, error
        with self._looking:
            self._looked[raw] = found, wrong
            while sum(map(len, self._looked)) > LOOKED_BYTES_MAX and len(self._looked) > 1:
                self._looked.popitem(last=False)

    def _reader(self, number: int) -> Callable[[bytes], Any]:
        schema = self.registry.schema(number)
        if len(self._readers) >= KEPT:
            self._readers.clear()
            self._dear.clear()
        try:
            if schema.text.kind != self.kind:
                raise ValueError(f"schema {number} is of the kind {schema.text.kind}, and {self.kind} is read here")
            made = self.reader(schema, number)
        except CodecUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - it is no schema that values can be read by
            made = _refusing(said(error))
        self._readers[number] = made
        return made

    def reader(self, schema: Schema, number: int) -> Callable[[bytes], Any]:
        """Return the decoder for values of this schema; it gets the bytes with their header.

        Raises: ValueError: no value of the schema can be read.
        """
        raise NotImplementedError

    # --- writing ----------------------------------------------------------------------------------------------------

    @property
    def subject(self) -> str:
        """Subject of the registered schema. Raises: Unencodable: there is no schema."""
        strategy = STRATEGIES[self._subject] if isinstance(self._subject, str) else self._subject
        made = strategy(self._topic, self._what, self.record_name)
        if not made or not isinstance(made, str):
            raise Unencodable(f"there is no subject for the schema of {self._topic!r}: give the schema a name")
        return made

    @property
    def record_name(self) -> str:
        """The schema's own name; empty: none."""
        raise NotImplementedError

    @property
    def writes(self) -> bool:
        """True if the codec has a schema of its own."""
        return True

    def text(self) -> SchemaText:
        """Return the schema for writing. Raises: Unencodable: there is none; RegistryError, where it blocks."""
        raise NotImplementedError

    def writer(self, schema: Schema | None) -> Callable[[Any], bytes]:
        """Return the encoder for values, without the schema id before them.

        schema: the registry's newest schema, used in place of the codec's own.
        """
        raise NotImplementedError

    def missing_to_encode(self) -> Missing | None:
        """Return the look-up of the schema's id in the registry, if unknown."""
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
        """Encode a value. Raises: Unencodable; and the errors of `missing_to_encode`'s look-up, where it blocks."""
        if (refused := self._refused) is not None:
            self._refused = None  # the next value asks again: the cause may be mended
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
