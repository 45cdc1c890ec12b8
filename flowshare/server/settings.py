"""All settings of a server in one place: groups' of both kinds and the listener's, from a server.properties or words.

A name that no part knows is refused with the nearest one that some part does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flowshare.groups.types import ClassicConfig
from flowshare.server.classic_settings import CLASSIC_CONFIGS, parse_classic
from flowshare.server.limits import LISTENER_CONFIGS, ListenerLimits
from flowshare.server.transaction_settings import TRANSACTION_CONFIGS, parse_transactions
from flowshare.share.config import EMBEDDED_CONFIGS, ServerConfig
from flowshare.share.errors import InvalidConfig
from flowshare.share.settings import unknown
from flowshare.transactions.config import TransactionConfig

PROPERTIES_BYTES_MAX: Final = 1024 * 1024
_KEY: Final = re.compile(r"(?P<name>[^\s=:]+)\s*[=:\s]?\s*(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a server is told at its start."""

    server: ServerConfig
    classic: ClassicConfig
    transactions: TransactionConfig
    limits: ListenerLimits

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Settings:
        """Read settings by their names. Raises: InvalidConfig (unknown name, value out of bounds, contradiction)."""
        known = {**EMBEDDED_CONFIGS, **CLASSIC_CONFIGS, **TRANSACTION_CONFIGS, **LISTENER_CONFIGS}
        for name in values:
            if name not in known:
                raise unknown(name, known)
        return cls(
            server=ServerConfig.embedded({name: text for name, text in values.items() if name in EMBEDDED_CONFIGS}),
            classic=parse_classic({name: text for name, text in values.items() if name in CLASSIC_CONFIGS}),
            transactions=parse_transactions(
                {name: text for name, text in values.items() if name in TRANSACTION_CONFIGS}
            ),
            limits=ListenerLimits.parse({name: text for name, text in values.items() if name in LISTENER_CONFIGS}),
        )


def read_properties(path: Path) -> dict[str, str]:
    """The settings of a server.properties file. Raises: InvalidConfig."""
    try:
        if path.stat().st_size > PROPERTIES_BYTES_MAX:
            raise InvalidConfig(f"{path} has more than {PROPERTIES_BYTES_MAX} bytes; name a server.properties file")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise InvalidConfig(f"the file of settings {path} cannot be read: {reason}") from None
    return parse_properties(text)


def parse_properties(text: str) -> dict[str, str]:
    """`name=value` lines as in Java's properties: comments with # or !, a backslash at the end goes on below.

    Of a name that stands twice the last value counts.
    """
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        match = _KEY.match(line)
        if match is not None:
            found[match["name"]] = match["value"].strip()
    return found


def parse_words(words: Iterable[str]) -> dict[str, str]:
    """`name=value` words of a command line. Raises: InvalidConfig."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise InvalidConfig(f"{word!r} is no setting; write name=value")
        found[name.strip()] = value.strip()
    return found


def _logical_lines(text: str) -> Iterable[str]:
    begun = ""
    for line in text.splitlines():
        line = begun + line.strip()
        if not begun and (not line or line[0] in "#!"):
            continue
        if line.endswith("\\"):
            begun = line[:-1]
            continue
        begun = ""
        yield line
    if begun:
        yield begun
