"""Parts of a console action: a form, the deed that its button does, and the command that does the same."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from flowshare.backend import parse_broker
from flowshare.console.source import ACT_S, ASK_S
from flowshare.core_errors import FlowshareError
from flowshare.ops import Failure

if TYPE_CHECKING:
    from flowshare.cli.worker_pages import Workers
    from flowshare.console.source import Source
    from flowshare.ops.deed import Deed, Given, Preview

Params = Mapping[str, str]
Texts = dict[str, list[str]]
"""Texts of a deed's arguments, by their names."""
TEXT_MAX: Final = 1_100
"""The most characters of a field; a group's name has up to 1,024."""
_SECRET: Final = re.compile("passw|secret", re.IGNORECASE)
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""Characters that no form carries: browsers send a line feed as two characters, and nothing for a zero."""


class BadForm(FlowshareError, ValueError):
    """Error: a form's text is not allowed; the message has what to write instead."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a form. choices: allowed values; hint: the text below. hidden: True: the button sends it.

    argument: the deed's argument that it gives; "": the one of its name. many: it has several texts, with commas or
    spaces between them.
    """

    name: str
    label: str = ""
    hint: str = ""
    choices: tuple[str, ...] = ()
    optional: bool = False
    hidden: bool = True
    argument: str = ""
    many: bool = False

    def texts(self, params: Params) -> Texts:
        """Return the argument that it gives."""
        text = params[self.name]
        return {self.argument or self.name: text.replace(",", " ").split() if self.many else [text]}


@dataclass(frozen=True, slots=True)
class Means:
    """Access of actions to the log and to the workers."""

    source: Source
    workers: Workers

    async def carry_out(self, deed: Deed, arguments: Given, *, dry_run: bool, limit_s: float) -> Any:
        """Return the result of a deed. Raises: Failure; what `Source.ask` raises."""
        if not deed.on_workers:
            return await self.source.ask(
                lambda session: deed.act(session, dry_run=dry_run, **arguments), limit_s=limit_s
            )
        try:
            return await deed.act(self.workers.order, dry_run=dry_run, **arguments)
        except (LookupError, OSError, ValueError) as error:
            raise Failure(str(error)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One action: a deed with a form. limit_s: time, in s, that it may take."""

    name: str
    title: str
    deed: Deed
    fields: tuple[Field, ...]
    texts: Callable[[Params], Texts] | None = None
    """Texts of the deed's arguments; None: as the fields give them."""
    limit_s: float = ASK_S
    long: bool = False
    """True: the action may take minutes; short ones have room of their own."""
    back: Callable[[Params], str] = field(
        default=lambda params: f"group?{urlencode({'name': params.get('group', '')})}"
    )

    @property
    def danger(self) -> bool:
        """True if it cannot be undone."""
        return self.deed.danger

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

    def given(self, params: Params) -> Texts:
        """Return the texts of the deed's arguments."""
        if self.texts is not None:
            return self.texts(params)
        return {name: texts for one in self.fields for name, texts in one.texts(params).items()}

    def arguments(self, params: Params) -> Given:
        """Return the deed's arguments. Raises: ClickException, with the sentence of the command."""
        return self.deed.read(self.given(params))

    def said(self, params: Params, broker: str = "") -> str:
        """Return the command as it is typed. broker: the log to name, for commands about the log (`to_type`)."""
        words = self.deed.words(self.given(params))
        if broker and not self.deed.on_workers:
            size = len(self.deed.command.split())
            words[size:size] = ["--broker", broker]
        return shlex.join(["flowshare", *words])

    async def preview(self, means: Means, arguments: Given) -> Preview:
        """Return the effects that it would have, and change nothing."""
        limit_s = self.limit_s if self.long else min(self.limit_s, ACT_S)
        found = await means.carry_out(self.deed, arguments, dry_run=True, limit_s=limit_s)
        return self.deed.about(found, **arguments)

    async def act(self, means: Means, arguments: Given) -> str:
        """Do it; return the outcome as a sentence."""
        found = await means.carry_out(self.deed, arguments, dry_run=False, limit_s=self.limit_s)
        return self.deed.said(found, **arguments)


def to_type(url: str) -> str:
    """Return the log's URL for a command line that others see: the same log, without passwords.

    The commands take the password of `PASSWORD_VARIABLE` instead.
    """
    broker = parse_broker(url)
    plain = {name: text for name, text in broker.options.items() if name.endswith("_file") or not _SECRET.search(name)}
    return str(replace(broker, password="", options=plain))


GROUP: Final = Field("group", "the group")


def typed(name: str, label: str, hint: str = "", choices: tuple[str, ...] = (), **more: Any) -> Field:
    """Return a field that the user fills in."""
    return Field(name, label, hint, choices, hidden=False, **more)
