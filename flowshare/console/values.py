"""Values, keys and headers for people: as JSON, text or bytes, or by their schema, without what is masked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any, Final, cast

from flowshare.agents.codecs.wire import NotFramed

if TYPE_CHECKING:
    from flowshare.console.schemas import Schemas

SHOWN_MAX: Final = 4_096
"""Bytes of a value that a page shows."""
PARSED_MAX: Final = 256 * 1024
"""Bytes of a value that is read: 50 of 10 MB each would hold up all pages for seconds."""
MASKED: Final = "•••"
DEPTH_MAX: Final = 64
_FORMS: Final = ("json", "text", "hex")
_BY_SCHEMA: Final = "schema"


class Values:
    """How values are shown. masks: names of fields that are not; with masks a value that is no object or array, or
    longer than `PARSED_MAX`, is not shown at all. schemas: of a registry, for values that carry the id of theirs."""

    def __init__(self, masks: Iterable[str] = (), schemas: Schemas | None = None) -> None:
        self._masks = frozenset(masks)
        self._schemas = schemas
        self.forms = _FORMS if schemas is None else (_BY_SCHEMA, *_FORMS)
        """The first is what is shown unless another one is asked for."""

    @property
    def hides(self) -> bool:
        """Whether there are masks: then what exceptions say is not shown, as it may hold any value."""
        return bool(self._masks)

    def form(self, query: Mapping[str, str]) -> str:
        """What a page's address asks for."""
        asked = query.get("form", "")
        return asked if asked in self.forms else self.forms[0]

    async def learn(self, values: Iterable[bytes | None], form: str) -> str | None:
        """Look up what showing these needs, for a second at most. Returns: why some of it is missing."""
        return None if self._schemas is None or form != _BY_SCHEMA else await self._schemas.learn(values)

    def text(self, raw: bytes | None, form: str) -> str:
        """A value: `schema` (what it says by its schema; without a schema's id as JSON), `json` (indented; text where
        it is none), `text`, `hex`."""
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
        """A key, or a header of this name: as text; of an object or array without what is masked."""
        if name in self._masks:
            return MASKED
        found: object = None
        try:
            if self._schemas is not None and raw is not None:
                found = self._schemas.read(raw)
        except NotFramed:
            pass
        except ValueError:
            if self._masks:
                return MASKED
        if found is None and raw is not None and self._masks:
            found = self._json(raw)
        if raw is not None and _nested(found):
            return " ".join(self._read(found, raw).split())
        return _text(raw) if found is None else str(found)

    def _read(self, value: object, raw: bytes) -> str:
        if self._masks and not _nested(value):
            return self._hidden(raw)
        text = json.dumps(masked(value, self._masks), indent=2, ensure_ascii=False, default=_plain)
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


def masked(value: object, masks: frozenset[str], depth: int = 0) -> object:
    """The same without what these fields say; what lies deeper than `DEPTH_MAX` is left out."""
    if depth > DEPTH_MAX:
        return MASKED
    if isinstance(value, dict):
        fields = cast(dict[str, object], value)
        return {name: MASKED if name in masks else masked(one, masks, depth + 1) for name, one in fields.items()}
    if isinstance(value, list):
        return [masked(one, masks, depth + 1) for one in cast(list[object], value)]
    return value


_FRAME: Final = re.compile(r'  File "[^"\n]+", line \d+(, in \S+)?')
_KIND: Final = re.compile(r"[\w.<>]{1,200}")
_HEAD: Final = "Traceback (most recent call last):"


def masked_trace(trace: str) -> str:
    """Where it was raised, without what exceptions say and the code that stands there: file, line and function of the
    first exception's frames. What comes behind them may be a text that looks like more of them."""
    kept: list[str] = []
    for line in trace.removeprefix(_HEAD + "\n").split("\n"):
        if _FRAME.fullmatch(line):
            kept.append(line)
        elif not (kept and line.startswith(("    ", "  [Previous line repeated"))):
            break
    return "\n".join(kept)


def masked_kind(exception: str) -> str:
    """An exception's class; what is no name of one is not shown."""
    return exception if not exception or _KIND.fullmatch(exception) else MASKED


def _text(raw: bytes | None) -> str:
    return "null" if raw is None else raw[:SHOWN_MAX].decode("utf-8", "backslashreplace") + _cut(raw)


def _hex(raw: bytes) -> str:
    return raw[:SHOWN_MAX].hex(" ") + _cut(raw)


def _cut(raw: bytes) -> str:
    return f" … {len(raw)} bytes" if len(raw) > SHOWN_MAX else ""


def _plain(value: Any) -> str:
    """What JSON has no word for: bytes as hex, times as ISO has them, others (decimals, UUIDs) as text."""
    if isinstance(value, bytes):
        return value.hex(" ")
    return value.isoformat() if isinstance(value, (datetime, date, time)) else str(value)
