"""`flowshare lag`: how far behind the share groups are."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

import click

from flowshare.cli.errors import Failure
from flowshare.cli.options import broker_options, broker_url, json_option

if TYPE_CHECKING:
    from flowshare.cli.session import Session
    from flowshare.clock import Clock

Rows = list[dict[str, Any]]

_COLUMNS: Final = {
    "group": "group",
    "topic": "topic",
    "partition": "partition",
    "backlog": "backlog",
    "in_flight": "in flight",
    "delayed": "delayed",
    "oldest": "oldest",
    "redeliveries": "redeliveries",
    "rate": "rate",
}
_RIGHT: Final = ("partition", "backlog", "in_flight", "delayed", "oldest", "redeliveries", "rate")
_SAMPLE_S: Final = 1.0
_LOOK_S: Final = 0.5


@click.command("lag")
@click.option("--group", help="Only this group.")
@click.option("--topic", help="Only this topic.")
@click.option("--watch", is_flag=True, help="Show it again and again until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(0.1), default=2.0, show_default=True, help="Seconds, for --watch.")
@json_option
@broker_options
def lag(
    group: str | None,
    topic: str | None,
    watch: bool,
    interval: float,
    as_json: bool,
    broker: str | None,
    app_path: str | None,
) -> None:
    """Show backlog, in flight, oldest age, redeliveries and rate a group and share-partition.

    The rate is records finished a second, measured over one second (with --watch: over the interval).
    """
    source = _Source(broker_url(broker, app_path))
    view = _View(group, topic, as_json=as_json)
    if not watch:
        asyncio.run(_once(source, view))
        return
    with contextlib.suppress(KeyboardInterrupt):  # the ordinary end of watching
        asyncio.run(_watch(source, view, interval))


class _Source:
    """Numbers over one connection for as long as somebody else leads the path.

    Otherwise the path is opened and let go of for each look: a worker may come.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._open: contextlib.AsyncExitStack | None = None
        self._session: Session | None = None
        self.moving = False
        """Whether somebody may work on it, so that there is a rate to measure."""

    async def rows(self) -> Rows:
        """The numbers of this moment. Raises: Failure, LogError, BackendError, ClientError."""
        from flowshare.agents import lag as rows_of

        session = await self._opened()
        try:
            groups = [found.group_id for found in await session.admin.list_groups()]
            return await rows_of.rows(session.admin, groups, session.clock.now_ms())
        finally:
            self.moving = not self.leads
            if self.leads:
                await self.close()

    @property
    def leads(self) -> bool:
        """Whether this process has an embedded path to itself."""
        from flowshare.backend.embedded import EmbeddedBackend

        backend = None if self._session is None else self._session.backend
        return isinstance(backend, EmbeddedBackend) and backend.leading

    async def close(self) -> None:
        """Let go of what is open."""
        stack, self._open, self._session = self._open, None, None
        if stack is not None:
            await stack.aclose()

    async def _opened(self) -> Session:
        from flowshare.cli.session import open_session

        if self._session is None:
            self._open = contextlib.AsyncExitStack()
            self._session = await self._open.enter_async_context(open_session(self._url))
        return self._session


class _View:
    """Filters rows, adds rates, prints."""

    def __init__(self, group: str | None, topic: str | None, *, as_json: bool) -> None:
        self._group = group
        self._topic = topic
        self._as_json = as_json
        self._before: dict[tuple[str, str, int], tuple[float, int]] = {}

    def prepare(self, found: Rows, now: float) -> Rows:
        """Rows to show; `now` is in seconds on any clock that does not go back."""
        from flowshare.cli.output import age

        rows = []
        for row in found:
            if (self._group and row["group"] != self._group) or (self._topic and row["topic"] != self._topic):
                continue
            rate = self._rate(row, now)
            rows.append({**row, "rate": rate, "oldest": age(row["oldest_age_s"])})
        return sorted(rows, key=lambda row: (row["group"], row["topic"], row["partition"]))

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
            rows = [{key: value for key, value in row.items() if key != "oldest"} for row in rows]
        else:
            rows = [{**row, "rate": _per_second(row["rate"])} for row in rows]
        show(rows, _COLUMNS, as_json=self._as_json, empty="no share group has a position yet", right=_RIGHT)

    def _rate(self, row: dict[str, Any], now: float) -> float | None:
        key = (row["group"], row["topic"], row["partition"])
        before, finished = self._before.get(key), row.get("finished")
        if finished is None:
            return None
        self._before[key] = (now, finished)
        if before is None or now <= before[0]:
            return None
        return max(0.0, float(finished - before[1]) / (now - before[0]))


async def _once(source: _Source, view: _View) -> None:
    from flowshare.clock import LoopClock

    clock = LoopClock()
    try:
        found = await source.rows()
        view.check(found)
        rows = view.prepare(found, clock.monotonic())
        if source.moving:
            await clock.sleep(_SAMPLE_S)
            rows = view.prepare(await source.rows(), clock.monotonic())
    finally:
        await source.close()
    view.emit(rows)


async def _watch(source: _Source, view: _View, interval: float) -> None:
    from flowshare.backend.base import BackendError
    from flowshare.client.errors import ClientError
    from flowshare.clock import LoopClock
    from flowshare.log.base import StorageHeld

    clock = LoopClock()
    with _screen() as update:
        try:
            while True:
                try:
                    rows = view.prepare(await source.rows(), clock.monotonic())
                except (Failure, StorageHeld, BackendError, ClientError, OSError):
                    rows = None  # a worker is starting or has just ended: the next round shows
                if rows is not None and update is None:
                    view.emit(rows)
                elif rows is not None:
                    update(rows)
                await _rest(source, interval, clock)
        finally:
            await source.close()


async def _rest(source: _Source, interval: float, clock: Clock) -> None:
    """Wait for the next round, and keep no path that this process came to lead: a worker may want it."""
    until = clock.monotonic() + interval
    while (left := until - clock.monotonic()) > 0:
        await clock.sleep(min(left, _LOOK_S))
        if source.leads:
            await source.close()


def _screen() -> Any:
    """A live table on a terminal; elsewhere None, and each round is printed below the last one."""
    import sys

    if not sys.stdout.isatty():
        return contextlib.nullcontext(None)
    return _live()


def _live() -> Any:
    from collections.abc import Callable, Iterator

    from rich import box
    from rich.live import Live

    from flowshare.cli.output import rich_table

    @contextlib.contextmanager
    def live() -> Iterator[Callable[[Rows], None]]:
        with Live(auto_refresh=False) as shown:

            def update(rows: Rows) -> None:
                cells = [{**row, "rate": _per_second(row["rate"])} for row in rows]
                shown.update(rich_table(cells, _COLUMNS, _RIGHT, box=box.SIMPLE_HEAD), refresh=True)

            yield update

    return live()


def _per_second(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"
