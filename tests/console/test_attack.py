"""Who attacks the console: without a session, as a viewer, from another site, with names, values, and very much."""

from __future__ import annotations

import asyncio
import html
import json
import logging
import re
import ssl
from dataclasses import replace

import aiohttp
import pytest
import trustme

from flowshare.agents.pages.gate import read_hosts
from flowshare.client.producer.producer import Message
from flowshare.console import logins as logins_module
from flowshare.console.actions import ACTIONS
from flowshare.console.logins import Role
from flowshare.console.pages import PAGES
from flowshare.console.pages import browse as browse_page
from flowshare.console.pages import letters as letters_page
from flowshare.console.server import BODY_MAX, BOUNDS, QUERY_MAX, ConsoleError, ConsoleSettings
from flowshare.ops.figures import GroupFigures, TopicFigures
from flowshare.ops.watcher import Snapshot
from flowshare.server.security.guesses import Pace
from flowshare.share.types import AckRange
from tests.console.test_actions import GIVEN
from tests.console.test_server import LETTER, letter
from tests.console.test_workers import HANDLER, METRICS, body
from tests.console.world import ACCEPT, PASSWORD, Browser, browser, console, logins_at, pages, words
from tests.waiting import until

pytestmark = pytest.mark.asyncio
EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>'\"&{{7*7}}"
PATHS = [
    *(f"/{path}" for path in PAGES),
    "/",
    "/login",
    "/logout",
    "/static/console.js",
    *(f"/do/{one}" for one in ACTIONS),
]
OPEN = ("/login", "/static/console.js", "/")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND")


async def raw(made, text: bytes, *, whole: bool = True) -> bytes:
    """Send these bytes, and return the answer."""
    host, _, port = made.server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(text)
        async with asyncio.timeout(30):
            return await (reader.read() if whole else reader.readuntil(b"\r\n\r\n"))
    finally:
        writer.close()


def request(made, path: str = "/groups", *headers: str, method: str = "GET", host: str | None = None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {made.server.address if host is None else host}", *headers]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode()


def cookie_of(who: Browser) -> str:
    (found,) = [one for one in who.session.cookie_jar if one.key.startswith("flowshare-console-")]
    return f"{found.key}={found.value}"


# --- who gets in -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
async def test_without_a_session_no_path_shows_or_does_anything(tmp_path, method):
    async with console(tmp_path / "c") as made, browser(made, None) as who:
        await made.topic("SECRET")
        await made.group("SECRET-group", "SECRET")
        await made.look()
        for path in PATHS:
            headers = {"Origin": who.base, "Content-Type": "application/x-www-form-urlencoded"}
            async with who.session.request(
                method, who.base + path, allow_redirects=False, headers=headers, data=b"" if method != "TRACE" else None
            ) as answer:
                text = await answer.text()
            assert answer.status in ((200, 303, 403, 405) if path in OPEN else (303, 404, 405)), (path, answer.status)
            assert "SECRET" not in text
            assert "Set-Cookie" not in answer.headers or path == "/logout"
        assert await made.store.deeds() == []


async def test_a_session_of_an_ended_console_or_of_another_one_is_none(tmp_path):
    async with console(tmp_path / "c") as made, console(tmp_path / "d") as other, browser(other) as who:
        stolen = cookie_of(who).partition("=")[2]
        name = made.server._cookie
        text = await raw(made, request(made, "/groups", f"Cookie: {name}={stolen}"))
        assert b"303" in text.partition(b"\r\n")[0]
        text = await raw(made, request(made, "/?token=" + other.server._token))
        assert b"403" in text.partition(b"\r\n")[0]


@pytest.mark.slow
async def test_a_viewer_sees_all_pages_and_carries_nothing_out(tmp_path):
    file = logins_at(tmp_path / "logins", vic=Role.VIEWER, ann=Role.OPERATOR)
    async with console(tmp_path / "c", ConsoleSettings(logins=file)) as made, browser(made, "vic") as who:
        await made.topic()
        await made.held()
        await made.look()
        for page in PAGES.values():
            query = {"group": "?name=g", "partition": "?group=g&topic=orders&partition=0"}.get(page.path, "")
            text = await who.page(f"/{page.path}{query}")
            assert 'action="/do/' not in text, page.path
        token = await who.token()
        for name, params, _ in GIVEN:
            if name not in ACTIONS:
                continue
            assert (await who.get(f"/do/{name}", params=params))[0] == 403
            status, text = await who.post(f"/do/{name}", {**params, "page_token": token})
            assert (status, "ask an operator" in text) == (403, True)
        assert await made.store.deeds() == []


@pytest.mark.slow
async def test_rights_that_are_taken_away_are_gone_with_the_next_request(tmp_path):
    path = tmp_path / "logins"
    file = logins_at(path, ann=Role.OPERATOR, bob=Role.OPERATOR, cyd=Role.OPERATOR)
    async with (
        console(tmp_path / "c", ConsoleSettings(logins=file)) as made,
        browser(made, "ann") as ann,
        browser(made, "bob") as bob,
        browser(made, "cyd") as cyd,
    ):
        token = await ann.token()
        logins_at(path, ann=Role.VIEWER, cyd=Role.OPERATOR)
        assert (await ann.post("/do/resume", {"group": "g", "page_token": token}))[0] == 303  # to the login page
        assert (await ann.get("/groups"))[0] == 303
        assert (await bob.get("/groups"))[0] == 303
        await cyd.page("/groups")
        path.write_text(path.read_text()[:-3] + "00\n")  # another password
        assert (await cyd.get("/groups"))[0] == 303
        assert await made.store.deeds() == []


@pytest.mark.parametrize("token", [None, "", "x", "other"])
async def test_a_form_without_the_token_of_this_sessions_pages_does_nothing(tmp_path, token):
    async with console(tmp_path / "c") as made, browser(made) as who, browser(made) as other:
        sent = await other.token() if token == "other" else token
        form = {"group": "g"} if sent is None else {"group": "g", "page_token": sent}

        assert (await who.post("/do/resume", form))[0] == 403
        assert (await who.get("/do/resume", params=form))[0] in (200, 404)  # a preview
        await who.post("/logout", form)
        assert await made.store.deeds() == []
        assert len(made.server._sessions) == 2


async def test_a_session_that_was_there_before_a_login_is_another_one_after_it(tmp_path):
    file = logins_at(tmp_path / "logins", ann=Role.OPERATOR)
    async with console(tmp_path / "c", ConsoleSettings(logins=file)) as made, browser(made, None) as who:
        who.session.cookie_jar.update_cookies({made.server._cookie: "chosen-by-somebody"}, aiohttp.client.URL(who.base))
        await who.login("ann")
        first = cookie_of(who)
        assert "chosen-by-somebody" not in first
        await who.login("ann")
        assert cookie_of(who) != first


async def test_a_session_that_is_logged_out_is_gone_on_the_server_too(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        cookie, token = cookie_of(who), await who.token()
        status, _ = await who.post("/logout", {"page_token": token})
        assert status == 303

        assert b" 303 " in (await raw(made, request(made, "/groups", f"Cookie: {cookie}"))).partition(b"\r\n")[0]


async def test_cookies_are_for_this_site_and_no_script(tmp_path):
    async with console(tmp_path / "c") as made:
        for path in ("/?token=" + made.server._token, "/logout"):
            method = "POST" if path == "/logout" else "GET"
            text = await raw(
                made, request(made, path, "Content-Type: application/x-www-form-urlencoded", method=method)
            )
            found = re.search(rb"Set-Cookie: ([^\r]*)", text)
            assert found is not None
            for word in (b"HttpOnly", b"SameSite=Strict", b"Path=/"):
                assert word in found.group(1)
            assert b"Domain" not in found.group(1)


# --- other sites -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "host"),
    [
        (["Origin: http://evil.example"], None),
        (["Origin: null"], None),
        (["Origin: https://{host}"], None),
        (["Origin: http://{host}.evil.example"], None),
        (["Origin: http://127.0.0.1:1"], None),
        (["Origin: http://{host}", "Origin: http://evil.example"], None),
        (["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: cors"], None),
        (["Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: no-cors"], None),
        ([], "rebound.evil.example"),
        ([], "127.0.0.1.evil.example"),
        ([], "10.0.0.7"),
        ([], ""),
        (["Host: evil.example"], None),
    ],
    ids=range(13),
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_another_sites_page_and_a_name_that_was_turned_here_get_nothing(tmp_path, method, headers, host):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic("SECRET", values=0)
        form = f"group=g&page_token={await who.token()}"
        sent = request(
            made,
            "/do/resume" if method == "POST" else "/browse",
            *(one.format(host=made.server.address) for one in headers),
            f"Cookie: {cookie_of(who)}",
            "Content-Type: application/x-www-form-urlencoded",
            f"Content-Length: {len(form)}" if method == "POST" else "Accept: */*",
            method=method,
            host=host,
        )
        text = await raw(made, sent + (form.encode() if method == "POST" else b""))

        assert text.split(b" ")[1] in (b"400", b"403", b"421"), text[:300]
        assert b"SECRET" not in text
        assert await made.store.deeds() == []


async def test_other_sites_can_neither_frame_it_nor_read_along_and_nothing_is_kept(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        for path in ("/groups", "/nope", "/static/console.css", "/static/nope", "/do/nope", "/group", "/login"):
            async with who.session.get(who.base + path, allow_redirects=False) as answer:
                headers = answer.headers
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
            assert "unsafe" not in headers["Content-Security-Policy"]
            assert headers["Referrer-Policy"] == "same-origin"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
            assert headers["Cache-Control"] == "no-store"
            assert "Access-Control-Allow-Origin" not in headers


async def test_pages_need_no_script_and_no_style_in_their_markup(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic()
        await made.held()
        await made.look()
        for page in PAGES.values():
            query = {"group": "?name=g", "partition": "?group=g&topic=orders&partition=0"}.get(page.path, "")
            text = await who.page(f"/{page.path}{query}")
            assert (
                re.findall(r"<script(?! src=\"/static/console.js\" defer>)|<style| style=| on[a-z]+=|javascript:", text)
                == []
            )
            assert re.findall(r'(?:src|href|action)="(?!/|#|\?)', text) == []


# --- secrets ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_neither_token_nor_password_nor_cookie_is_in_a_log_line_an_answer_or_the_audit(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    file = logins_at(tmp_path / "logins", ann=Role.OPERATOR)
    async with (
        console(tmp_path / "c", token=b"workers-token-0123456789") as made,
        console(tmp_path / "d", ConsoleSettings(logins=file)) as other,
        browser(made) as who,
        browser(other, "ann") as ann,
    ):
        secrets = [made.server._token, "workers-token-0123456789", PASSWORD, "wrong password",
                   cookie_of(who).partition("=")[2], cookie_of(ann).partition("=")[2]]  # fmt: skip
        await made.topic()
        await made.group()
        texts = [await one.page(f"/{path}") for one in (who, ann) for path in ("groups", "audit", "fleet", "browse")]
        texts += [(await ann.post("/login", {"name": "ann", "password": "wrong password"}))[1]]
        texts += [(await who.get("/?token=wrong"))[1], (await who.get("/group?token=" + made.server._token))[1]]
        await who.do("resume", group="g")
        for _ in range(3):
            await raw(made, b"GET /?token=" + made.server._token.encode() + b" HTTP/9.9\r\n\x00\r\n\r\n")
        deeds = [str(deed) for deed in [*await made.store.deeds(), *await other.store.deeds()]]
        assert repr(ConsoleSettings(logins=file)).count(PASSWORD) == 0
        async with who.session.get(f"{who.base}/?token={made.server._token}", allow_redirects=False) as answer:
            texts.append(str([value for name, value in answer.headers.items() if name != "Set-Cookie"]))

    for secret in secrets:
        for text in (*texts, *deeds, *(record.getMessage() for record in caplog.records)):
            assert secret not in text


# --- names, values and texts -----------------------------------------------------------------------------------------


def no_markup(text: str, where: object) -> None:
    """No script that is not the console's own, no picture, no name that ends an attribute."""
    own = text.replace('<script src="/static/console.js" defer></script>', "")
    assert "<script" not in own, where
    assert "<img" not in own, where
    assert "49" not in re.findall(r"alert\(1\)[^<]{0,40}?(49)", own), where


@pytest.mark.slow
async def test_markup_in_names_values_and_errors_is_text_everywhere(tmp_path):
    answers = {
        "inflight": body([{**HANDLER, "agent": EVIL, "topic": EVIL, "stack": EVIL}]),
        "ready": body({"ok": False, "reasons": [EVIL]}),
        "scale": body({"workers": 1, "members": 1, "known": False}),
        "metrics": (
            200,
            METRICS.replace(b"ValueError", EVIL.replace('"', '\\"').encode()).replace(b'"bill"', b'"<img>"'),
        ),
        "workers": (500, EVIL.encode()),
    }
    async with (
        pages(**answers) as one,
        console(tmp_path / "c", addresses=(one.address,)) as made,
        browser(made) as who,
    ):
        await made.topic(values=[EVIL.encode(), json.dumps({EVIL: EVIL}).encode()])
        await made.send(
            "orders", Message(EVIL.encode(), key=EVIL.encode(), partition=0, headers=((EVIL, EVIL.encode()),))
        )
        await made.topic("g.dlq", values=0)
        await made.send("g.dlq", letter(EVIL.encode(), **dict.fromkeys(LETTER, EVIL)), letter(**LETTER))
        member = await made.group(EVIL)
        (fetched,) = await member.fetch(records_max=100)
        await member.acknowledge({fetched.tp: [AckRange(0, 0, ACCEPT)]}, generation=fetched.generation)
        await made.look()
        await made.agents.look()
        line = made.collector.look.groups[EVIL]
        made.collector.look.groups[EVIL] = replace(line, state=EVIL, stall=EVIL)
        made.collector.trouble = made.store.trouble = EVIL
        name = aiohttp.helpers.quote(EVIL, safe="")
        asked = [
            "groups", f"groups?find={name}&sort={name}", f"group?name={name}&span={name}", f"group?name={name}x",
            f"partition?group={name}&topic=orders&partition=0", f"partition?group={name}&topic={name}&partition=0",
            f"partition?group=g&topic=t&partition={name}", f"in-flight?stacks=1&group={name}", "in-flight?stacks=1",
            f"stuck?group={name}", "stuck", f"delayed?group={name}", "letters", f"letters?topic={name}",
            "letters?topic=g.dlq", f"letters?topic=g.dlq&reason={name}&exception={name}&kind={name}",
            "letters?topic=g.dlq&at=0@0", f"letters?topic=g.dlq&at={name}", f"letters?topic=g.dlq&at=0@0&form={name}",
            *(f"browse?topic=orders&group={name}&form={form}" for form in ("text", "json", "hex", name)),
            f"browse?topic={name}&partition=0&from=0&time={name}&key={name}", f"browse?topic=orders&time={name}",
            f"keys?group={name}", "handlers", "fleet", f"audit?before={name}", f"static/{name}", f"do/{name}", name,
            f"do/pause?group={name}", f"do/set?group={name}&setting={name}&value={name}", f"do/drain?worker={name}",
            f"do/release?group={name}&topic=orders&partition=0&ranges={name}",
            f"do/release?group={name}&topic=orders&partition={name}&ranges=1",
            f"do/reset?group={name}&to=time&at={name}&topic={name}", f"do/reset?group={name}&to={name}&at=&topic=",
            f"do/replay?topic=g.dlq&at=0@0&reason={name}&exception={name}&limit={name}&rate=",
            f"do/unpark?group={name}&topic=orders&partition=0&key={name}", f"?token={name}",
        ]  # fmt: skip
        for path in asked:
            async with who.session.get(f"{who.base}/{path}", allow_redirects=False) as answer:
                text = await answer.text()
                assert answer.status != 500, path
                if answer.content_type == "text/html":
                    no_markup(text, path)
        for form in ({"group": EVIL}, {"group": EVIL, "setting": EVIL, "value": EVIL}):
            await who.post("/do/set" if "value" in form else "/do/pause", {**form, "page_token": await who.token()})
            no_markup(await who.page("/audit"), form)
        page = await who.page("/browse?topic=orders&form=text")
        assert html.escape(EVIL, quote=False).partition("'")[0] in page  # it is shown, as text


TRACE_SECRET = """Traceback (most recent call last):
  File "/app/shop.py", line 12, in bill
    check("SECRET")
ValueError: SECRET
"""


@pytest.mark.parametrize("form", ["json", "text", "hex"])
async def test_a_masked_field_is_shown_by_no_page(tmp_path, form):
    async with console(tmp_path / "c", masks=("ssn",)) as made, browser(made) as who:
        hidden = b'{"a": {"ssn": "SECRET"}, "b": 1}'
        await made.topic(values=[hidden, b"SECRET", b'{"ssn": "SECRET'])
        await made.topic("g.dlq", values=0)
        await made.send(
            "g.dlq",
            letter(hidden, **{**LETTER, "offset": "0"}),
            Message(hidden, partition=0, headers=(*letter(**LETTER).headers, ("ssn", b"SECRET"))),
        )
        await made.send("orders", Message(hidden, key=b'{"ssn": "SECRET"}', partition=0, headers=(("ssn", b"SECRET"),)))
        said = {**LETTER, "reason": "ValueError: SECRET", "exception": "ValueError", "trace": TRACE_SECRET}
        await made.send("g.dlq", letter(hidden, **said), letter(hidden, **{**said, "exception": "E: SECRET"}))
        one = await who.page("/letters?topic=g.dlq&at=0@2")
        assert "shop.py" in one
        assert "The console has masks" in one
        assert "The console has masks" in await who.page("/letters?topic=g.dlq")
        assert "0@2" not in await who.page("/letters?topic=g.dlq&reason=secret")
        for path in (f"browse?topic=orders&form={form}", f"browse?topic=g.dlq&form={form}",
                     *(f"letters?topic=g.dlq&at=0@{offset}&form={form}" for offset in range(4)),
                     "letters?topic=g.dlq", "keys"):  # fmt: skip
            text = await who.page(f"/{path}")
            assert "SECRET" not in text, path
            assert b"SECRET".hex(" ") not in text, path


async def test_names_begin_no_line_of_a_header_and_lead_to_no_other_site(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        token = await who.token()
        for group in (
            "x\r\nSet-Cookie: a=b",
            "\nx",
            "//evil.example",
            "https://evil.example",
            "/\\evil.example",
            "\x00",
        ):
            async with who.session.post(
                who.base + "/do/resume",
                data={"group": f"g{group}", "page_token": token, "back": group},
                headers={"Origin": who.base},
                allow_redirects=False,
            ) as answer:
                refused = any(ord(char) < 32 for char in group)
                assert answer.status == (400 if refused else 303)
                assert refused or answer.headers["Location"].startswith("/group?name=g")
                assert "Set-Cookie" not in answer.headers
        for path in ("//evil.example/groups", "/%0d%0aSet-Cookie:a=b", "/\\evil.example", "/login?back=//evil.example"):
            text = await raw(made, request(made, path))
            assert b"evil.example" not in text.partition(b"\r\n\r\n")[0]
            assert b"Set-Cookie" not in text


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py", "/static/..%2fserver.py", "/static/%2e%2e/%2e%2e/server.py", "/static//etc/passwd",
        "/static/..%5cserver.py", "/static/console.js%00.css", "/static/", "/static", "/static/console.js/",
        "/static/....//server.py", "/..%2f..%2fetc/passwd", "/static/%252e%252e%252fserver.py",
    ],
)  # fmt: skip
async def test_only_the_consoles_own_files_are_given(tmp_path, path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        text = await raw(made, request(made, path, f"Cookie: {cookie_of(who)}"))

        assert text.split(b" ")[1] == b"404", text[:200]
        assert b"import" not in text
        assert b"root:" not in text


async def test_sql_in_names_is_a_name(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        evil = "'; DROP TABLE deed; --"
        await made.topic()
        await made.group(evil)
        await made.look()
        await who.do("resume", group=evil)

        assert evil in html.unescape(await who.page("/audit"))
        await who.page("/group?name=" + aiohttp.helpers.quote(evil))
        assert made.store.trouble is None


# --- too much --------------------------------------------------------------------------------------------------------


async def test_addresses_headers_and_forms_are_bounded(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        token, cookie = await who.token(), f"Cookie: {cookie_of(who)}"
        assert (await who.get("/groups?find=" + "x" * QUERY_MAX))[0] == 414
        assert (await raw(made, request(made, "/groups?find=" + "x" * 100_000, cookie))).split(b" ")[1] in (
            b"400",
            b"414",
        )
        assert (await raw(made, request(made, "/groups", "X: " + "y" * 100_000, cookie))).split(b" ")[1] in (
            b"400",
            b"431",
        )
        many = [f"X{number}: y" for number in range(20_000)]
        assert (await raw(made, request(made, "/groups", *many, cookie)))[:5] in (b"HTTP/", b"")
        assert (await who.post("/do/resume", {"group": "g" * BODY_MAX, "page_token": token}))[0] == 413
        form = "&".join(f"a{number}=" for number in range(4_000)) + f"&group=g&page_token={token}"
        typed = {"Content-Type": "application/x-www-form-urlencoded", "Origin": who.base}
        async with who.session.post(who.base + "/do/resume", data=form, headers=typed, allow_redirects=False) as answer:
            assert answer.status in (303, 400, 413)
        await who.page("/groups")


@pytest.mark.parametrize(
    ("kind", "sent", "status"),
    [
        ("application/json", b"{}", 415),
        ("multipart/form-data; boundary=x", b"--x--", 415),
        ("text/plain", b"page_token=x", 415),
        ("application/x-www-form-urlencoded; charset=nonsense", b"a=b", 415),
        ("application/x-www-form-urlencoded", b"\xff\xfe=%ff", 400),
        ("application/x-www-form-urlencoded", b"page_token=%ff&group=%00", 403),
        ("application/x-www-form-urlencoded", b"page_token=a&page_token=b", 403),
    ],
)
async def test_what_is_no_form_is_refused(tmp_path, kind, sent, status):
    async with console(tmp_path / "c") as made, browser(made) as who:
        headers = {"Content-Type": kind, "Origin": who.base}
        async with who.session.post(
            who.base + "/do/resume", data=sent, headers=headers, allow_redirects=False
        ) as answer:
            assert answer.status in (status, 400)


@pytest.mark.slow
async def test_of_very_many_connections_of_an_address_strangers_make_room_and_all_end(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await who.page("/groups")
        host, _, port = made.server.address.rpartition(":")
        opened = await asyncio.gather(
            *(asyncio.open_connection(host, int(port)) for _ in range(1_000)), return_exceptions=True
        )
        lines = [one for one in opened if not isinstance(one, BaseException)]
        await until(lambda: made.server._limiter.refused, "the others are refused")

        assert made.server._limiter.open <= BOUNDS.by_address
        await who.page("/groups")  # its connection is one of them, as it has a session
        async with browser(made) as late:  # who comes from the same machine when all are taken finds room
            await late.page("/groups")
        for _, writer in lines:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for _, writer in lines), return_exceptions=True)
        await until(lambda: made.server._limiter.open <= 2, "they are gone")


async def test_who_holds_all_connections_of_an_address_with_logins_that_never_come_shuts_nobody_out(tmp_path):
    async with console(tmp_path / "c") as made:
        made.server._limiter.bounds = type(BOUNDS)(by_address=3, one_request=False, request_bytes=0, strangers_go=True)
        begun = request(made, "/login", "Content-Type: application/x-www-form-urlencoded", "Content-Length: 99",
                        method="POST")  # fmt: skip
        held = [asyncio.ensure_future(raw(made, begun + b"token=")) for _ in range(3)]
        await until(lambda: made.server._limiter.open == 3, "all are taken")
        async with browser(made) as who:
            await who.page("/groups")
            assert await held[0] == b""
            for one in held[1:]:
                one.cancel()
            await asyncio.gather(*held[1:], return_exceptions=True)
            await who.page("/groups")


async def test_a_viewer_with_all_connections_of_an_address_shuts_no_operator_out(tmp_path):
    file = logins_at(tmp_path / "logins", ann=Role.OPERATOR, bob=Role.VIEWER)
    async with console(tmp_path / "c", ConsoleSettings(logins=file)) as made, browser(made, "bob") as bob:
        made.server._limiter.bounds = type(BOUNDS)(
            by_address=5, by_owner=4, one_request=False, request_bytes=0, strangers_go=True
        )
        host, _, port = made.server.address.rpartition(":")
        asked = request(made, "/login", f"Cookie: {cookie_of(bob)}").replace(b": close", b": keep-alive")
        lines = []
        for _ in range(8):
            reader, writer = await asyncio.open_connection(host, int(port))
            lines.append((reader, writer))
            writer.write(asked)
            assert await reader.readline() == b"HTTP/1.1 303 See Other\r\n"
        async with browser(made, "ann") as ann:
            await ann.page("/groups")
            assert made.server._limiter.open <= 5
        for _, writer in lines:
            writer.close()


async def test_a_form_that_is_begun_and_closed_says_nothing_in_the_log(tmp_path, caplog):
    async with console(tmp_path / "c") as made:
        host, _, port = made.server.address.rpartition(":")
        kind = "Content-Type: application/x-www-form-urlencoded"
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(request(made, "/login", kind, "Content-Length: 99", method="POST") + b"token=")
        await until(lambda: any(one.busy for one in made.server._limiter._open), "it is being read")
        writer.close()
        await until(lambda: made.server._limiter.open == 0, "it is gone")

    assert [one.message for one in caplog.records if one.levelname in ("WARNING", "ERROR")] == []


async def test_a_head_that_never_ends_and_a_body_that_never_comes_are_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr("flowshare.console.server.BOUNDS", type(BOUNDS)(request_bytes=0, one_request=False, head_s=0.1))
    monkeypatch.setattr("flowshare.console.server.BODY_S", 0.1, raising=False)
    async with console(tmp_path / "c") as made, browser(made) as who:
        head = request(made, "/do/resume", method="POST").removesuffix(b"\r\n")
        slow = [
            asyncio.ensure_future(raw(made, sent))
            for sent in (
                b"GET /groups HTTP/1.1\r\nHost: ",
                head + f"Cookie: {cookie_of(who)}\r\n".encode()
                + b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 99\r\n\r\na=",
            )
        ]  # fmt: skip
        assert await slow[0] == b""
        await who.page("/groups")
        assert (await slow[1]).split(b" ")[1:2] in ([b"408"], [])


async def test_many_requests_on_one_connection_are_answered_in_their_order(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        cookie = f"Cookie: {cookie_of(who)}"
        one = request(made, "/static/icon.svg", cookie).replace(b"Connection: close", b"Connection: keep-alive")
        text = await raw(made, one * 200 + request(made, "/audit", cookie))

        assert text.count(b"HTTP/1.1 200") == 201
        assert text.rstrip().endswith(b"</html>")


@pytest.mark.slow
async def test_ten_thousand_groups_are_a_page_of_five_hundred(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        topics = (TopicFigures("", "orders", 1, backlog=5, in_flight=1, oldest_age_s=1.0, rate=0.5),)
        groups = {
            name: GroupFigures(name=name, state="Stable", stall="slow", seen_s=0.0, topics=topics)
            for name in (f"g{number:05}" for number in range(10_000))
        }
        made.collector.look = Snapshot(at_ms=1, groups=groups)
        text = await who.page("/groups?sort=backlog")

        assert text.count('<tr id="g-') == 500
        assert "1 to 500 of 10000" in words(text)
        assert len(text) < 1_500_000
        assert (await who.page("/groups?find=g0123")).count('<tr id="g-') == 10
        for path in ("stuck", "keys", "delayed", "browse"):
            text = await who.page(f"/{path}")
            assert text.count("<option") <= 510, path
            assert len(text) < 100_000, path
        assert "and 9 900 more groups" in (await who.said("/stuck")).replace("\N{NARROW NO-BREAK SPACE}", " ")


@pytest.mark.slow
async def test_a_window_of_200_000_offsets_is_shown_in_pages_of_a_thousand_cells(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic(values=0)
        for _ in range(20):
            await made.send("orders", *[Message(b"v", partition=0) for _ in range(10_000)])
        member = await made.group(
            **{"share.partition.max.window": "300000", "share.partition.max.record.locks": "300000"}
        )
        held = 0
        while held < 200_000:
            await member.fetch(records_max=100_000)
            page = await made.ask(lambda admin: admin.browse("g", "orders", 0))
            held = sum(run.last - run.first + 1 for run in page.runs if run.state == "acquired")
        text = await who.page("/partition?group=g&topic=orders&partition=0")

        assert text.count("<rect") == 1_000
        assert len(text) < 1_000_000


async def test_large_records_are_read_for_a_page_up_to_a_number_of_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(browse_page, "BYTES_MAX", 2_000_000)
    monkeypatch.setattr(letters_page, "BYTES_MAX", 2_000_000)
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic(values=0)
        await made.topic("g.dlq", values=0)
        for _ in range(10):
            await made.send("orders", Message(b"x" * 900_000, key=b"k", partition=0))
            await made.send("g.dlq", letter(b"x" * 900_000, **LETTER))
        for query in ("from=0", "key=k&from=0"):
            text = await who.page(f"/browse?topic=orders&{query}")
            shown = len(re.findall(r'<tr id="o-', text))
            assert 2 <= shown < 6, query
            assert f"from={shown}" in text  # it goes on from there
        assert "of these the newest" in await who.said("/letters?topic=g.dlq")


async def test_nothing_is_done_of_which_only_a_part_would_be_written_down(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        token = await who.token()
        group = "'" * 1_000  # which stands in a command as five characters each
        long = {"set": {"setting": "'" * 1_000, "value": "hidden"}, "reset": {"to": "latest", "topic": "'" * 1_000}}
        for action, form in long.items():
            status, text = await who.post(f"/do/{action}", {"group": group, "page_token": token, **form})
            assert (status, "written down" in text) == (400, True)
        assert await made.store.deeds() == []


@pytest.mark.parametrize("form", [{"ranges": "x"}, {"ranges": "9-5"}, {"ranges": ", ,"}])
async def test_a_form_that_cannot_be_read_is_told_and_no_deed(tmp_path, form):
    async with console(tmp_path / "c") as made, browser(made) as who:
        given = {"group": "g", "topic": "orders", "partition": "0", "page_token": await who.token(), **form}

        assert (await who.post("/do/release", given))[0] == 400
        assert await made.store.deeds() == []


async def test_nobody_fills_the_audit_up_and_others_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr("flowshare.console.server.PACE", Pace(burst=3, per_s=0.001))
    file = logins_at(tmp_path / "logins", ann=Role.OPERATOR, bob=Role.OPERATOR)
    async with (
        console(tmp_path / "c", ConsoleSettings(logins=file)) as made,
        browser(made, "ann") as ann,
        browser(made, "bob") as bob,
    ):
        form = {"group": "nope", "page_token": await ann.token()}
        statuses = [(await ann.post("/do/resume", form))[0] for _ in range(5)]
        assert statuses == [303, 303, 303, 429, 429]
        assert (await bob.post("/do/resume", {**form, "page_token": await bob.token()}))[0] == 303
        assert [deed.who for deed in await made.store.deeds()] == ["bob", "ann", "ann", "ann"]


# --- guessing --------------------------------------------------------------------------------------------------------


async def test_who_guesses_is_slowed_and_locks_nobody_else_out(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(logins_module, "_hash", lambda password, _salt: password.encode().ljust(32, b"\0")[:32])
    monkeypatch.setattr("flowshare.server.security.guesses.ADDRESS_WAIT_S", 0.0)
    file = logins_at(tmp_path / "logins", ann=Role.OPERATOR)
    monkeypatch.setattr(logins_module, "matches", lambda login, password: login is not None and password == PASSWORD)
    async with console(tmp_path / "c", ConsoleSettings(logins=file)) as made, browser(made, "ann") as ann:
        async with asyncio.timeout(60):
            answers = [await ann.post("/login", {"name": "ann", "password": str(number)}) for number in range(15)]
        statuses = [status for status, _ in answers]
        assert statuses[:5] == [403] * 5
        assert 429 in statuses
        assert {text for status, text in answers if status == 429} == {
            "too many logins have failed from your address; wait a minute"
        }
        await ann.page("/groups")  # who has logged in goes on
        monkeypatch.setattr("flowshare.console.server._peer", lambda _request: "192.0.2.7")
        status, _ = await ann.post("/login", {"name": "ann", "password": PASSWORD})
        assert status == 303  # from another address the name is not locked
        assert len(re.findall("a login to the console failed", caplog.text)) == statuses.count(403)


@pytest.mark.slow
async def test_unknown_names_and_wrong_passwords_are_told_alike(tmp_path):
    file = logins_at(tmp_path / "logins", ann=Role.OPERATOR)
    async with console(tmp_path / "c", ConsoleSettings(logins=file)) as made, browser(made, None) as who:
        told = [
            await who.post("/login", form)
            for form in (
                {"name": "ann", "password": "wrong"}, {"name": "nobody", "password": PASSWORD}, {"name": "ann"}, {},
                {"name": "ann" + "x" * 999, "password": "y" * 9_999}, {"token": made.server._token},
            )
        ]  # fmt: skip

        assert {status for status, _ in told} == {403}
        assert len({text for _, text in told}) == 1
        assert len(made.server._sessions) == 0
        assert (await who.get("/?token=" + made.server._token))[0] == 303
        assert len(made.server._sessions) == 0  # with logins the token opens nothing


# --- from elsewhere --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls():
    ca = trustme.CA()
    server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    ca.issue_cert("127.0.0.1", "localhost").configure_cert(server)
    ca.configure_trust(client)
    return server, client


async def test_it_is_not_open_to_others_by_mistake(tmp_path, tls):
    file = logins_at(tmp_path / "logins", ann=Role.OPERATOR)
    for bind in ("0.0.0.0", "::", "", "192.0.2.7", "example.com"):
        with pytest.raises(ConsoleError, match="--tls-cert"):
            ConsoleSettings(bind=bind).check()
        with pytest.raises(ConsoleError, match="--tls-cert"):
            ConsoleSettings(bind=bind, logins=file).check()
        with pytest.raises(ConsoleError, match="console-login"):
            ConsoleSettings(bind=bind, tls=tls[0]).check()
        ConsoleSettings(bind=bind, tls=tls[0], logins=file).check()
        ConsoleSettings(bind=bind, insecure=True).check()
    for bind in ("127.0.0.1", "::1", "localhost"):
        ConsoleSettings(bind=bind).check()


async def test_the_command_refuses_it_too(tmp_path):
    from click.testing import CliRunner

    from flowshare.console.command import console as command

    done = CliRunner().invoke(command, ["--bind", "0.0.0.0", "--broker", "memory://", "--data", str(tmp_path)])

    assert isinstance(done.exception, ConsoleError)
    assert done.exit_code == 1


@pytest.mark.parametrize(("listed", "secure"), [("https://pages.example.com", True), ("pages.example.com", False)])
async def test_behind_a_proxy_with_tls_cookies_are_secure(tmp_path, listed, secure):
    file = logins_at(tmp_path / "logins", ann=Role.OPERATOR)
    async with console(tmp_path / "c", ConsoleSettings(logins=file, hosts=read_hosts((listed,), {}))) as made:
        host = {"Host": "pages.example.com"}
        form = {"name": "ann", "password": PASSWORD}
        url = f"http://{made.server.address}/login"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=form, headers=host, allow_redirects=False) as answer,
        ):
            assert answer.status == 303
            assert ("Secure" in answer.headers["Set-Cookie"]) is secure


async def test_who_opens_lines_and_begins_no_handshake_has_no_more_of_them_than_others(tmp_path, tls):
    server, client = tls
    file = logins_at(tmp_path / "logins", ann=Role.OPERATOR)
    async with console(tmp_path / "c", ConsoleSettings(tls=server, logins=file)) as made:
        host, _, port = made.server.address.rpartition(":")
        made.server._limiter.bounds = type(BOUNDS)(by_address=5, one_request=False, request_bytes=0, strangers_go=True)
        lines = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
        await until(lambda: made.server._limiter.refused >= 15, "the first ones have made room")

        assert made.server._limiter.open == 5
        url = f"https://{made.server.address}/login"
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=client)) as session,
            session.get(url) as answer,
        ):
            assert answer.status == 200
        for reader, writer in lines[:15]:
            assert await reader.read() == b""
            writer.close()
        for _, writer in lines[15:]:
            writer.close()
        await until(lambda: made.server._limiter.open <= 1, "they are gone")


async def test_a_handshake_that_comes_to_nothing_ends(tmp_path, tls):
    server, _ = tls
    file = logins_at(tmp_path / "logins", ann=Role.OPERATOR)
    async with console(tmp_path / "c", ConsoleSettings(tls=server, logins=file)) as made:
        assert (await raw(made, request(made))).startswith(b"HTTP/") is False
        await until(lambda: made.server._limiter.open == 0, "it is not counted any more")
    host, _, port = made.server.address.rpartition(":")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, int(port))


async def test_with_tls_cookies_are_secure_and_nothing_is_answered_without(tmp_path, tls):
    server, client = tls
    file = logins_at(tmp_path / "logins", ann=Role.OPERATOR)
    async with console(tmp_path / "c", ConsoleSettings(tls=server, logins=file)) as made:
        assert made.server.url == f"https://{made.server.address}/"
        base = f"https://{made.server.address}"
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=client)) as session:
            form = {"name": "ann", "password": PASSWORD}
            async with session.post(
                base + "/login", data=form, headers={"Origin": base}, allow_redirects=False
            ) as answer:
                assert answer.status == 303
                (cookie,) = answer.headers.getall("Set-Cookie")
            assert cookie.startswith(f"__Host-flowshare-console-{made.server.address.rpartition(':')[2]}=")
            for word in ("Secure", "HttpOnly", "SameSite=Strict", "Path=/"):
                assert word in cookie
            assert "Domain" not in cookie
            sent = {"Cookie": cookie.partition(";")[0]}
            async with session.get(base + "/audit", headers=sent, allow_redirects=False) as answer:
                assert answer.status == 200
                token = re.findall(r'name="page_token" value="([^"]+)"', await answer.text())[0]
            plain = {"Origin": base.replace("https", "http"), **sent}
            async with session.post(base + "/logout", data={}, headers=plain, allow_redirects=False) as answer:
                assert answer.status == 403
            own = {"Origin": base, **sent}
            async with session.post(
                base + "/logout", data={"page_token": token}, headers=own, allow_redirects=False
            ) as answer:
                assert "Secure" in answer.headers["Set-Cookie"]  # else a browser keeps a __Host- cookie
        with pytest.raises((OSError, asyncio.IncompleteReadError, ConnectionError, AssertionError)):
            assert (await raw(made, request(made))).startswith(b"HTTP/")
