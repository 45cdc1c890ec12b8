"""A shop with a worker and a console, each a process, on a path of its own: what tests of the console look at.

All that can be finished is, so that figures change by what a test does alone: a key is stuck, mails wait for an hour,
letters lie in the dead letters, a key is parked, a group is paused.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Page

from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.errors import ServerError
from flowshare.client.producer.producer import Message, Producer
from flowshare.clock import LoopClock
from flowshare.console import logins
from flowshare.console.logins import Role
from flowshare.dev.processes import tail, tied_to_parent
from flowshare.ops.session import open_session
from tests.browser.pages import LOOKS, Browser, Look, shot
from tests.waiting import blocking_until, until

ROOT = Path(__file__).resolve().parents[3]
PASSWORDS = {"olga": "let me act", "victor": "let me see"}
ROLES = {"olga": Role.OPERATOR, "victor": Role.VIEWER}
LATE_S = 60.0
"""How old the first records are, so that what stands still is told at once."""
STOP_S = 20.0
PAGES = {
    "groups": "groups",
    "group": "group?name=shop.bill",
    "partition": "partition?group=shop.bill&topic=orders&partition=0",
    "in-flight": "in-flight?stacks=1",
    "stuck": "stuck",
    "delayed": "delayed",
    "letter-topics": "letters",
    "letters": "letters?topic=shop.mail.dlq",
    "letter": "letters?topic=shop.mail.dlq&at=0@0",
    "browse": "browse?topic=orders&partition=0&from=0&group=shop.bill",
    "keys": "keys",
    "handlers": "handlers",
    "fleet": "fleet",
    "audit": "audit",
}
"""Every page with a list of what it shows, by name."""
FORMS = {
    "form": "do/reset?group=shop.mail",
    "confirm": "do/pause?group=shop.mail",
    "wrong value": "do/set?group=shop.mail&setting=share.max.in.flight&value=many",
}


class Run:
    """A command of flowshare as a process, with its log."""

    def __init__(self, log: Path, broker: str, *command: str) -> None:
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "flowshare.cli", *command],
                cwd=ROOT,
                env={**os.environ, "FLOWSHARE_BROKER": broker},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                preexec_fn=tied_to_parent(),
            )

    def printed(self, pattern: str) -> str:
        """Wait for a line of the process's log that matches, and return the first group of the match."""

        def look() -> re.Match[str] | None:
            assert self._process.poll() is None, f"it ended:\n{tail(self._log)}"
            return re.search(pattern, self._log.read_text())

        found = blocking_until(look, lambda: tail(self._log))
        assert found is not None
        return found[1]

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Harmless twice."""
        if self._process.poll() is None:
            self._process.send_signal(number)
            self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class World:
    """A log, what runs on it, and how a browser gets there. broker: its URL; None: an embedded path in the folder."""

    def __init__(self, folder: Path, browser: Browser, broker: str | None = None) -> None:
        self.folder = folder
        self.broker = f"embedded://{folder / 'broker'}" if broker is None else broker
        self.browser = browser
        self.runs: dict[str, Run] = {}
        self.url = ""
        self._states: dict[str, Any] = {}

    # --- processes ------------------------------------------------------------------------------------------------

    def start_worker(self, app: str = "shop") -> Run:
        return self._start("worker", "worker", f"tests.console.browser.{app}:app")

    def start_console(self, *options: str) -> None:
        """At the port that it had before."""
        port = self.url.rpartition(":")[2] or "0"
        file = self.folder / "logins"
        if not file.exists():
            made = [logins.make(name, ROLES[name], password) for name, password in PASSWORDS.items()]
            logins.write(file, {one.name: one for one in made})
        run = self._start("console", "console", "--port", port, "--logins", str(file), *options)
        self.url = run.printed(r"console: (http://\S+)").rstrip("/")

    def _start(self, name: str, *command: str) -> Run:
        run = self.runs[name] = Run(self.folder / f"{name}.log", self.broker, *command)
        return run

    def end(self) -> None:
        for name, run in self.runs.items():
            run.end(signal.SIGKILL if name == "worker" else signal.SIGTERM)  # its handlers would be waited for

    # --- what lies on the path ------------------------------------------------------------------------------------

    async def ask(self, question: Callable[[ShareAdmin], Any]) -> Any:
        async with open_session(self.broker, create=True) as session:
            return await question(session.admin)

    async def send(self, topic: str, messages: list[Message]) -> None:
        async with open_session(self.broker, create=True) as session:
            assert isinstance(session.producer, Producer)
            await session.producer.send_many(topic, messages)

    async def fill(self) -> None:
        """All topics, and all there is at the beginning."""

        async def make(admin: ShareAdmin) -> None:
            await admin.create_topic("orders", partitions=2)
            await admin.create_topic("mails", partitions=1)
            await admin.alter_group_configs("shop.archive", {"share.paused": "true"})

        await self.ask(make)
        stuck = [order(0, key="stuck", stuck="always", partition=0)]
        bad = [order(n, key="bad", bad=n == 4, partition=1) for n in range(4, 7)]
        good = [order(n, key=f"k{n}", partition=n % 2) for n in range(7, 40)]
        await self.send("orders", stuck + bad + good)
        mails = [message({"n": n, "broken": n < 6, "late": 6 <= n < 10, "text": "<b>mail</b>"}) for n in range(30)]
        await self.send("mails", mails)

    async def stick(self, key: str, partition: int, count: int) -> int:
        """Orders of a key wait behind the first one, until it is released; its offset."""
        at = await self.ask(lambda admin: admin.log_end("orders", partition))
        await self.send("orders", [order(1000, key=key, stuck="once", partition=partition)])
        await until(lambda: self.holds(partition, at), "nobody has taken it", look_s=0.1)
        await self.send("orders", [order(1001 + n, key=key, partition=partition) for n in range(count)])
        return int(at)

    async def holds(self, partition: int, offset: int) -> bool:
        """True if a member of the group bill holds this order."""
        states = ("acquired",)
        try:
            page = await self.ask(lambda admin: admin.browse("shop.bill", "orders", partition, states=states))
        except ServerError:  # the group has not begun yet
            return False
        return any(run.first <= offset <= run.last for run in page.runs)

    async def is_settled(self) -> bool:
        """True if all orders that can be finished are finished."""

        async def look(admin: ShareAdmin) -> bool:
            found = {one.group_id for one in await admin.list_groups()}
            if not found >= {"shop.bill", "shop.mail", "shop.ledger", "shop.archive"}:
                return False
            left = [sum(row.lag or 0 for row in await admin.group_offsets(name)) for name in ("shop.bill", "shop.mail")]
            return left == [4, 4]

        return bool(await self.ask(look))

    # --- pages ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def page(
        self, path: str, look: Look = LOOKS[0], *, who: str | None = "olga", **options: Any
    ) -> AsyncIterator[Page]:
        """A page of the console, logged in as somebody."""
        state = await self._logged_in(who) if who is not None else None
        async with self.browser.page(f"{self.url}/{path}", look, storage_state=state, **options) as page:
            yield page

    def forget_logins(self) -> None:
        """Another console has no sessions of the one before."""
        self._states.clear()

    async def _logged_in(self, who: str) -> Any:
        if who not in self._states:
            async with self.browser.page(f"{self.url}/login") as page:
                await log_in(page, who)
                self._states[who] = await page.context.storage_state()
        return self._states[who]


async def each_look_of(page: Page, name: str, looks: Sequence[Look] = LOOKS) -> AsyncIterator[Look]:
    """The same page at both widths, light and dark, with a picture of each."""
    for look in looks:
        await page.set_viewport_size({"width": look.width, "height": look.height})
        await page.emulate_media(color_scheme="dark" if look.scheme == "dark" else "light")
        yield look
        await shot(page, name)


async def log_in(page: Page, who: str, password: str | None = None) -> None:
    """On the login page."""
    await page.fill("input[name=name]", who)
    await page.fill("input[name=password]", password or PASSWORDS[who])
    await page.click("main button")


def order(n: int, *, key: str, partition: int, **facts: Any) -> Message:
    return message({"n": n, "customer": f"c{n}", **facts}, key, partition)


def message(value: dict[str, Any], key: str | None = None, partition: int | None = None) -> Message:
    raw = json.dumps(value).encode()
    return Message(
        raw, None if key is None else key.encode(), timestamp=LoopClock().now_ms() / 1000 - LATE_S, partition=partition
    )


@asynccontextmanager
async def running(folder: Path, browser: Browser, *, full: bool = True) -> AsyncIterator[World]:
    """A world. full: with a worker and all that it leaves; without: an empty path, that nobody works on."""
    world = World(folder, browser)
    try:
        if full:
            await world.fill()
            world.start_worker()
            await until(lambda: world.holds(0, 0), "nobody has taken it", look_s=0.1)
            await world.send("orders", [order(n, key="stuck", partition=0) for n in range(1, 4)])
            await until(world.is_settled, "the shop is not at rest", look_s=0.1)
        else:
            await world.ask(lambda admin: admin.list_topics())
        world.start_console()
        yield world
    finally:
        world.end()
