"""The form of a deed: arguments with their checks and help, an act, and words for its effects.

Each face is made from it, and reads the same texts. So both refuse a wrong argument with the same sentence, and both
call the same act with the same arguments.

With `dry_run` an act checks what it can and changes nothing; the preview's words are made from its result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from flowshare.ops.arguments import words_of

Given = dict[str, Any]
"""Arguments of an act, by name."""
Order = Callable[[str, str, float, str], Awaitable[float]]
"""Has a worker act. Takes its address, the page, the time in s to wait, and the figure of the answer to return."""


@dataclass(frozen=True, slots=True)
class Preview:
    """Effects that a deed would have. lines: as sentences; columns, rows: as a table."""

    lines: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()


def effects(*lines: str) -> Preview:
    """Return a preview of sentences; empty ones are left out."""
    return Preview(tuple(filter(None, lines)))


@dataclass(frozen=True, slots=True)
class Deed:
    """One deed. command: words of the command. arguments: in their order.

    act: gets a session, or with `on_workers` an `Order`; then `dry_run` and the arguments. about, said: words for the
    result of a dry run, and of the act; they get the arguments, too. check: makes the act's arguments from those that
    were read; raises ClickException where they do not go together. danger: it cannot be undone. trial: the command's
    option that asks for a dry run (`--dry-run`) or for the act (`--execute`); trial_of: the object of its help.
    produces: it sends records, as the app of `--app` does.
    """

    command: str
    help: str
    arguments: tuple[click.Parameter, ...]
    act: Callable[..., Coroutine[Any, Any, Any]]
    about: Callable[..., Preview]
    said: Callable[..., str]
    check: Callable[[Given], Given] = dict
    danger: bool = False
    on_workers: bool = False
    produces: bool = False
    trial: str = ""
    trial_of: str = ""

    @property
    def name(self) -> str:
        """The last word of the command."""
        return self.command.split()[-1]

    def words(self, given: Mapping[str, Sequence[str]]) -> list[str]:
        """Return the words of a command line that does it, from the texts of each argument by its name."""
        sure = [self.trial] if self.trial == "--execute" else []
        return [*self.command.split(), *words_of(self.arguments, given, sure)]

    def read(self, given: Mapping[str, Sequence[str]]) -> Given:
        """Return the act's arguments, as the command has them for the same texts. Raises: ClickException."""
        command = click.Command(self.name, params=list(self.arguments))
        with command.make_context(self.name, words_of(self.arguments, given)) as context:
            return self.check(context.params)
