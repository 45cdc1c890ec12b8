"""Parts of a console action: a form, the command that it stands for, a preview of its effects, and its execution."""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from flowshare.backend import parse_broker
from flowshare.core_errors import FlowshareError

if TYPE_CHECKING:
    from flowshare.cli.worker_pages import Workers
    from flowshare.console.source import Source

Params = Mapping[str, str]
TEXT_MAX: Final = 1_100
"""The most characters of a field; a group's name has up to 1,024."""
OF_THE_LOG: Final = ("groups", "dlq")
"""Commands that take a broker; the others are about one worker."""
_SECRET: Final = re.compile("passw|secret", re.IGNORECASE)
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""Characters that no form carries: browsers send a line feed as two characters, and nothing for a zero."""
PARTITION_MAX: Final = 2**31 - 1
NUMBER_MAX: Final = 10**18


class BadForm(FlowshareError, ValueError):
    """Error: a form's text is not allowed; the message has what to write instead."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a form. choices: allowed values; hint: the text below. hidden: True: the button sends it."""

    name: str
    label: str = ""
    hint: str = ""
    choices: tuple[str, ...] = ()
    optional: bool = False
    hidden: bool = True


@dataclass(frozen=True, slots=True)
class Preview:
    """Effects that an action would have. lines: as sentences; columns, rows: as a table."""

    lines: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Means:
    """Access of actions to the log and to the workers."""

    source: Source
    workers: Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One action. command: the same deed as words of the command line. danger: it cannot be undone."""

    name: str
    title: str
    fields: tuple[Field, ...]
    command: Callable[[Params], list[str]]
    preview: Callable[[Means, Params], Awaitable[Preview]]
    act: Callable[[Means, Params], Awaitable[str]]
    danger: bool = False
    long: bool = False
    """True: the action may take minutes; short ones have room of their own."""
    back: Callable[[Params], str] = field(
        default=lambda params: f"group?{urlencode({'name': params.get('group', '')})}"
    )

    def read(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the fields of a form. Raises BadForm."""
        read: dict[str, str] = {}
        for one in self.fields:
            # A button's field is a name: `billing ` is another group than `billing`.
            text = given.get(one.name, "") if one.hidden else given.get(one.name, "").strip()
            if _CONTROLS.search(text):
                raise BadForm(
                    f"{one.label or one.name} has a line feed or another control character in it, which no form "
                    "carries as it is: use the command line"
                )
            if len(text) > TEXT_MAX:
                raise BadForm(f"{one.label or one.name} is longer than {TEXT_MAX} characters")
            if not text and not one.optional:
                raise BadForm(f"{one.label or one.name} is missing")
            if text and one.choices and text not in one.choices:
                raise BadForm(f"{one.label or one.name} is one of {', '.join(one.choices)}, not {text!r}")
            read[one.name] = text
        return read

    def said(self, params: Params, broker: str = "") -> str:
        """Return the command as it is typed. broker: the log to name, for commands about the log (`to_type`)."""
        words = _no_option(self.command(params))
        if broker and words[0] in OF_THE_LOG:
            words[2:2] = ["--broker", broker]
        return shlex.join(["flowshare", *words])


def to_type(url: str) -> str:
    """Return the log's URL for a command line that others see: the same log, without passwords.

    The commands take the password of `PASSWORD_VARIABLE` instead.
    """
    broker = parse_broker(url)
    plain = {name: text for name, text in broker.options.items() if name.endswith("_file") or not _SECRET.search(name)}
    return str(replace(broker, password="", options=plain))


def _no_option(words: list[str]) -> list[str]:
    """Return the command with a name that begins with a dash behind `--`, so that it is no option."""
    if words[0] not in OF_THE_LOG:
        return words
    name, rest = words[2], words[3:]
    if not name.startswith("-"):
        return words
    options = bool(rest) and rest[0].startswith("-")
    return [*words[:2], *rest, "--", name] if options else [*words[:2], "--", name, *rest]


GROUP: Final = Field("group", "the group")


def typed(name: str, label: str, hint: str = "", choices: tuple[str, ...] = (), *, optional: bool = False) -> Field:
    """Return a field that the user fills in."""
    return Field(name, label, hint, choices, optional, hidden=False)


def is_number(text: str, most: int = NUMBER_MAX) -> bool:
    """True if the text is a whole number from 0 to `most`."""
    return text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= most


def number(params: Params, name: str, about: str = "", *, least: int = 0) -> int:
    """Return the number that was filled in. Raises: BadForm."""
    text = params[name]
    if not is_number(text, PARTITION_MAX if name == "partition" else NUMBER_MAX) or int(text) < least:
        raise BadForm(f"{about or name} is a number from {least} on, not {text!r}")
    return int(text)
