"""Values, keys and headers for people: as JSON, text or bytes, or by their schema, with masked fields left out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, cast

from flowshare.agents.codecs.wire import HEADER, MAGIC, NotFramed

if TYPE_CHECKING:
    from flowshare.console.schemas import Schemas

SHOWN_MAX: Final = 4_096
"""The most bytes of a value that a page shows."""
PARSED_MAX: Final = 256 * 1024
"""The most bytes of a value that is parsed: 50 values of 10 MB each would hold up all pages for seconds."""
MASKED: Final = "•••"
DEPTH_MAX: Final = 64
_BEFORE_JSON: Final = "".join(map(chr, range(33))) + "\ufeff\ufffd\x7f"
"""Characters that some reader of JSON accepts before it."""
_SCHEMA_FOLLOWS: Final = bytes([MAGIC])
_FORMS: Final = ("json", "text", "hex")
_BY_SCHEMA: Final = "schema"


class Values:
    """The display of values. masks: names of hidden fields; with masks a value that is no object or array, or longer
    than `PARSED_MAX`, is not shown at all. schemas: of a registry, for values that carry a schema's id."""

    def __init__(self, masks: Iterable[str] = (), schemas: Schemas | None = None) -> None:
        self._masks = frozenset(masks)
        self._schemas = schemas
        self.forms = _FORMS if schemas is None else (_BY_SCHEMA, *_FORMS)
        """The forms of a value; the first is the default."""

    @property
    def hides(self) -> bool:
        """True if there are masks: then texts of exceptions are hidden, too, as they may hold any value."""
        return bool(self._masks)

    def form(self, query: Mapping[str, str]) -> str:
        """Return the form that a page's address asks for."""
        asked = query.get("form", "")
        return asked if asked in self.forms else self.forms[0]

    async def learn(self, values: Iterable[bytes | None], form: str) -> str | None:
        """Look up the schemas that these values need, for a second at most. Returns the reason if some are missing."""
        return None if self._schemas is None or form != _BY_SCHEMA else await self._schemas.learn(values)

    def text(self, raw: bytes | None, form: str) -> str:
        """Return a value as text: `schema` (by its schema; without a schema's id as JSON), `json` (indented; text if it
        is no JSON), `text`, `hex`."""
        if raw is None:
            return "null"
        if form == "hex" and not self._masks:
            return _hex(raw)
        if form == _BY_SCHEMA and self._schemas is not None and len(raw) <= PARSED_MAX:
            try:
                return self._read(self._schemas.read(raw), raw)
            except NotFramed:
                pass
            except ValueError as error:
                return self._hidden(raw) if self._masks else f"({error}) {_hex(raw)}"
        found: Any = self._json(raw) if form != "text" or self._masks else None
        if _nested(found):
            return self._read(found, raw)
        return self._hidden(raw) if self._masks else _text(raw)

    def aside(self, raw: bytes | None, name: str = "") -> str:
        """Return a key, or a header of this name, as text; an object or array without masked fields."""
        if name in self._masks:
            return MASKED
        if raw is None:
            return "null"
        found: object = None
        try:
            if self._schemas is not None and len(raw) <= PARSED_MAX:
                found = self._schemas.read(raw)
        except NotFramed:
            pass
        except ValueError:
            if self._masks:
                return MASKED
        if found is None and self._masks:
            found = self._json(raw)
        if _nested(found):
            return " ".join(self._read(found, raw).split())
        if self._masks and self._may_tell(raw, found):
            return MASKED
        return _text(raw) if found is None else str(found)[:SHOWN_MAX] + _cut(raw)

    def _may_tell(self, raw: bytes, found: object) -> bool:
        """True if a value that is no object or array may hold a masked field all the same: it is too long or too deep
        to be read as JSON, cut off, or JSON within a text; it contains the name of a masked field; or its schema is not
        known."""
        if isinstance(found, str):
            texts = {found}
        elif found is None and raw[:1] == _SCHEMA_FOLLOWS and len(raw) >= HEADER:
            return True  # its schema is not known here, and Avro and Protobuf write no names of fields
        else:
            text = raw.decode("utf-8", "replace")
            texts = {text, text.replace("\0", ""), raw.decode(_encoding(raw), "replace")}
        return any(
            text.lstrip(_BEFORE_JSON)[:1] in ("{", "[") or any(one in text for one in self._masks) for text in texts
        )

    def _read(self, value: object, raw: bytes) -> str:
        if self._masks and not _nested(value):
            return self._hidden(raw)
        text = json.dumps(masked(value, self._masks, room=[SHOWN_MAX]), indent=2, ensure_ascii=False, default=_plain)
        return text[:SHOWN_MAX] + (f" … {len(raw)} bytes" if len(text) > SHOWN_MAX else "")

    @staticmethod
    def _json(raw: bytes) -> Any:
        try:
            return json.loads(raw) if len(raw) <= PARSED_MAX else None
        except (ValueError, RecursionError):
            return None

    @staticmethod
    def _hidden(raw: bytes) -> str:
        return f"{MASKED} ({len(raw)} bytes)"


def _nested(value: object) -> bool:
    return isinstance(value, (dict, list))


def masked(value: object, masks: frozenset[str], depth: int = 0, *, room: list[int] | None = None) -> object:
    """Return the value without the contents of these fields; parts deeper than `DEPTH_MAX` are left out.

    room: a list with the number of parts left to show; no more are shown.
    """
    if depth > DEPTH_MAX:
        return MASKED
    if isinstance(value, dict):
        fields = cast(dict[str, object], value).items()
        return {
            name: MASKED if name in masks else masked(one, masks, depth + 1, room=room)
            for name, one in takewhile(lambda _: _has_room(room), fields)
        }
    if isinstance(value, list):
        items = cast(list[object], value)
        return [masked(one, masks, depth + 1, room=room) for one in takewhile(lambda _: _has_room(room), items)]
    return value


def _has_room(room: list[int] | None) -> bool:
    if room is not None:
        room[0] -= 1
    return room is None or room[0] >= 0


def _encoding(raw: bytes) -> str:
    """Return the encoding as JSON's readers find it; for them a NUL among the first bytes is half a character."""
    return json.detect_encoding(raw)


_FRAME: Final = re.compile(r'  File "[^"\n]+", line \d+(, in \S+)?')
_KIND: Final = re.compile(r"[\w.<>]{1,200}")
_HEAD: Final = "Traceback (most recent call last):"


def masked_trace(trace: str) -> str:
    """Return file, line and function of the first exception's frames, without exceptions' texts and source lines. Text
    behind the frames may imitate frames, so it is cut off."""
    kept: list[str] = []
    for line in trace.removeprefix(_HEAD + "\n").split("\n"):
        if _FRAME.fullmatch(line):
            kept.append(line)
        elif not (kept and line.startswith(("    ", "  [Previous line repeated"))):
            break
    return "\n".join(kept)


def masked_kind(exception: str) -> str:
    """Return an exception's class; any other text is masked."""
    return exception if not exception or _KIND.fullmatch(exception) else MASKED


def _text(raw: bytes | None) -> str:
    return "null" if raw is None else raw[:SHOWN_MAX].decode("utf-8", "backslashreplace") + _cut(raw)


def _hex(raw: bytes) -> str:
    return raw[:SHOWN_MAX].hex(" ") + _cut(raw)


def _cut(raw: bytes) -> str:
    return f" … {len(raw)} bytes" if len(raw) > SHOWN_MAX else ""


def _plain(value: Any) -> str:
    """Convert a value that JSON has no type for: bytes to hex, times to ISO, others (decimals, UUIDs) to text."""
    if isinstance(value, bytes):
        return value.hex(" ")
    return value.isoformat() if isinstance(value, (datetime, date, time)) else str(value)
