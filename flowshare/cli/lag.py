"""`flowshare lag`: how far behind share and cooperative groups are, by topic or partition; as a table, live too, or
JSON."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from flowshare.agents.handler.texts import age, amount
from flowshare.cli import pages
from flowshare.cli.options import facts_options
from flowshare.cli.output import fitting, headings, left_out, rich_table, say, show
from flowshare.ops import Failure
from flowshare.ops.session import KeptSession
from flowshare.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flowshare.clock import Clock
    from flowshare.ops.figures import PartitionFigures, TopicFigures
    from flowshare.ops.watcher import Snapshot, Watcher

_SAMPLE_S: Final = 1.0
_LOOK_S: Final = 0.5


@click.command("lag")
@click.option("--group", help="Only this group.")
@click.option("--topic", help="Only this topic.")
@click.option("--partitions", is_flag=True, help="A row for each partition instead of one for each topic.")
@click.option("--watch", is_flag=True, help="Show it again and again until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(0.1), default=2.0, show_default=True, help="Seconds, for --watch.")
@click.option(
    "--web", "addresses", metavar="HOST:PORT", multiple=True, help="Health pages of a worker, to ask what is needed."
)
@facts_options
def lag(
    group: str | None,
    topic: str | None,
    partitions: bool,
    watch: bool,
    interval: float,
    addresses: tuple[str, ...],
    as_json: bool,
    url: str,
) -> None:
    """Show how far behind share and cooperative groups are, for each group and topic.

    Rates are records a second, measured over one second (with --watch: over the last 15). Needed workers are those
    that the topic keeps busy at its present rate, as running workers say: those of an embedded path are found by it,
    on other brokers name one with --web. Retention: when it will delete the first record that is not finished.
    """
    source = _LagSource(url, addresses)
    view = View(group, topic, partitions=partitions, as_json=as_json)
    if not watch:
        asyncio.run(_once(source, view))
        return
    with contextlib.suppress(KeyboardInterrupt):  # the ordinary end of watching
        asyncio.run(_watch(source, view, interval))


class _LagSource:
    """Numbers over one connection."""

    def __init__(self, url: str, addresses: tuple[str, ...] = ()) -> None:
        from flowshare.agents.pages.gate import read_token
        from flowshare.cli.worker_pages import Workers
        from flowshare.ops.watcher import Watcher

        self._workers = Workers(url, addresses, read_token())
        self.session = KeptSession(url)
        self.watcher = Watcher(self.session.clock, details=False)

    async def look(self) -> Snapshot:
        """The numbers of this moment. Raises: Failure, LogError, BackendError, ClientError."""
        async with self.session.look() as session:
            return await self.watcher.look(session.admin, session.backend.capabilities)

    async def needed(self) -> Needed:
        """Needed workers of each group and topic, as far as running workers say."""
        from flowshare.cli.worker_pages import needed_workers

        told = await self._workers.topics()
        if any(row.get("group") is None for rows in told.rows.values() for row in rows):
            raise Failure(pages.NUMBERS_ONLY)
        return needed_workers(told)

    async def close(self) -> None:
        """Ask nobody any more."""
        self._workers.close()
        await self.session.close()


async def _once(source: _LagSource, view: View) -> None:
    try:
        found = await source.look()
        view.check(found)
        needed: Needed = {}
        if source.session.moving:
            await source.session.clock.sleep(_SAMPLE_S)
            found, needed = await source.look(), await source.needed()
        rows = view.prepare(found, source.watcher, needed)
    finally:
        await source.close()
    view.emit(rows)


async def _watch(source: _LagSource, view: View, interval: float) -> None:
    from flowshare.backend.base import BackendError
    from flowshare.client.errors import ClientError
    from flowshare.log.base import StorageHeld

    with screen(view) as update:
        try:
            while True:
                try:
                    found, needed = await source.look(), await source.needed()
                    rows = view.prepare(found, source.watcher, needed)
                except (Failure, StorageHeld, BackendError, ClientError, OSError):
                    pass  # a worker is starting or has just ended: the next round shows
                else:
                    update(rows)
                await _rest(source, interval, source.session.clock)
        finally:
            await source.close()


async def _rest(source: _LagSource, interval: float, clock: Clock) -> None:
    """Wait for the next round, and keep nothing that this process came to lead: a worker may want it."""
    until = clock.monotonic() + interval
    while (left := until - clock.monotonic()) > 0:
        await clock.sleep(min(left, _LOOK_S))
        if source.session.leads:
            await source.session.close()


Rows = list[dict[str, Any]]
Needed = dict[tuple[str, str], float]
"""Workers by group and topic."""

_OTHERS: Final = {
    "arrival_rate": "arriving",
    "rate": "finished",
    "redelivery_rate": "redelivered",
    "retention_left": "retention in",
}
_COUNTS: Final = ("backlog", "in_flight", "delayed", "blocked", "oldest")
_TOPIC_RATES: Final = ("arrival_rate", "rate", "redelivery_rate", "needed_workers")
_TOPICS: Final = headings("group", "topic", *_COUNTS, *_TOPIC_RATES, "retention_left", **_OTHERS)
_PARTITIONS: Final = headings(
    "group", "topic", "partition", *_COUNTS, "redeliveries", "rate", "retention_left", **_OTHERS
)
SPARE: Final = (
    "retention_left",
    "redelivery_rate",
    "redeliveries",
    "blocked",
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
STUCK_SHOWN: Final = 10
"""Fewer records that wait for one are nothing to tell of, unless nothing is finished."""
_SHOWN: Final = ("oldest", "retention_left")
"""Columns that are there for people; programs get seconds."""


class View:
    """Filters figures, and prints them as rows."""

    def __init__(self, group: str | None, topic: str | None, *, partitions: bool, as_json: bool) -> None:
        self._group = group
        self._topic = topic
        self._partitions = partitions
        self._as_json = as_json
        self.columns = _PARTITIONS if partitions else _TOPICS
        self.right = tuple(name for name in self.columns if name not in ("group", "topic"))

    def prepare(self, found: Snapshot, watcher: Watcher, needed: Needed) -> Rows:
        """Rows to show. watcher: of these figures."""
        rows: Rows
        if self._partitions:
            parts = [one for one in found.partitions if self._wanted(one)]
            rows = [{**one.row(), "rate": watcher.finished_rate(one)} for one in parts]
        else:
            topics = [one for one in found.topics if self._wanted(one)]
            rows = [{**one.row(), "needed_workers": needed.get((one.group, one.topic))} for one in topics]
        for row in rows:
            row |= {"oldest": age(row["oldest_age_s"]), "retention_left": _retention(row)}
        return sorted(rows, key=lambda row: (row["group"], row["topic"], row.get("partition", 0)))

    def cells(self, rows: Rows) -> Rows:
        """The rows for people."""
        return [
            {**spoken(row), **{name: _per_second(row[name]) for name in _RATES if name in row and name in self.columns}}
            for row in rows
        ]

    def _wanted(self, one: PartitionFigures | TopicFigures) -> bool:
        return (self._group in (None, one.group)) and (self._topic in (None, one.topic))

    def check(self, found: Snapshot) -> None:
        """Raise Failure when --group or --topic names what no group has a position for."""
        for what, wanted in (("group", self._group), ("topic", self._topic)):
            known = sorted({getattr(one, what) for one in found.topics})
            if wanted is not None and wanted not in known:
                there = f"there are positions of {', '.join(known)}" if known else "no group has a position yet"
                hint = "groups ls" if what == "group" else "topics ls"
                raise Failure(f"no group has a position of {what} {wanted!r}; {there} (see flowshare {hint})")

    def emit(self, rows: Rows) -> None:
        """Print the rows."""
        if self._as_json:
            told = [{key: value for key, value in row.items() if key not in _SHOWN} for row in rows]
        else:
            told = self.cells(rows)
        show(
            told,
            self.columns,
            as_json=self._as_json,
            empty="no group has a position yet",
            right=self.right,
            spare=SPARE,
        )
        if not self._as_json:
            for line in stuck_lines(rows):
                say(line)


def stuck_lines(rows: Rows, least: int = STUCK_SHOWN) -> list[str]:
    """Which records at least so many others of their key wait for, and where keys are parked, a line each."""
    from flowshare.ops.figures import StuckKey
    from flowshare.ops.stall_reason import QUIET_S, named_key, parked_keys

    found = [
        (row, key)
        for row in rows
        for key in (StuckKey(**one) for one in row["stuck"])
        if key.blocked >= least or (row.get("rate") == 0 and (row.get("oldest_age_s") or 0) >= QUIET_S)
    ]
    found.sort(key=lambda pair: -pair[1].blocked)
    return [
        f"{row['group']}: {_count(key.blocked)} for {named_key(key, row['topic'])}" for row, key in found[:STUCK_LINES]
    ] + [
        f"{row['group']}: {parked}"
        for row in rows
        if (parked := parked_keys(row["group"], row["parked"] or 0, row["topic"]))
    ]


def _count(waiting: int) -> str:
    return amount(waiting, "record waits", "records wait")


STUCK_LINES: Final = 5


def spoken(row: dict[str, Any]) -> dict[str, Any]:
    """A row for people: a member has joined, and has been given nothing yet where no position is known."""
    return {**row, **{name: NOT_KNOWN for name in _POSITIONS if name in row and row[name] is None}}


@contextlib.contextmanager
def screen(view: View) -> Iterator[Callable[[Rows], None]]:
    """Yield a function that shows rows: in a live table on a terminal; elsewhere each round is printed below the last
    one."""
    if not sys.stdout.isatty():
        yield view.emit
        return
    from rich import box
    from rich.console import Group
    from rich.live import Live

    with Live(auto_refresh=False) as shown:

        def update(rows: Rows) -> None:
            cells = view.cells(rows)
            columns = fitting(cells, view.columns, SPARE, shown.console.width)
            table = rich_table(cells, columns, view.right, box=box.SIMPLE_HEAD)
            below = [line for line in (left_out(view.columns, columns), *stuck_lines(rows)) if line]
            shown.update(Group(table, *(printable(line) for line in below)), refresh=True)

        yield update


def _retention(row: dict[str, Any]) -> str:
    """When retention deletes the first unfinished record, for people."""
    from flowshare.ops.retention import FINISHED, FOREVER

    if row["retention_left_s"] is not None:
        return age(row["retention_left_s"])
    return {FOREVER: "never", FINISHED: "-"}.get(row["retention"], "unknown")


def _per_second(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"
