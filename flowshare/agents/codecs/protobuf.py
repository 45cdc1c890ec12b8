"""`Protobuf`: messages of protoc's classes, with their schema in a registry."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, TypeVar

from flowshare.agents.codecs import wire
from flowshare.agents.codecs.base import RegistryCodec, Subject
from flowshare.agents.codecs.client import Reference, SchemaRefused, SchemaText
from flowshare.agents.codecs.proto_text import file_of
from flowshare.agents.codecs.registry import REFERENCES_MAX, Registry, Schema
from flowshare.agents.handler.errors import OptionError, Unencodable
from flowshare.agents.handler.texts import said, shown

M = TypeVar("M")


class Protobuf(RegistryCodec[M]):
    """Protobuf messages with a schema registry.

    model: a class that protoc made. Its file is registered, and the files that it imports, each under its name as the
    subject (but Google's own, which every registry knows). Fields of a newer writer are kept as unknown fields; fields
    that an older writer left out have their defaults. A value of another message is refused.

    subject: `topic` (`<topic>-value`, `<topic>-key`), `record` (the message's full name), `topic_record`, a function.
    register: register the schema at the first value, if it is not there; False: it has to be there. use_latest: write
    with the id of the subject's newest schema.
    """

    kind = "PROTOBUF"

    def __init__(
        self,
        model: type[M],
        *,
        registry: Registry,
        subject: Subject = "topic",
        register: bool = True,
        use_latest: bool = False,
    ) -> None:
        """Raises: OptionError: not such a class."""
        super().__init__(registry, subject=subject, register=register, use_latest=use_latest)
        described: Any = getattr(model, "DESCRIPTOR", None)
        if not isinstance(model, type) or not hasattr(described, "file"):
            raise OptionError(f"fs.Protobuf takes a message class that protoc made, not {shown(model)}")
        self.model: type[M] = model
        self._indexes = wire.write_indexes(_indexes(described))

    @property
    def record_name(self) -> str:
        """The message's full name."""
        model: Any = self.model
        return str(model.DESCRIPTOR.full_name)

    def text(self) -> SchemaText:
        """Return the message's file, with references to the files that it imports, which are registered first.
        Blocks."""
        model: Any = self.model
        return self._file(model.DESCRIPTOR.file, [])

    def _file(self, file: Any, seen: list[str]) -> SchemaText:
        seen.append(file.name)
        if len(seen) > REFERENCES_MAX:
            raise SchemaRefused(f"{seen[0]} imports more than {REFERENCES_MAX} files")
        references = []
        for imported in file.dependencies:
            if imported.name.startswith("google/protobuf/"):
                continue
            text = self._file(imported, seen)
            version = self.registry.version_of(imported.name, text, register=self._register)
            references.append(Reference(imported.name, imported.name, version))
        return SchemaText(self.kind, base64.b64encode(file.serialized_pb).decode(), tuple(references))

    def reader(self, schema: Schema, number: int) -> Callable[[bytes], Any]:
        """Return the decoder for messages of this schema."""
        from google.protobuf.message import DecodeError

        model: Any = self.model
        file = file_of(schema.text.text)  # parsed once: each value names any message of the file
        known: dict[bytes, int] = {}
        """Message indexes (bytes) that are known to name the right message, and the offset where it begins."""

        def body(raw: bytes) -> int:
            indexes, at = wire.read_indexes(raw, wire.HEADER)
            name = file.name(indexes)
            if name != self.record_name:
                of = f"a {name}" if name else f"message {indexes}"
                raise ValueError(f"it is {of} of schema {number}, not a {self.record_name}")
            known[raw[wire.HEADER : at]] = at
            return at

        def decode(raw: bytes) -> Any:
            at = wire.HEADER + 1
            if raw[wire.HEADER : at] not in known:  # nearly all are `[0]`, in one byte
                at = body(raw)
            try:
                return model.FromString(memoryview(raw)[at:].tobytes())
            except DecodeError as error:
                raise ValueError(f"it is no {self.record_name}: {said(error)}") from error

        return decode

    def writer(self, schema: Schema | None) -> Callable[[Any], bytes]:
        """Return the encoder for messages.

        The encoder raises Unencodable if a value is not of the class, or lacks a required field.
        """
        del schema

        def encode(value: Any) -> bytes:
            if type(value) is not self.model:
                raise Unencodable(f"{shown(value)} is no {self.record_name}")
            try:
                return self._indexes + value.SerializeToString()  # type: ignore[attr-defined, no-any-return]
            except Exception as error:
                raise Unencodable(f"{self.record_name} cannot be sent: {said(error, 300)}") from error

        return encode


def _indexes(described: Any) -> list[int]:
    """Return the message's indexes in its file, from the outermost in; entries of maps are no messages of their own."""
    found: list[int] = []
    while described is not None:
        above = described.containing_type
        beside = described.file.message_types_by_name.values() if above is None else above.nested_types
        names = [one.name for one in beside if not one.GetOptions().map_entry]
        found.append(names.index(described.name))
        described = above
    return found[::-1]
