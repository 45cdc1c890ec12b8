"""What `flowshare lag` shows: rows of topics or of share-partitions, as tables, live ones too, or JSON."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from flowshare.cli.errors import Failure

if TYPE_CHECKING:
    from flowshare.agents.rates import Rates

Rows = list[dict[str, Any]]
Needed = dict[tuple[str, str], float | None]
"""Workers by group and topic."""

_TOPICS: Final = {
    "group": "group",
    "topic": "topic",
    "backlog": "backlog",
    "in_flight": "in flight",
    "delayed": "delayed",
    "oldest": "oldest",
    "arrival_rate": "arriving",
    "rate": "finished",
    "redelivery_rate": "redelivered",
    "needed_workers": "needed workers",
    "retention_left": "retention in",
}
_PARTITIONS: Final = {
    "group": "group",
    "topic": "topic",
    "partition": "partition",
    "backlog": "backlog",
    "in_flight": "in flight",
    "delayed": "delayed",
    "oldest": "oldest",
    "redeliveries": "redeliveries",
    "rate": "finished",
    "retention_left": "retention in",
}
SPARE: Final = (
    "retention_left",
    "redelivery_rate",
    "redeliveries",
    "delayed",
    "arrival_rate",
    "rate",
    "needed_workers",
    "oldest",
)
"""Columns that a narrow terminal does without, the first to go first."""
_RATES: Final = ("arrival_rate", "rate", "redelivery_rate")
_POSITIONS: Final = ("start_offset", "backlog")
NOT_KNOWN: Final = "not known yet"
_SHOWN: Final = ("oldest", "retention_left")
"""Columns that are there for people; programs get seconds."""


class View:
    """Filters rows, adds rates, prints."""

    def __init__(self, group: str | None, topic: str | None, *, partitions: bool, as_json: bool) -> None:
        self._group = group
        self._topic = topic
        self._partitions = partitions
        self._as_json = as_json
        self._before: dict[tuple[str, str, int], tuple[float, int]] = {}
        self.columns = _PARTITIONS if partitions else _TOPICS
        self.right = tuple(name for name in self.columns if name not in ("group", "topic"))

    def prepare(self, found: Rows, now: float, rates: Rates, needed: Needed) -> Rows:
        """Rows to show; `now` is in seconds on any clock that does not go back."""
        from flowshare.agents.lag import by_topic
        from flowshare.cli.output import age

        rows = [row for row in found if self._wanted(row)]
        if self._partitions:
            rows = [{**row, "rate": self._rate(row, now)} for row in rows]
        else:
            rows = [
                {**row, "needed_workers": needed.get((row["group"], row["topic"]))} for row in by_topic(rows, rates)
            ]
        rows = [known(row) for row in rows]
        for row in rows:
            row |= {"oldest": age(row["oldest_age_s"]), "retention_left": _retention(row)}
        return sorted(rows, key=lambda row: (row["group"], row["topic"], row.get("partition", 0)))

    def cells(self, rows: Rows) -> Rows:
        """The rows for people."""
        return [
            {**spoken(row), **{name: _per_second(row[name]) for name in _RATES if name in row and name in self.columns}}
            for row in rows
        ]

    def _wanted(self, row: dict[str, Any]) -> bool:
        return (self._group in (None, row["group"])) and (self._topic in (None, row["topic"]))

    def check(self, found: Rows) -> None:
        """Raise Failure when --group or --topic names what no group has a position for."""
        for what, wanted in (("group", self._group), ("topic", self._topic)):
            known = sorted({row[what] for row in found})
            if wanted is not None and wanted not in known:
                there = f"there are positions of {', '.join(known)}" if known else "no share group has a position yet"
                hint = "groups ls" if what == "group" else "topics ls"
                raise Failure(f"no share group has a position of {what} {wanted!r}; {there} (see flowshare {hint})")

    def emit(self, rows: Rows) -> None:
        """Print the rows."""
        from flowshare.cli.output import show

        if self._as_json:
            rows = [{key: value for key, value in row.items() if key not in _SHOWN} for row in rows]
        else:
            rows = self.cells(rows)
        show(
            rows,
            self.columns,
            as_json=self._as_json,
            empty="no share group has a position yet",
            right=self.right,
            spare=SPARE,
        )

    def _rate(self, row: dict[str, Any], now: float) -> float | None:
        key = (row["group"], row["topic"], row["partition"])
        before, finished = self._before.get(key), row.get("finished")
        if finished is None:
            return None
        self._before[key] = (now, finished)
        if before is None or now <= before[0]:
            return None
        return max(0.0, float(finished - before[1]) / (now - before[0]))


def known(row: dict[str, Any]) -> dict[str, Any]:
    """The row with None for positions that are not known: a member has joined, and has been given nothing yet."""
    return {**row, **{name: None for name in _POSITIONS if (row.get(name) or 0) < 0}}


def spoken(row: dict[str, Any]) -> dict[str, Any]:
    """A `known` row for people."""
    return {**row, **{name: NOT_KNOWN for name in _POSITIONS if name in row and row[name] is None}}


def screen(view: View) -> Any:
    """A live table on a terminal; elsewhere None, and each round is printed below the last one."""
    import sys

    if not sys.stdout.isatty():
        return contextlib.nullcontext(None)
    return _live(view)


def _live(view: View) -> Any:
    from collections.abc import Callable, Iterator

    from rich import box
    from rich.live import Live

    from flowshare.cli.output import fitting, rich_table

    @contextlib.contextmanager
    def live() -> Iterator[Callable[[Rows], None]]:
        with Live(auto_refresh=False) as shown:

            def update(rows: Rows) -> None:
                cells = view.cells(rows)
                table = rich_table(
                    cells, fitting(cells, view.columns, SPARE, shown.console.width), view.right, box=box.SIMPLE_HEAD
                )
                shown.update(table, refresh=True)

            yield update

    return live()


def _retention(row: dict[str, Any]) -> str:
    """When retention deletes the first unfinished record, for people."""
    from flowshare.agents.retention import FINISHED, FOREVER
    from flowshare.cli.output import age

    if row["retention_left_s"] is not None:
        return age(row["retention_left_s"])
    return {FOREVER: "never", FINISHED: "-"}.get(row["retention"], "unknown")


def _per_second(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"
