"""The output of commands: tables, lines and progress, rich on a terminal, plain in a pipe; JSON; errors as one line.

All output goes through this module, so that no name from outside can control a terminal (`flowshare.printable`).
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from flowshare.agents.handler.texts import TEXT_MAX, said
from flowshare.ops import Reporter
from flowshare.printable import printable, printable_json

if TYPE_CHECKING:
    from flowshare.protocol.messages import ConfigEntry

Row = Mapping[str, Any]
NOTHING_DONE: Final = "nothing was changed; add --execute to do it"
_SILENT: Final = ("-", "0", "0.0")
PROSE_LEAST: Final = 24
"""Characters that a column with sentences has in a narrow terminal, at least."""


def show(
    rows: Sequence[Row],
    columns: Mapping[str, str],
    *,
    as_json: bool,
    empty: str,
    right: Iterable[str] = (),
    spare: Sequence[str] = (),
    prose: Collection[str] = (),
) -> None:
    """Print rows as JSON or as a table.

    columns: key of each column to its heading, in order. JSON has all keys of the rows, the table these only.
    empty: what to say when there are no rows. right: keys of columns with numbers. spare: keys of columns that a
    narrow terminal may do without, the first to go first; those that say nothing go before all others. prose: keys of
    columns with sentences, which take what is left and are broken into lines; nothing else is then.
    """
    if as_json:
        emit_json(list(rows))
    elif not rows:
        say(empty, err=True)
    elif sys.stdout.isatty():
        _rich_table(rows, columns, frozenset(right), spare, frozenset(prose))
    else:
        _plain_table(rows, columns, frozenset(right))


def headings(*keys: str, **others: str) -> dict[str, str]:
    """Columns in order, with their headings: the key's words, unless `others` has another text."""
    return {key: others.get(key, key.replace("_", " ")) for key in keys}


def show_settings(entries: Iterable[ConfigEntry], *, as_json: bool) -> None:
    """Print settings of a group or a fleet."""
    rows = [
        {"name": one.name, "value": one.value, "default": one.is_default, "doc": one.documentation} for one in entries
    ]
    show(rows, headings("name", "value", "default"), as_json=as_json, empty="no settings")


def say(text: str, *, err: bool = False, lines: bool = False) -> None:
    """Print a line. err: to stderr. lines: the text may have several."""
    click.echo(printable(text, lines=lines), err=err)


def emit_json(value: object) -> None:
    """Print one JSON document."""
    click.echo(printable_json(json.dumps(value, indent=2, default=str, ensure_ascii=False)))


def cell(value: object) -> str:
    """A value as it stands in a table: `-` for unknown, thousands grouped on no account (they get copied)."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    return printable(str(value))


def _plain_table(rows: Sequence[Row], columns: Mapping[str, str], right: frozenset[str]) -> None:
    texts = [[cell(row.get(key)) for key in columns] for row in rows]
    widths = [max(len(heading), *(len(line[i]) for line in texts)) for i, heading in enumerate(columns.values())]
    for line in [[heading.upper() for heading in columns.values()], *texts]:
        parts = [
            text.rjust(width) if key in right else text.ljust(width)
            for key, text, width in zip(columns, line, widths, strict=True)
        ]
        click.echo("  ".join(parts).rstrip())


def _rich_table(
    rows: Sequence[Row],
    columns: Mapping[str, str],
    right: frozenset[str],
    spare: Sequence[str],
    prose: frozenset[str],
) -> None:
    from rich import box
    from rich.console import Console

    console = Console()
    kept = fitting(rows, columns, spare, console.width, prose)
    console.print(rich_table(rows, kept, right, box=box.SIMPLE_HEAD, prose=prose))
    if left := left_out(columns, kept):
        console.print(left, style="dim")


def left_out(columns: Mapping[str, str], kept: Mapping[str, str]) -> str:
    """Which columns a narrow terminal does without; empty: none."""
    left = [heading for key, heading in columns.items() if key not in kept]
    return f"left out: {', '.join(left)} (a wider terminal or --json has them)" if left else ""


def fitting(
    rows: Sequence[Row], columns: Mapping[str, str], spare: Sequence[str], width: int, prose: Collection[str] = ()
) -> dict[str, str]:
    """The columns that fit into a width, as far as leaving out spare ones helps; headings get a line a word if need be.

    Rich would break headings by itself, and cut the last column off while it does.
    """
    kept = dict(columns)
    silent = [key for key in spare if all(cell(row.get(key)) in _SILENT for row in rows)]
    for key in [*silent, *spare]:
        if _width(rows, kept, prose) <= width:
            break
        kept.pop(key, None)
    if sum(max(_needs(rows, key, heading, prose), len(heading)) + 3 for key, heading in kept.items()) > width:
        return {key: "\n".join(heading.split()) for key, heading in kept.items()}
    return kept


def _width(rows: Sequence[Row], columns: Mapping[str, str], prose: Collection[str] = ()) -> int:
    """Characters of a line with its borders; headings of several words take several lines."""
    return sum(_needs(rows, key, heading, prose) + 3 for key, heading in columns.items())


def _needs(rows: Sequence[Row], key: str, heading: str, prose: Collection[str] = ()) -> int:
    """Characters of a column."""
    needs = max(*map(len, heading.split()), *(len(cell(row.get(key))) for row in rows), 0)
    return min(needs, PROSE_LEAST) if key in prose else needs


def rich_table(
    rows: Sequence[Row],
    columns: Mapping[str, str],
    right: Iterable[str] = (),
    *,
    box: Any = None,
    prose: Collection[str] = (),
) -> Any:
    """The rows as a rich Table, for `lag --watch` and the like."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box, pad_edge=False)
    for key, heading in columns.items():
        number = key in set(right)
        table.add_column(
            heading,
            justify="right" if number else "left",
            overflow="fold",
            # It is names that are broken, never numbers; where there are sentences, only these.
            min_width=_needs(rows, key, heading, prose) if number or prose else None,
        )
    for row in rows:
        table.add_row(*(Text(cell(row.get(key))) for key in columns))
    return table


class Terminal(Reporter):
    """The place where a command tells how it goes: stderr."""

    def tell(self, text: str) -> None:
        """Print a line."""
        say(text, err=True)

    @contextlib.contextmanager
    def bar(self, title: str, total: int | None) -> Iterator[Callable[[int], None]]:
        """Show a bar if stderr is a terminal; the function gets the number of steps just done."""
        if not sys.stderr.isatty():
            yield lambda _steps: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        with bar:
            task = bar.add_task(title, total=total)
            yield lambda steps: bar.advance(task, steps)


TERMINAL: Final = Terminal()


def explain(error: BaseException) -> str:
    """One line for an error that ended a command; errors that were not foreseen name `--debug`."""
    text = printable(" ".join(said(error, TEXT_MAX).split()))
    if _speaks_for_itself(error):
        return text
    if isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        return explain(error.exceptions[0])
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return f"{type(error).__name__}: {text or 'no message'} (--debug shows where)"


def _speaks_for_itself(error: BaseException) -> bool:
    """Tell if the error is one of flowshare's own, whose texts are written for users."""
    return any(base.__module__.startswith("flowshare.") for base in type(error).__mro__)
