"""`flowshare top`: all groups on one live screen; in a pipe, plain lines."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from flowshare.cli.options import facts_options
from flowshare.cli.output import explain, headings, say, show
from flowshare.cli.pages import named_workers
from flowshare.ops import Failure
from flowshare.ops.session import CommandSession, KeptSession

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from flowshare.cli.top_view import Act, Line, Screen
    from flowshare.cli.worker_pages import Workers
    from flowshare.clock import Clock
    from flowshare.ops.figures import GroupFigures
    from flowshare.ops.watcher import Snapshot

SAMPLE_S: Final = 1.0
"""Between the two looks that rates in a pipe are of."""
INTERVAL_S: Final = 2.0
AT_ONCE: Final = 100
"""Groups whose figures one look asks for, those on the screen first."""
REDRAW_S: Final = 1.0
"""So often ages on the screen go on, whatever is heard."""
STYLES: Final = {"head": "bold", "row": "", "selected": "reverse", "why": "yellow", "bad": "bold red", "dim": "dim"}


@click.command("top")
@click.option(
    "--interval",
    type=click.FloatRange(0.1),
    help=f"Seconds between looks; in a pipe: print again and again.  [default: {INTERVAL_S:g}; in a pipe: once]",
)
@click.option(
    "--web",
    "addresses",
    metavar="HOST:PORT",
    multiple=True,
    help="Pages of a worker, to say what it holds; repeatable.",
)
@facts_options
def top(interval: float | None, addresses: tuple[str, ...], as_json: bool, url: str) -> None:
    """Show all groups live: state, backlog, ages, rates, and why one stands still.

    Keys: j and k or arrows choose a group, Enter shows its partitions and members, p pauses or resumes it, s sorts, q
    quits. Rates are records a second over the last 15. In a pipe, or with --json, it prints once.

    Who holds what, and what handlers raised last, workers are asked while a group stands still. Those of an embedded
    path are found by it; others are named by --web.
    """
    from flowshare.agents.pages.gate import read_token
    from flowshare.cli.worker_pages import Workers

    named_workers(addresses)
    session = KeptSession(url)
    # A keyboard interrupt is the ordinary end.
    with contextlib.closing(Workers(url, addresses, read_token())) as workers, contextlib.suppress(KeyboardInterrupt):
        if as_json or not sys.stdout.isatty():
            asyncio.run(_print(session, workers, interval, as_json=as_json))
        else:
            asyncio.run(_live(session, workers, url, interval or INTERVAL_S))


class Looks:
    """Looks at groups, with what workers say that they hold while a group stands still. most: groups a look."""

    def __init__(self, session: KeptSession, workers: Workers, most: int) -> None:
        from flowshare.ops.watcher import LookLimits, Watcher

        self.session = session
        self._workers = workers
        self._watcher = Watcher(session.clock, LookLimits(groups=most))

    async def look(self, opened: CommandSession, first: Sequence[str] = ()) -> Snapshot:
        """Take one look. first: groups that are wanted before others. Raises: ClientError."""
        from flowshare.ops.in_hand import of_groups

        found = await self._watcher.look(opened.admin, opened.backend.capabilities, first=first)
        if not self._workers.known or not found.stalled:
            return found
        return found.with_in_hand(of_groups((await self._workers.in_hand()).rows))


# --- in a pipe -----------------------------------------------------------------------------------------------------

_COLUMNS: Final = headings(
    "group", "kind", "state", "members", "backlog", "in_flight", "delayed", "oldest_s", "arriving", "finished",
    "redelivered", "why",
)  # fmt: skip


async def _print(session: KeptSession, workers: Workers, interval: float | None, *, as_json: bool) -> None:
    """Raises: Failure, LogError, BackendError, ClientError."""
    from flowshare.cli.top_view import GROUPS_MAX

    looks = Looks(session, workers, GROUPS_MAX)
    try:
        while True:
            found = await _look(looks)
            if session.moving:
                await session.clock.sleep(SAMPLE_S if interval is None else interval)
                found = await _look(looks)
            _emit(found, as_json=as_json)
            if interval is None:
                return
            if not session.moving:
                await session.clock.sleep(interval)
    finally:
        await session.close()


async def _look(looks: Looks) -> Snapshot:
    async with looks.session.look() as opened:
        return await looks.look(opened)


def _emit(found: Snapshot, *, as_json: bool) -> None:
    rows = [_row(one, as_json=as_json) for one in found.groups.values() if one.seen_s is not None]
    right = tuple(key for key in _COLUMNS if key not in ("group", "kind", "state", "why"))
    show(rows, _COLUMNS, as_json=as_json, empty="there are no share or cooperative groups", right=right)
    sys.stdout.flush()


def _row(one: GroupFigures, *, as_json: bool) -> dict[str, Any]:
    from flowshare.cli.top_view import word

    total = one.total
    return {
        "group": one.name,
        "kind": one.kind,
        "state": one.state if as_json else word(one),
        "backlog": total.backlog,
        "in_flight": total.in_flight,
        "delayed": total.delayed,
        "oldest_s": total.oldest_age_s,
        "arriving": total.arrival_rate,
        "finished": total.rate,
        "redelivered": total.redelivery_rate,
        "members": one.members,
        "paused": one.paused,
        "breaker": one.breaker.state,
        "why": one.stall,
    }


# --- on a terminal ---------------------------------------------------------------------------------------------------


class _Top:
    """The screen, kept up by two tasks: one looks, one draws."""

    def __init__(self, looks: Looks, screen: Screen, interval: float) -> None:
        self.session = looks.session
        self.screen = screen
        self.looks = looks
        self.changed = asyncio.Event()
        self.wanted = asyncio.Event()
        self.height = 24
        self.ended = False
        self._interval = interval
        self._acts: list[Act] = []

    @property
    def clock(self) -> Clock:
        """Of the looks."""
        return self.session.clock

    def press(self, key: str) -> None:
        """A key."""
        act = self.screen.press(key)
        if act is not None and act.name == "quit":
            self.end()
        elif act is not None:
            self._acts.append(act)
            self.wanted.set()
        self.changed.set()

    def end(self) -> None:
        """Stop."""
        self.ended = True
        self.changed.set()

    async def look_on(self) -> None:
        """Look, and carry out what keys ask for, again and again."""
        from flowshare.backend.base import BackendError
        from flowshare.client.errors import ClientError
        from flowshare.log.base import LogError, StorageHeld

        while True:
            try:
                await self._round()
            except (Failure, StorageHeld, BackendError, ClientError, LogError, OSError) as error:
                self.screen.trouble = f"the broker is not reached: {explain(error)}"
                await self.session.close()
            self.changed.set()
            with contextlib.suppress(TimeoutError):
                await self.clock.wait_for(self.wanted.wait(), self._interval)
            self.wanted.clear()

    async def _round(self) -> None:
        async with self.session.look() as session:
            while self._acts:
                await self._carry_out(session, self._acts.pop(0))
            found = await self.looks.look(session, self.screen.shown(self.height))
            self.screen.update(found.groups, found.now_s)
            row = self.screen.rows.get(self.screen.opened or "")
            if row is not None:
                self.screen.members = row.name, await _members(session, row)

    async def _carry_out(self, session: Any, act: Act) -> None:
        from flowshare.client.errors import ServerError

        if act.name not in ("pause", "resume"):
            return
        if not session.backend.capabilities.pausing:
            self.screen.note = f"Kafka's brokers cannot pause group {act.group}: stop its workers"
            return
        try:
            await (session.admin.pause_group if act.name == "pause" else session.admin.resume_group)(act.group)
        except ServerError as error:
            self.screen.note = f"group {act.group} was not {act.name}d: {explain(error)}"
        else:
            self.screen.note = f"group {act.group} is paused" if act.name == "pause" else f"group {act.group} goes on"


async def _members(session: CommandSession, group: GroupFigures) -> list[dict[str, Any]]:
    """A group's members; none where they may not be seen."""
    from flowshare.client.errors import ServerError

    admin = session.admin
    try:
        found: Any = await (admin.describe_group if group.kind == "share" else admin.cooperative.describe)(group.name)
    except ServerError:
        return []
    return [
        {
            "member": one.member_id,
            "host": one.client_host,
            "client": one.client_id,
            "partitions": sum(len(parts) for parts in one.assignment.values()),
        }
        for one in found.members
    ]


async def _live(session: KeptSession, workers: Workers, url: str, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from flowshare.backend import parse_broker
    from flowshare.cli.keys import each_key
    from flowshare.cli.top_view import Screen

    broker = parse_broker(url)
    where = broker.path or ",".join(broker.hosts) or broker.kind
    console = Console()
    shown = _Top(Looks(session, workers, AT_ONCE), Screen(where=where), interval)
    looking = asyncio.create_task(shown.look_on(), name="flowshare-top")
    looking.add_done_callback(lambda _: shown.end())
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live, each_key(shown.press), _signals(shown):
            while not shown.ended:
                width, shown.height = console.size
                lines = shown.screen.lines(width, shown.height, shown.clock.monotonic())
                live.update(_drawn(lines), refresh=True)
                with contextlib.suppress(TimeoutError):
                    await shown.clock.wait_for(shown.changed.wait(), REDRAW_S)
                shown.changed.clear()
    finally:
        looking.cancel()
        error = (await asyncio.gather(looking, return_exceptions=True))[0]
        await session.close()
    if isinstance(error, Exception):
        raise error
    if shown.screen.note:
        say(shown.screen.note)


@contextlib.contextmanager
def _signals(shown: _Top) -> Generator[None]:
    """Draw anew when the terminal has another size; end in order, so that it is left as it was."""
    loop = asyncio.get_running_loop()
    ends = {"SIGWINCH": shown.changed.set, "SIGTERM": shown.end, "SIGHUP": shown.end, "SIGINT": shown.end}
    known = {getattr(signal, name): act for name, act in ends.items() if hasattr(signal, name)}
    set_up: list[int] = []
    for number, act in known.items():
        with contextlib.suppress(NotImplementedError, RuntimeError):  # Windows
            loop.add_signal_handler(number, act)
            set_up.append(number)
    try:
        yield
    finally:
        for number in set_up:
            loop.remove_signal_handler(number)


def _drawn(lines: list[Line]) -> Any:
    from rich.text import Text

    text = Text(no_wrap=True, overflow="crop", end="")
    for number, line in enumerate(lines):
        text.append(line.text if number == 0 else f"\n{line.text}", STYLES[line.style])
    return text
