"""Definition of one setting: its name, text form, bounds, and the message that refuses a bad value.

The tables themselves are in `config_tables.py`. A value is read from text, because Kafka's config APIs carry text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from flowshare.core_errors import InvalidConfig

DURATION: Final = re.compile(
    r"(?P<sign>[-+]?)P(?:(?P<days>[-+]?\d{1,15})D)?"
    r"(?:T(?=[-+\d])(?:(?P<hours>[-+]?\d{1,15})H)?(?:(?P<minutes>[-+]?\d{1,15})M)?"
    r"(?:(?P<seconds>[-+]?\d{1,15})(?:[.,](?P<fraction>\d{0,9}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)
COMPARED_MAX: Final = 100
"""The longest name that is compared with known names, in characters."""
UNKNOWN_SETTING: Final = "unknown setting"
"""The beginning of the error with which a server of an older release refuses a setting that it does not know."""
ALIKE: Final = 0.6
"""The least likeness, by shared pairs of letters, at which a known name is suggested for an unknown one."""
INTEGER: Final = re.compile(r"[-+]?\d{1,19}", re.ASCII)


def duration_ms(text: str) -> int:
    """Return the milliseconds, rounded down, of an ISO-8601 duration `PnDTnHnMn.nS`, as Java's `Duration.parse` reads
    it.

    Raises InvalidConfig when the text is malformed or the duration is negative.
    """
    match = DURATION.fullmatch(text)
    if match is None or all(match[part] is None for part in ("days", "hours", "minutes", "seconds")):
        raise InvalidConfig(f"{text!r} is not an ISO-8601 duration; write PnDTnHnMn.nS, for example PT1H or P7DT12H")
    whole = 86_400 * int(match["days"] or 0) + 3600 * int(match["hours"] or 0)
    whole += 60 * int(match["minutes"] or 0) + int(match["seconds"] or 0)
    nanos = int((match["fraction"] or "").ljust(9, "0"))
    if (match["seconds"] or "").startswith("-"):
        nanos = -nanos
    total = whole * 1_000_000_000 + nanos
    if match["sign"] == "-":
        total = -total
    if total < 0:
        raise InvalidConfig(f"duration {text!r} is negative; it must be zero or more")
    return total // 1_000_000


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint `; did you mean …?` for a name that is not in `known`; empty when nothing is close.

    Compares the pairs of letters that two names share, some µs a known name: strangers ask for thousands of unknown
    ones.
    """
    if len(name) > COMPARED_MAX:
        return ""
    pairs = _pairs_of(name)
    likeness, close = max(((_likeness(pairs, _pairs(one)), one) for one in known), default=(0.0, ""))
    return f"; did you mean {close}?" if likeness >= ALIKE else ""


def _pairs_of(name: str) -> frozenset[str]:
    padded = f" {name.lower()} "
    return frozenset(padded[at : at + 2] for at in range(len(padded) - 1))


_pairs = functools.lru_cache(maxsize=1_000)(_pairs_of)
"""Pairs of letters of known names, cached."""


def _likeness(one: frozenset[str], other: frozenset[str]) -> float:
    return 2 * len(one & other) / (len(one) + len(other))


_AT_ONCE: Final = "assignments are made where heartbeats are taken, they take no time"
WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "group.share.assignor.offload.enable": _AT_ONCE,
    "share.assignor.offload.enable": _AT_ONCE,
    "group.consumer.assignor.offload.enable": _AT_ONCE,
    "consumer.assignor.offload.enable": _AT_ONCE,
    "group.share.initialize.retry.interval.ms": "a share-partition gets its first state at the next heartbeat",
    "group.consumer.migration.policy": "a group changes its protocol while it has no members, and only then",
    "group.consumer.regex.refresh.interval.ms": "patterns are matched at every heartbeat",
    "group.coordinator.rebalance.protocols": "all protocols of groups are on",
}
"""Settings of Kafka's brokers that would change nothing here, with the reason in the refusal."""


def unknown(name: str, known: Iterable[str]) -> InvalidConfig:
    """Return the error for a setting that does not exist; the text has the reason, or the nearest known name."""
    if name in WITHOUT_EFFECT:
        return InvalidConfig(f"{name} has no effect here: {WITHOUT_EFFECT[name]}; leave it out")
    return InvalidConfig(f"{UNKNOWN_SETTING} {name!r}{nearest(name, known)}")


INT_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting. `low` and `high` are inclusive and apply to numbers; `words` are the values that are not numbers."""

    name: str
    field: str
    doc: str
    default: str
    read: Callable[[Setting, str], Any]
    low: int | None = None
    high: int | None = None
    words: Mapping[str, Any] | None = None

    def parse(self, text: str) -> Any:
        """Return the value of `text`. Raises InvalidConfig, whose text has the name and the allowed values."""
        return self.read(self, text.strip())

    def text(self, value: Any) -> str:
        """Return a value as it is written in a config; None becomes its word."""
        if value is None:
            return next(word for word, meaning in (self.words or {}).items() if meaning is None)
        return text_of(value)

    @property
    def allowed(self) -> str:
        """The allowed values in words: `15000 to 60000`, `at least 1`, `true or false`, …"""
        span: list[str] = []
        if self.low is not None and self.high is not None:
            span.append(f"{self.low} to {self.high}")
        elif self.low is not None:
            span.append(f"at least {self.low}")
        return " or ".join([*span, *(self.words or ())])

    def refuse(self, text: str) -> InvalidConfig:
        """Return the error for a value that is not allowed."""
        return InvalidConfig(f"{self.name} is {text!r}; allowed: {self.allowed}")


def number(
    defaults: object, name: str, field: str, low: int, doc: str, words: Mapping[str, None] | None = None
) -> Setting:
    """Return the setting of a number. Its default is the field of `defaults`; None there is the first of the words."""
    value = getattr(defaults, field)
    default = next(iter(words)) if value is None and words else str(value)
    return Setting(
        words=words, name=name, field=field, default=default, low=low, high=INT_MAX, doc=doc, read=read_number
    )


def by_name(*settings: Setting) -> dict[str, Setting]:
    """Return name -> setting."""
    return {setting.name: setting for setting in settings}


def read_fields(values: Mapping[str, str], table: Mapping[str, Setting]) -> dict[str, Any]:
    """Return field -> value of all settings of a table; missing ones have their defaults.

    Raises InvalidConfig for an unknown name or a value out of bounds.
    """
    for name in values:
        if name not in table:
            raise unknown(name, table)
    return {setting.field: setting.parse(values.get(name, setting.default)) for name, setting in table.items()}


def read_number(setting: Setting, text: str) -> Any:
    """Read an integer within the bounds, or the value of one of the words."""
    if setting.words is not None and text in setting.words:
        return setting.words[text]
    if INTEGER.fullmatch(text) is None:
        raise setting.refuse(text)
    value = int(text)
    if (setting.low is not None and value < setting.low) or (setting.high is not None and value > setting.high):
        raise setting.refuse(text)
    return value


def read_word(setting: Setting, text: str) -> Any:
    """Read the value of one of the words."""
    words = setting.words or {}
    if text not in words:
        raise setting.refuse(text)
    return words[text]


def read_flag(setting: Setting, text: str) -> Any:
    """Read `true` or `false` in any case."""
    return read_word(setting, text.lower())


def read_text(_: Setting, text: str) -> Any:
    """Read any text."""
    return text


def read_offset_reset(setting: Setting, text: str) -> Any:
    """Read `earliest`, `latest` or `by_duration:` with an ISO-8601 duration that is not negative."""
    strategy, colon, duration = text.partition(":")
    if strategy == "by_duration" and colon:
        try:
            duration_ms(duration)
        except InvalidConfig as error:
            raise InvalidConfig(f"{setting.name}: {error}") from error
        return text
    return read_word(setting, text)


def read_key_order(setting: Setting, text: str) -> Any:
    """Read `key`, `header:` with a name, or the empty text: no order."""
    header, colon, name = text.partition(":")
    if text in ("", "key") or (header == "header" and colon and name and name == name.strip()):
        return text
    raise setting.refuse(text)


def text_of(value: object) -> str:
    """Return a value as it is written in a config: `true`, `30000`, …"""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
