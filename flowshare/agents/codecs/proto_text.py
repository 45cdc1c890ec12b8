"""Names of the messages in a Protobuf schema as a registry has it: .proto text, or a file descriptor in base64.

A value names its message in the schema by numbers. Another message's bytes mostly parse, as something else; so the
numbers are turned into a name, which is compared. Pure. Source: the grammar of proto2, proto3 and editions.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

_TOKEN: Final = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|[A-Za-z_][\w.]*|\S", re.DOTALL)
_BEGINS: Final = frozenset({"{", "}", ";", "export", "local"})
"""Tokens after which a statement may begin."""


class Message(NamedTuple):
    """A message and the messages declared in it, in the order of the file."""

    name: str
    inner: list[Message]


class File(NamedTuple):
    """The declarations of a schema file: package and messages."""

    package: str
    messages: list[Message]

    def name(self, indexes: Sequence[int]) -> str | None:
        """Return the full name of the message with these numbers; None: there is none, or it is not understood."""
        messages = self.messages
        names = [self.package] if self.package else []
        for index in indexes:
            if not 0 <= index < len(messages):
                return None
            names.append(messages[index].name)
            messages = messages[index].inner
        return ".".join(names)


def file_of(schema: str) -> File:
    """Return the messages of a schema, which may be large."""
    found = _of_descriptor(schema)
    return File(*(_of_text(schema) if found is None else found))


def message_name(schema: str, indexes: Sequence[int]) -> str | None:
    """Read a schema and return `File.name` of these indexes."""
    return file_of(schema).name(indexes)


def _of_descriptor(schema: str) -> tuple[str, list[Message]] | None:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        file = FileDescriptorProto.FromString(base64.b64decode(schema, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    return file.package, [_described(one) for one in file.message_type]


def _described(message: Any) -> Message:
    inner = [_described(one) for one in message.nested_type if not one.options.map_entry]
    return Message(message.name, inner)


def _of_text(schema: str) -> tuple[str, list[Message]]:
    """Read blocks only: a `message` where a statement may begin opens a block that counts."""
    package, top = "", Message("", [])
    open_blocks: list[Message | None] = [top]
    start, words = True, _words(schema)
    for word in words:
        if start and word == "package":
            package = next(words, "")
        elif start and word == "message" and open_blocks[-1] is not None:
            made = Message(next(words, ""), [])
            open_blocks[-1].inner.append(made)
            if next(words, "") != "{":
                break
            open_blocks.append(made)
            continue
        elif word == "{":
            # Messages may stand in a group or an extend block as well; messages in other blocks have no name.
            open_blocks.append(None)
        elif word == "}" and len(open_blocks) > 1:
            open_blocks.pop()
        start = word in _BEGINS
    return package, top.inner


def _words(schema: str) -> Iterator[str]:
    for match in _TOKEN.finditer(schema):
        word = match.group()
        if not word.startswith(("//", "/*")):
            yield word
