"""The work of an operator, for all its faces: what is done to groups, dead letters and workers.

`deeds`: one table of deeds, each with its arguments, its act and its words (`deed`). The command is made from it
(`cli.acting`), and so is the console's button (`console.actions`). `arguments`: their texts, read and checked.
`session`: an open log. `groups`: checks before a deed. `letters`, `replay`: dead letters.

Nothing is printed and no page is made here. Click is the form of arguments only.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext


class Failure(Exception):
    """A deed or question cannot go on. The text is the line that the user sees."""


class Reporter:
    """The place where a long deed tells how it goes; this one shows nothing."""

    def tell(self, text: str) -> None:
        """Show a line."""

    def bar(self, title: str, total: int | None) -> AbstractContextManager[Callable[[int], None]]:
        """Show a bar; the function gets the number of steps just done. total: None: unknown."""
        _ = title, total
        return nullcontext(lambda _: None)
