"""Tests of every connection to flowshare's pages: bounds, headers, and no connection waits for another."""

from __future__ import annotations

import asyncio
import itertools
import logging
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from flowshare.agents.pages import own_user
from flowshare.agents.pages.gate import Need, PageSettings, read_hosts
from flowshare.agents.pages.site import HEADERS, Bounds, ConnectionLimiter, PageConnection, Site, _network
from tests.sim.clock import HandClock

pytestmark = pytest.mark.asyncio

TOKEN = "a-token-of-24-characters"


class Pages:
    """A site with some pages, and who asks it."""

    def __init__(self, **bounds) -> None:
        self.clock = HandClock()
        self.gone = asyncio.Event()
        self.begun = asyncio.Event()
        self.size = 10
        self.writers: list[asyncio.StreamWriter] = []
        self.site = Site(
            PageSettings(token=TOKEN.encode(), hosts=read_hosts((), {})),
            needs={"/live": Need.NOTHING},
            bounds=Bounds(**bounds),
            clock=self.clock,
        )
        self.address = ""

    async def start(self) -> None:
        async def live(_: web.Request) -> web.Response:
            return web.Response(text="well")

        async def big(_: web.Request) -> web.Response:
            return web.Response(body=b"x" * self.size)

        async def slow(_: web.Request) -> web.Response:
            self.begun.set()
            await self.gone.wait()
            return web.Response(text="done")

        async def bad(_: web.Request) -> web.Response:
            raise ValueError("of the page")

        routes = {"/live": live, "/big": big, "/slow": slow, "/bad": bad}
        self.address = await self.site.open([web.get(path, handler) for path, handler in routes.items()])

    async def connect(self, text: str = ""):
        host, _, port = self.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(text.encode())
        self.writers.append(writer)
        return reader, writer

    async def raw(self, text: str) -> str:
        reader, writer = await self.connect(text)
        try:
            return (await reader.read()).decode()
        except ConnectionError:
            return ""
        finally:
            writer.close()

    async def get(self, path: str, *headers: str, method: str = "GET") -> str:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.address}", *headers, "", ""]
        return await self.raw("\r\n".join(lines))

    async def waiting(self, count: int) -> None:
        """Until so many connections are open."""
        while self.site._limiter.open != count:  # noqa: ASYNC110 - a counter has no event
            await asyncio.sleep(0)


@asynccontextmanager
async def pages(**bounds):
    made = Pages(**bounds)
    await made.start()
    try:
        yield made
    finally:
        made.gone.set()
        for writer in made.writers:
            writer.close()
        await made.site.close()


async def ended(reader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def test_all_answers_have_headers_that_hold_browsers_back(caplog):
    async with pages() as site:
        asked = [
            await site.get("/live"),
            await site.get("/none"),
            await site.get("/live", method="DELETE"),
            await site.get("/big", "Origin: http://evil.example"),
            await site.get("/bad"),
            await site.raw("nonsense\r\n\r\n"),
        ]

    assert [text.split(" ", 2)[1] for text in asked] == ["200", "404", "405", "403", "500", "400"]
    for text in asked:
        assert [name for name, said in HEADERS.items() if f"{name}: {said}" not in text] == [], text
        assert "PageConnection: keep-alive" not in text


async def test_what_a_stranger_sends_stands_in_no_log_and_in_no_answer(caplog):
    with caplog.at_level(logging.DEBUG):
        async with pages() as site:
            answers = [
                await site.raw(f"GET /live HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\x01\r\n\r\n"),
                await site.raw(f"GET /bad?token={TOKEN} HTTP/1.1\r\nHost: {site.address}\r\n\r\n"),
                await site.get("/big", f"Authorization: Bearer {TOKEN}"),
            ]

    assert TOKEN not in caplog.text
    assert not [text for text in answers if TOKEN in text]
    assert "a page failed: path='/bad'" in caplog.text


async def test_a_connection_has_one_request_however_many_were_sent():
    async with pages() as site:
        answers = await site.raw(f"GET /live HTTP/1.1\r\nHost: {site.address}\r\n\r\n" * 50)

    assert answers.count("HTTP/1.1 200") == 1


async def test_a_request_that_is_too_long_is_refused():
    async with pages(request_bytes=4096) as site:
        assert " 431 " in await site.get("/live", *(f"X-{number}: {'y' * 1000}" for number in range(5)))
        assert " 413 " in await site.raw(f"GET /live HTTP/1.1\r\nHost: {site.address}\r\nContent-Length: 9\r\n\r\n")
        chunked = f"GET /live HTTP/1.1\r\nHost: {site.address}\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"
        assert " 413 " in await site.raw(chunked)
        assert " 200 " in await site.raw(f"GET /live HTTP/1.1\r\nHost: {site.address}\r\nContent-Length: 0\r\n\r\n")


async def test_a_request_that_does_not_come_to_its_end_loses_its_connection():
    async with pages(head_s=10.0) as site:
        nothing, _ = await site.connect()
        half, _ = await site.connect("GET /live HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        slow, _ = await site.connect(f"GET /slow HTTP/1.1\r\nHost: {site.address}\r\n\r\n")
        await site.begun.wait()
        await site.waiting(3)
        site.clock.run(10.0)
        assert await ended(nothing)
        assert await ended(half)
        site.gone.set()
        assert b"done" in await slow.read(), "a page that takes its time is no slow request"


async def test_who_does_not_read_loses_the_connection_and_holds_nobody():
    async with pages(send_s=30.0) as site:
        site.size = 16 * 1024 * 1024
        _, writer = await site.connect(f"GET /big HTTP/1.1\r\nHost: {site.address}\r\n\r\n")
        writer.transport.pause_reading()
        while 30.0 not in site.clock.timers:  # noqa: ASYNC110 - the transport has no event for it
            await asyncio.sleep(0)
        site.size = 10
        assert " 200 " in await site.get("/big")
        site.clock.run(30.0)
        await site.waiting(0)
        writer.close()


class Link:
    """A transport with so many bytes that nobody has read."""

    left = 100
    aborted = False

    def get_write_buffer_size(self) -> int:
        return self.left

    def abort(self) -> None:
        self.aborted = True


@pytest.mark.parametrize(("one_request", "ends"), [(True, True), (False, False)])
async def test_a_long_answer_of_an_app_is_read_at_the_readers_pace(one_request, ends):
    clock = HandClock()
    connection = PageConnection(ConnectionLimiter(Bounds(one_request=one_request, send_s=7.0), clock), web.Server(None))
    connection._link = link = Link()
    connection.pause_writing()
    link.left = 50
    clock.run(7.0)
    assert link.aborted is ends
    clock.run(7.0)
    assert link.aborted, "nothing more was read"


class Caller:
    """A connection that only comes and goes."""

    dropped = False
    busy = False
    limiter: ConnectionLimiter | None = None

    def drop(self) -> None:
        self.dropped = True
        if self.limiter is not None:
            self.limiter.leave(self)


def of_known(**bounds: int) -> ConnectionLimiter:
    return ConnectionLimiter(Bounds(strangers_go=True, one_request=False, **bounds), HandClock())


def come(limiter: ConnectionLimiter, address: str, owner: str | None = None, *, busy: bool = False) -> Caller:
    """One that finds room, and shows who it is."""
    one = Caller()
    one.limiter, one.busy = limiter, busy
    assert limiter.enter(one, address)
    limiter.recognised(one, owner)
    return one


async def test_one_person_holds_no_more_connections_than_are_its_own_and_loses_the_one_that_asked_longest_ago():
    limiter = of_known(connections=10, by_address=10, by_owner=3)
    first, second, third = (come(limiter, "10.0.0.1", "viewer") for _ in range(3))
    limiter.recognised(first, "viewer")
    fourth = come(limiter, "10.0.0.2", "viewer")
    operator = come(limiter, "10.0.0.1", "operator")

    assert [one.dropped for one in (first, second, third, fourth, operator)] == [False, True, False, False, False]
    assert (limiter.open, limiter.refused) == (4, 1)


async def test_who_has_most_connections_makes_room_where_all_have_shown_who_they_are():
    limiter = of_known(connections=4, by_address=4, by_owner=3)
    others = [come(limiter, "10.0.0.1", "viewer", busy=busy) for busy in (True, False, False)]
    operator = come(limiter, "10.0.0.1", "operator")
    late = come(limiter, "10.0.0.1")

    assert [one.dropped for one in (*others, operator, late)] == [False, True, False, False, False]


async def test_a_stranger_makes_room_before_anybody_who_is_known():
    limiter = of_known(connections=3, by_address=3)
    known = [come(limiter, "10.0.0.1", "viewer") for _ in range(2)]
    stranger, late = come(limiter, "10.0.0.1"), come(limiter, "10.0.0.1")

    assert [one.dropped for one in (*known, stranger, late)] == [False, False, True, False]


async def test_who_logs_out_is_a_stranger_again():
    limiter = of_known(connections=2, by_address=2)
    left, known = come(limiter, "10.0.0.1", "viewer"), come(limiter, "10.0.0.1", "viewer")
    limiter.recognised(left, None)
    come(limiter, "10.0.0.1")

    assert (left.dropped, known.dropped) == (True, False)


async def test_connections_of_one_address_are_bounded():
    limiter = ConnectionLimiter(Bounds(connections=10, by_address=2), HandClock())
    first = Caller()

    assert limiter.enter(first, "10.0.0.1")
    assert limiter.enter(Caller(), "10.0.0.1")
    assert not limiter.enter(Caller(), "10.0.0.1")
    assert limiter.enter(Caller(), "10.0.0.2")
    limiter.leave(first)
    limiter.leave(first)
    assert limiter.enter(Caller(), "10.0.0.1")
    assert (limiter.open, limiter.refused) == (3, 1)


async def test_who_has_waited_longest_without_a_request_makes_room():
    limiter = ConnectionLimiter(Bounds(connections=3, by_address=3), HandClock())
    asking, first, second, third = Caller(), Caller(), Caller(), Caller()
    for number, caller in enumerate((asking, first, second)):
        assert limiter.enter(caller, f"10.0.0.{number}")
    limiter.begun(asking)

    assert limiter.enter(third, "10.0.0.9")
    assert [one.dropped for one in (asking, first, second, third)] == [False, True, False, False]


async def test_a_machines_many_addresses_of_version_six_count_as_one():
    assert _network("2001:db8::1:2:3:4") == _network("2001:db8::ffff")
    assert _network("2001:db8:0:1::1") != _network("2001:db8::1")
    assert _network("::ffff:10.0.0.1") != _network("::ffff:10.0.0.2")


async def test_a_full_house_of_requests_refuses_newcomers_until_one_is_done():
    async with pages(connections=1, by_address=1) as site:
        slow, _ = await site.connect(f"GET /slow HTTP/1.1\r\nHost: {site.address}\r\n\r\n")
        await site.begun.wait()
        assert await site.get("/live") == ""
        answer = await asyncio.to_thread(own_user.ask, site.address, "/live", timeout_s=5)
        assert answer.body == b"well", "the own user has room of its own"
        site.gone.set()
        assert b"done" in await slow.read()
        await site.waiting(0)
        assert " 200 " in await site.get("/live")


async def test_other_work_on_the_loop_has_a_turn_between_any_two_pages():
    async with pages() as site:
        turns: list[str] = []
        real = site.site._gate

        class Noting:
            def judge(self, asked, need):
                turns.append("page")
                return real.judge(asked, need)

        site.site._gate = Noting()
        done = asyncio.Event()

        async def work() -> None:
            while not done.is_set():
                turns.append("work")
                await asyncio.sleep(0)

        working = asyncio.ensure_future(work())
        await asyncio.gather(*(site.get("/live") for _ in range(30)))
        done.set()
        await working

    assert turns.count("page") == 30
    assert not [pair for pair in itertools.pairwise(turns) if pair == ("page", "page")]


async def test_another_users_process_is_let_in_by_nobodys_way(monkeypatch):
    async with pages() as site:
        monkeypatch.setattr(own_user, "is_own", lambda sock: False)
        with pytest.raises(OSError, match=r"reset|closed|without response|Broken pipe"):
            await asyncio.to_thread(own_user.ask, site.address, "/live", timeout_s=5)


async def test_an_address_of_version_six_stands_in_brackets():
    site = Site(PageSettings(bind="::1"), needs={})
    try:
        assert (await site.open([])).startswith("[::1]:")
    finally:
        await site.close()


async def test_the_own_users_way_being_taken_ends_nothing(caplog):
    taken = []

    def listen(address):
        taken.append(address)
        raise OSError(98, "Address already in use")

    site = Site(PageSettings(), needs={})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_user, "listen", listen)
        address = await site.open([])
    await site.close()

    assert taken == [address]
    assert "want the token" in caplog.text
