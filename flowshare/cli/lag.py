"""`flowshare lag`: how far behind the share groups are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import click

from flowshare.cli.options import broker_options, broker_url, json_option

if TYPE_CHECKING:
    from flowshare.cli.holder import Holder
    from flowshare.cli.session import Session

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

    While a worker runs on an embedded path it is asked; else the path is opened. The rate is records finished a
    second, measured over one second (with --watch: over the interval).
    """
    from flowshare.cli.session import holder_of, open_session

    url = broker_url(broker, app_path)
    view = _View(group, topic, as_json=as_json)

    async def call() -> None:
        holder = holder_of(url)
        if holder is not None and holder.address:
            source: _Source = _Asked(holder)
            await _show(source, view, watch, interval)
            return
        async with open_session(url) as session:
            await _show(_Opened(session), view, watch, interval)

    asyncio.run(call())


class _Asked:
    """Numbers from the running process that holds the path."""

    still: Final = False

    def __init__(self, holder: Holder) -> None:
        self._holder = holder

    async def rows(self) -> Rows:
        found: Rows = await asyncio.to_thread(self._holder.get, "/lag?all=1")
        return found


class _Opened:
    """Numbers from the log itself. Embedded: nobody else has it, so that nothing moves while we look."""

    still: Final = True

    def __init__(self, session: Session) -> None:
        self._session = session

    async def rows(self) -> Rows:
        from flowshare.agents import lag as rows_of

        groups = [found.group_id for found in await self._session.admin.list_groups()]
        return await rows_of.rows(self._session.admin, groups, self._session.clock.now_ms())


_Source = _Asked | _Opened


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


async def _show(source: _Source, view: _View, watch: bool, interval: float) -> None:
    from flowshare.clock import LoopClock

    clock = LoopClock()
    rows = view.prepare(await source.rows(), clock.monotonic())
    if not watch:
        if not source.still:
            await clock.sleep(_SAMPLE_S)
            rows = view.prepare(await source.rows(), clock.monotonic())
        view.emit(rows)
        return
    with _screen() as update:
        while True:
            if update is None:
                view.emit(rows)
            else:
                update(rows)
            await clock.sleep(interval)
            rows = view.prepare(await source.rows(), clock.monotonic())


def _screen() -> Any:
    """A live table on a terminal; elsewhere None, and each round is printed below the last one."""
    import contextlib
    import sys

    if not sys.stdout.isatty():
        return contextlib.nullcontext(None)
    return _live()


def _live() -> Any:
    import contextlib
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
