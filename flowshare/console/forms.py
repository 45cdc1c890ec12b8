"""What an action of the console is: a form, the command that it stands for, what it would do, and doing it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from flowshare.backend import parse_broker
from flowshare.errors import FlowshareError

if TYPE_CHECKING:
    from flowshare.cli.worker_pages import Workers
    from flowshare.console.source import Source

Params = Mapping[str, str]
TEXT_MAX: Final = 1_100
"""Characters of what stands in a form; a group's name has up to 1,024."""
OF_THE_LOG: Final = ("groups", "dlq")
"""Commands that take a broker; the others are about one worker."""
_SECRET: Final = re.compile("passw|secret", re.IGNORECASE)
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""Browsers send a line feed as two characters, and nothing for a zero."""
PARTITION_MAX: Final = 2**31 - 1
NUMBER_MAX: Final = 10**18


class BadForm(FlowshareError, ValueError):
    """Something that was typed into a form cannot be; the text says what to write instead."""


@dataclass(frozen=True, slots=True)
class Field:
    """Something to fill in. choices: one of these; hint: below it. hidden: it comes with the button."""

    name: str
    label: str = ""
    hint: str = ""
    choices: tuple[str, ...] = ()
    optional: bool = False
    hidden: bool = True


@dataclass(frozen=True, slots=True)
class Preview:
    """What would happen. lines: in words; columns, rows: as a table."""

    lines: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Means:
    """What actions act with."""

    source: Source
    workers: Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One of them. command: the same deed as words of the command line. danger: it cannot be undone."""

    name: str
    title: str
    fields: tuple[Field, ...]
    command: Callable[[Params], list[str]]
    preview: Callable[[Means, Params], Awaitable[Preview]]
    act: Callable[[Means, Params], Awaitable[str]]
    danger: bool = False
    long: bool = False
    """It may take minutes; the others do not wait for room behind it."""
    back: Callable[[Params], str] = field(
        default=lambda params: f"group?{urlencode({'name': params.get('group', '')})}"
    )

    def read(self, given: Mapping[str, str]) -> dict[str, str]:
        """The fields of a form. Raises: BadForm."""
        read: dict[str, str] = {}
        for one in self.fields:
            # What comes with the button is a name: `billing ` is another group than `billing`.
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
        """The command as it is typed. broker: what it is told to work on, where it is about the log (`to_type`)."""
        words = _no_option(self.command(params))
        if broker and words[0] in OF_THE_LOG:
            words[2:2] = ["--broker", broker]
        return shlex.join(["flowshare", *words])


def to_type(url: str) -> str:
    """The log's URL for a command line that others see: the same log, with no password in it.

    The commands take that of `PASSWORD_VARIABLE` instead.
    """
    broker = parse_broker(url)
    plain = {name: text for name, text in broker.options.items() if name.endswith("_file") or not _SECRET.search(name)}
    return str(replace(broker, password="", options=plain))


def _no_option(words: list[str]) -> list[str]:
    """The same command with a name that begins with a dash behind `--`, where it is no option."""
    if words[0] not in OF_THE_LOG:
        return words
    name, rest = words[2], words[3:]
    if not name.startswith("-"):
        return words
    options = bool(rest) and rest[0].startswith("-")
    return [*words[:2], *rest, "--", name] if options else [*words[:2], "--", name, *rest]


GROUP: Final = Field("group", "the group")


def typed(name: str, label: str, hint: str = "", choices: tuple[str, ...] = (), *, optional: bool = False) -> Field:
    """A field that is filled in by whoever acts."""
    return Field(name, label, hint, choices, optional, hidden=False)


def is_number(text: str, most: int = NUMBER_MAX) -> bool:
    """Whether it is a whole number from 0 to `most`."""
    return text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= most


def number(params: Params, name: str, about: str = "", *, least: int = 0) -> int:
    """What is filled in as a number. Raises: BadForm."""
    text = params[name]
    if not is_number(text, PARTITION_MAX if name == "partition" else NUMBER_MAX) or int(text) < least:
        raise BadForm(f"{about or name} is a number from {least} on, not {text!r}")
    return int(text)
