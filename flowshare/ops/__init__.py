"""Figures of groups as operators see them, and the deeds by which operators change groups, dead letters and workers.

All faces (the commands lag, top and groups, the console, `/metrics`, `/lag` and `/scale`) take figures from here, so
that each figure is computed in one place:

- `figures`: the figures of a partition, a topic, a group, with types: all that is told of groups at one moment.
- `watcher`: `Watcher` takes looks at groups; a `Snapshot` is the result of one.
- `reading`: questions to servers and brokers; `retention`: the time until a record is deleted unfinished.
- `stall_reason`: the reason why a group stands still, in one sentence.
- `in_hand`: the holders of a group's records and the last errors of handlers, as workers report.
- `rates`: speeds from counters; `scaling`: the number of workers from figures, and resizing their supervisor by it.
- `load`: looks at the agents' groups in a worker.

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
