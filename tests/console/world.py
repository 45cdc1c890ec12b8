"""A real console on loopback, over a log in memory, with a browser's way to ask it and workers that stand in."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from collections.abc import AsyncIterator, Callable, Mapping
from html import unescape
from pathlib import Path
from typing import Any

import aiohttp

from flowshare.cli.worker_pages import Workers
from flowshare.client.session.member import ShareMember
from flowshare.clock import LoopClock
from flowshare.console.agents import AgentWatch
from flowshare.console.collector import Collector
from flowshare.console.logins import Login, LoginFile, Role, _hash, write
from flowshare.console.pages.page import View
from flowshare.console.schemas import Schemas
from flowshare.console.server import ConsoleServer, ConsoleSettings
from flowshare.console.slots import Slots
from flowshare.console.source import Source
from flowshare.console.store import Store
from flowshare.console.values import Values
from flowshare.share.types import AckRange
from flowshare.testing.clock import settle

ACCEPT, RELEASE, REJECT = b"\x01", b"\x02", b"\x03"
PASSWORD = "correct horse"
SALT = bytes(16)
HASHED = functools.cache(lambda: _hash(PASSWORD, SALT))
"""Of `PASSWORD`: takes a while, and is the same each time."""
LIMIT_S = 60.0
"""Seconds that a test's request may take, beside other load on the machine; pages keep their own limits."""
_TOKEN = re.compile(r'name="page_token" value="([^"]+)"')


class MemorySource(Source):
    """A source of the memory backend: as with an embedded path beside a worker, which leads."""

    def __init__(self) -> None:
        super().__init__("memory://")


class Browser:
    """Asks pages as a browser does: with cookies, and from the console's own pages."""

    def __init__(self, console: Console, *, at: str | None = None) -> None:
        self.console = console
        self.base = f"http://{console.server.address}" if at is None else at
        self.session = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))

    async def get(self, path: str, **more: Any) -> tuple[int, str]:
        """Status and text, without following."""
        async with self.session.get(self.base + path, allow_redirects=False, **more) as answer:
            return answer.status, await answer.text()

    async def page(self, path: str, status: int = 200) -> str:
        """The text of a page, which has this status."""
        found, text = await self.get(path)
        assert found == status, (found, path, text[-1500:])
        return text

    async def said(self, path: str, status: int = 200) -> str:
        """Return the text that a person reads in the main part of a page."""
        return words(await self.page(path, status))

    async def post(self, path: str, form: Mapping[str, str], **more: Any) -> tuple[int, str]:
        """Status and text of a form that is sent."""
        headers = {"Origin": self.base, **more.pop("headers", {})}
        async with self.session.post(
            self.base + path, data=form, allow_redirects=False, headers=headers, **more
        ) as answer:
            return answer.status, await answer.text()

    async def login(self, name: str = "", password: str = PASSWORD) -> Browser:
        """By name, or by the token when there are no logins."""
        if name:
            status, text = await self.post("/login", {"name": name, "password": password})
        else:
            status, text = await self.get(self.console.server.url.removeprefix(self.base))
        assert status == 303, (status, text)
        return self

    async def token(self) -> str:
        """The page token of this session."""
        found = _TOKEN.search(await self.page("/audit"))
        assert found is not None
        return found.group(1)

    async def do(self, action: str, **form: str) -> str:
        """Carry an action out, as by its button; what the next page tells of it."""
        text = await self.page(f"/do/{action}?{'&'.join(f'{k}={aiohttp.helpers.quote(v)}' for k, v in form.items())}")
        assert f'action="/do/{action}"' in text, words(text)
        sent = dict(
            re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', text.partition('class="sure"')[2])
        )
        status, said = await self.post(f"/do/{action}", {name: unescape(value) for name, value in sent.items()})
        assert status == 303, (status, said)
        notice = re.search(
            r'<p class="notice (good|bad)" role="status" data-keep>(.*?)</p>', await self.page("/audit"), re.DOTALL
        )
        assert notice is not None
        return f"{notice.group(1)}: {unescape(notice.group(2))}"


def words(page: str) -> str:
    """A page's main part as text."""
    main = page.partition('<main id="main">')[2] or page
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", main)).split())


class Console:
    """The console's server and what is behind it."""

    def __init__(
        self,
        folder: Path,
        settings: ConsoleSettings | None = None,
        *,
        source: Source | None = None,
        addresses: tuple[str, ...] = (),
        masks: tuple[str, ...] = (),
        schemas: Schemas | None = None,
        token: bytes | None = None,
    ) -> None:
        self.clock = LoopClock()
        self.source = MemorySource() if source is None else source
        self.store = Store(folder)
        self.workers = Workers(self.source.url, addresses, token)
        self.agents = AgentWatch(self.workers, self.store, self.clock, messages=not masks)
        self.collector = Collector(self.source, self.store, self.clock, self.agents)
        view = View(
            source=self.source,
            workers=self.workers,
            collector=self.collector,
            slots=Slots(self.source.url, self.clock),
            store=self.store,
            agents=self.agents,
            clock=self.clock,
            values=Values(masks, schemas),
        )
        self.server = ConsoleServer(settings or ConsoleSettings(), view)
        self._closing: list[Callable[[], Any]] = []

    async def start(self) -> None:
        """Open the store and listen; the groups are looked at by `look`."""
        await self.store.open()
        await self.server.start()

    async def look(self) -> None:
        """One look at all groups, as happens every second."""
        self.collector.hurry()
        await self.collector._one()
        self.collector.trouble = None

    async def connect(self) -> Any:
        """A connection to the log."""

        async def opened(session: Any) -> Any:
            return await session.backend.connect("test")

        return await self.source.ask(opened, limit_s=LIMIT_S)

    async def ask(self, question: Any) -> Any:
        """Return the log's answer to a question, `lambda admin: …`."""
        return await self.source.ask(lambda session: question(session.admin), limit_s=LIMIT_S)

    async def topic(self, name: str = "orders", values: int | list[bytes | None] = 6, **more: Any) -> None:
        """A topic with records in its first partition."""
        from flowshare.client.producer.producer import Message

        await self.ask(lambda admin: admin.create_topic(name, partitions=more.pop("partitions", 1)))
        given = [b'{"n": %d}' % number for number in range(values)] if isinstance(values, int) else values
        if given:
            await self.send(
                name, *[Message(value, key=b"k%d" % (at % 2), partition=0) for at, value in enumerate(given)]
            )

    async def send(self, topic: str, *messages: Any) -> None:
        """Produce."""

        async def call(session: Any) -> None:
            await session.producer.send_many(topic, list(messages))

        await self.source.ask(call, limit_s=LIMIT_S)

    async def group(self, name: str = "g", topic: str = "orders", **settings: str) -> ShareMember:
        """A group with a member that has joined."""
        await self.ask(
            lambda admin: admin.alter_group_configs(name, {"share.auto.offset.reset": "earliest", **settings})
        )
        member = ShareMember(self.connect, group_id=name, topics=(topic,), clock=self.clock)
        await member.start()
        self._closing.append(lambda: member.close(timeout_s=0.1))
        return member

    async def held(self, name: str = "g", topic: str = "orders", **settings: str) -> tuple[ShareMember, Any]:
        """A member that holds the records there are: two accepted, of which one is first, one delayed by a minute."""
        member = await self.group(name, topic, **settings)
        (fetched,) = await member.fetch(records_max=100)
        acks = [AckRange(0, 0, ACCEPT), AckRange(3, 3, ACCEPT), AckRange(4, 4, RELEASE, 60_000)]
        await member.acknowledge({fetched.tp: acks}, generation=fetched.generation)
        return member, fetched

    async def close(self) -> None:
        """End all of it."""
        for end in self._closing:
            await end()
        await self.server.close()
        await self.collector.close()
        await self.agents.close()
        await self.store.close()
        self.workers.close()
        await self.source.close()


@contextlib.asynccontextmanager
async def console(folder: Path, settings: ConsoleSettings | None = None, **more: Any) -> AsyncIterator[Console]:
    """A console that is served."""
    made = Console(folder, settings, **more)
    await made.start()
    try:
        yield made
    finally:
        await made.close()
        await settle()


@contextlib.asynccontextmanager
async def browser(made: Console, name: str | None = "") -> AsyncIterator[Browser]:
    """Somebody who has logged in; None: who has not."""
    who = Browser(made)
    try:
        yield who if name is None else await who.login(name)
    finally:
        await who.session.close()


def logins_at(path: Path, **roles: Role) -> LoginFile:
    """A file of logins who all have `PASSWORD`."""
    write(path, {name: Login(name, role, SALT, HASHED()) for name, role in roles.items()})
    return LoginFile(path)


class Pages:
    """Pages of a worker that stands in: what each path answers, as status and body."""

    def __init__(self, **answers: tuple[int, bytes]) -> None:
        self.answers = {f"/{name}": answer for name, answer in answers.items()}
        self.asked: list[str] = []
        self.heads: list[bytes] = []
        self.address = ""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.trickle: Callable[[asyncio.StreamWriter], Any] | None = None
        """Called instead of an answer."""

    async def start(self) -> Pages:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._answer(await reader.readuntil(b"\r\n\r\n"), writer)
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        self.heads.append(head)
        path = head.split(b" ")[1].decode()
        self.asked.append(path)
        if self.trickle is not None:
            await self.trickle(writer)
            return
        status, body = self.answers.get(path.partition("?")[0], (404, b"there is no such page"))
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body)) + body)
        await writer.drain()

    async def close(self) -> None:
        """Stop listening, and wait until all connections are closed."""
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def pages(**answers: tuple[int, bytes]) -> AsyncIterator[Pages]:
    """A worker that stands in."""
    made = await Pages(**answers).start()
    try:
        yield made
    finally:
        await made.close()
