"""`flowshare lag`: how far behind the share groups are."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import click

from flowshare.cli.errors import Failure
from flowshare.cli.lag_table import View, screen
from flowshare.cli.options import broker_options, broker_url, json_option

if TYPE_CHECKING:
    from flowshare.agents.retention import Facts
    from flowshare.cli.lag_table import Needed, Rows
    from flowshare.cli.session import Session
    from flowshare.clock import Clock

_SAMPLE_S: Final = 1.0
_LOOK_S: Final = 0.5


@click.command("lag")
@click.option("--group", help="Only this group.")
@click.option("--topic", help="Only this topic.")
@click.option("--partitions", is_flag=True, help="A row for each share-partition instead of one for each topic.")
@click.option("--watch", is_flag=True, help="Show it again and again until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(0.1), default=2.0, show_default=True, help="Seconds, for --watch.")
@click.option(
    "--web", "addresses", metavar="HOST:PORT", multiple=True, help="Health pages of a worker, to ask what is needed."
)
@json_option
@broker_options
def lag(
    group: str | None,
    topic: str | None,
    partitions: bool,
    watch: bool,
    interval: float,
    addresses: tuple[str, ...],
    as_json: bool,
    broker: str | None,
    app_path: str | None,
) -> None:
    """Show how far behind the share groups are, for each group and topic.

    Rates are records a second, measured over one second (with --watch: over the last 15). Needed workers are those
    that the topic keeps busy at its present rate, as running workers say: those of an embedded path are found by it,
    on other brokers name one with --web. Retention: when it will delete the first record that is not finished.
    """
    source = _Source(broker_url(broker, app_path), addresses)
    view = View(group, topic, partitions=partitions, as_json=as_json)
    if not watch:
        asyncio.run(_once(source, view))
        return
    with contextlib.suppress(KeyboardInterrupt):  # the ordinary end of watching
        asyncio.run(_watch(source, view, interval))


class _Source:
    """Numbers over one connection for as long as somebody else leads the groups.

    Otherwise the path is opened, or the fleet led, and let go of for each look: a worker may come.
    """

    def __init__(self, url: str, addresses: tuple[str, ...] = ()) -> None:
        from flowshare.agents.rates import Rates

        self._url = url
        self._addresses = addresses
        self._open: contextlib.AsyncExitStack | None = None
        self._session: Session | None = None
        self._facts: Facts | None = None
        self.rates = Rates()
        self.moving = False
        """Whether somebody may work on it, so that there is a rate to measure."""

    async def rows(self) -> Rows:
        """The numbers of this moment. Raises: Failure, LogError, BackendError, ClientError."""
        from flowshare.agents import lag as rows_of

        session, facts = await self._opened()
        try:
            facts.begin()
            groups = [found.group_id for found in await session.admin.list_groups()]
            found = await rows_of.rows(session.admin, groups, session.clock.now_ms(), facts)
            now_s = session.clock.monotonic()
            self.rates.look(found, now_s)
            await rows_of.add_retention(found, facts, self.rates, now_s)
            return found
        finally:
            self.moving = not self.leads
            if self.leads:
                await self.close()

    async def needed(self) -> Needed:
        """Needed workers of each group and topic, as far as running workers say."""
        found: Needed = {}
        for address in self._addresses or _workers(self._url):
            for row in await asyncio.to_thread(_topics_of, address):
                found.setdefault((row["group"], row["topic"]), row["needed_workers"])
        return found

    @property
    def leads(self) -> bool:
        """Whether this process stands in for workers, of which none runs."""
        return self._session is not None and self._session.leads

    async def close(self) -> None:
        """Let go of what is open."""
        stack, self._open, self._session, self._facts = self._open, None, None, None
        if stack is not None:
            await stack.aclose()

    async def _opened(self) -> tuple[Session, Facts]:
        from flowshare.agents.retention import Facts
        from flowshare.cli.session import open_session

        if self._session is None or self._facts is None:
            self._open = contextlib.AsyncExitStack()
            self._session = await self._open.enter_async_context(open_session(self._url, groups=True))
            self._facts = Facts(self._session.admin)
        return self._session, self._facts


async def _once(source: _Source, view: View) -> None:
    from flowshare.clock import LoopClock

    clock = LoopClock()
    try:
        found = await source.rows()
        view.check(found)
        rows = view.prepare(found, clock.monotonic(), source.rates, {})
        if source.moving:
            await clock.sleep(_SAMPLE_S)
            found = await source.rows()
            rows = view.prepare(found, clock.monotonic(), source.rates, await source.needed())
    finally:
        await source.close()
    view.emit(rows)


async def _watch(source: _Source, view: View, interval: float) -> None:
    from flowshare.backend.base import BackendError
    from flowshare.client.errors import ClientError
    from flowshare.clock import LoopClock
    from flowshare.log.base import StorageHeld

    clock = LoopClock()
    with screen(view) as update:
        try:
            while True:
                try:
                    found, needed = await source.rows(), await source.needed()
                    rows = view.prepare(found, clock.monotonic(), source.rates, needed)
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
    """Wait for the next round, and keep nothing that this process came to lead: a worker may want it."""
    until = clock.monotonic() + interval
    while (left := until - clock.monotonic()) > 0:
        await clock.sleep(min(left, _LOOK_S))
        if source.leads:
            await source.close()


def _workers(url: str) -> list[str]:
    """Health pages of the workers of an embedded path."""
    from flowshare.backend.workers import running_workers
    from flowshare.cli.session import embedded_path

    path = embedded_path(url)
    return [] if path is None else [entry.address for entry in running_workers(path)]


def _topics_of(address: str) -> Rows:
    from flowshare.cli import pages

    try:
        rows: Rows = pages.get(address, "/lag?topics=1")
    except Failure:
        return []  # it starts, or ends
    if any("group" not in row for row in rows):
        raise Failure(pages.NUMBERS_ONLY)
    return rows
