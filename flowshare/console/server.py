"""The console's web server: routes, and the rights to each.

| user | gets |
|---|---|
| without a session | the login page, the script and the style |
| viewer | every page |
| operator | actions, too: a form with the session's page token, from one of the console's own pages |

Before that the gate (`agents.pages.gate`) judges `Host` and `Origin`, so that a page of another site and a name that
was made to lead here get nothing. Without a file of logins there is one operator: the holder of the token that the
command prints; it is taken from the address at once and becomes a cookie. Cookies are HttpOnly and SameSite=Strict,
with TLS Secure.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
import socket
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from aiohttp import web
from yarl import URL

from flowshare.agents.pages.gate import Gate, Named, Need, read_host
from flowshare.agents.pages.site import Bounds, ConnectionLimiter, Listening, PageConnection, bound, guarded, shown
from flowshare.backend import parse_broker
from flowshare.cli.output import explain
from flowshare.client.errors import ClientError, ServerError
from flowshare.client.net.security import PASSWORD_VARIABLE
from flowshare.console import logins
from flowshare.console.actions import ACTIONS
from flowshare.console.collector import AWAY_S
from flowshare.console.forms import Action, BadForm, Means, to_type
from flowshare.console.logins import BadLogins, Login, LoginFile, Role
from flowshare.console.markup import Markup
from flowshare.console.pages import PAGES
from flowshare.console.pages.page import Missing, Page, View
from flowshare.console.sessions import AGE_S, Session, Sessions
from flowshare.console.source import NotAnswering
from flowshare.console.store import TEXT_MAX, AuditLine
from flowshare.core_errors import FlowshareError
from flowshare.ops import Failure
from flowshare.protocol.errors import ErrorCode
from flowshare.server.security.guesses import FailureTally, Guesses, Pace, is_loopback
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    import ssl

    from flowshare.ops.deed import Given
    from flowshare.ops.watcher import Snapshot

logger = logging.getLogger("flowshare.console")

BOUNDS: Final = Bounds(connections=512, by_address=128, request_bytes=0, one_request=False, strangers_go=True)
BODY_MAX: Final = 32 * 1024
"""The most bytes of a form."""
BODY_S: Final = 10.0
"""Time, in s, that a form may take to come."""
QUERY_MAX: Final = 4_096
LATE_S: Final = 8.0
"""Age, in s, from which a look is reported as late, unless looks take that long."""
PAGES_AT_ONCE: Final = 16
"""The most pages that are made at the same time; more wait."""
ACTIONS_AT_ONCE: Final = 4
"""The most actions at the same time: of short ones, of long ones, and of previews, each."""
PACE: Final = Pace(burst=200, per_s=0.5)
"""The pace of a user's actions: it takes days to fill the audit up."""
HASHES_AT_ONCE: Final = 2
"""The most passwords that are checked at the same time, 32 MB each, however many users log in."""
ANSWER_S: Final = 5.0
"""Time, in s, that the browser waits for an action; then the action goes on by itself."""
STATIC: Final = Path(__file__).parent / "static"
TYPES: Final[Mapping[str, str]] = {
    "console.js": "text/javascript",
    "console.css": "text/css",
    "icon.svg": "image/svg+xml",
}
HEADERS: Final[Mapping[str, str]] = {
    "X-Content-Type-Options": "nosniff",
    # Not "no-referrer": with that, browsers say "Origin: null" of this console's own forms, and the gate refuses them.
    "Referrer-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "flowshare",
}
OPERATOR_BY_TOKEN: Final = "operator"  # noqa: S105 - a name
"""Name of a user who came by the printed address."""


class ConsoleError(FlowshareError):
    """Error: the console cannot be served; the text has the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """The address of the console, and its users.

    hosts: further hosts that are this server's. tls: None: no TLS. logins: None: the holder of the token is the
    operator. insecure: also elsewhere than on this machine without TLS or without logins.
    """

    port: int = 0
    bind: str = "127.0.0.1"
    hosts: tuple[Named, ...] = ()
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    logins: LoginFile | None = None
    insecure: bool = False

    def check(self) -> None:
        """Check that others are kept out. Raises ConsoleError."""
        if is_loopback(self.bind) or self.insecure:
            return
        if self.tls is None:
            raise ConsoleError(
                f"on {self.bind} others would read along: give --tls-cert and --tls-key, or put it behind a proxy with "
                "TLS and say --insecure"
            )
        if self.logins is None:
            raise ConsoleError(
                f"on {self.bind} others can reach it, so it needs logins: flowshare console-login NAME --role operator "
                "--file FILE, then --logins FILE"
            )


class ConsoleServer:
    """Serves the pages, on the loop that calls `start`."""

    def __init__(self, settings: ConsoleSettings, view: View) -> None:
        """Check the settings. Raises ConsoleError."""
        settings.check()
        self._settings = settings
        self._view = view
        self._store = view.store
        self._collector = view.collector
        self._clock = clock = view.clock
        self._means = Means(view.source, view.workers)
        self._broker = to_type(view.source.url)
        self._asks_password = bool(parse_broker(view.source.url).password)
        self._sessions = Sessions(lambda: secrets.token_urlsafe(32))
        self._guesses = Guesses(clock)
        self._token = secrets.token_urlsafe(32)
        self._limiter = ConnectionLimiter(BOUNDS, clock)
        self._making = asyncio.Semaphore(PAGES_AT_ONCE)
        self._deeds: dict[asyncio.Task[None], bool] = {}
        """Actions under way; True for those that may take minutes."""
        self._previewing = asyncio.Semaphore(ACTIONS_AT_ONCE)
        self._hashing = asyncio.Semaphore(HASHES_AT_ONCE)
        self._paces: dict[str, FailureTally] = {}
        """Paces of actions, by the user's name."""
        self._runner: web.AppRunner | None = None
        self._gate: Gate | None = None
        self._cookie = ""
        self._static = {name: (STATIC / name).read_bytes() for name in TYPES}
        self._markup = Markup(clock)
        self.address = ""
        """`host:port` once started."""

    @property
    def url(self) -> str:
        """The address for a browser: with the token, if there are no logins."""
        scheme = "http" if self._settings.tls is None else "https"
        token = "" if self._settings.logins is not None else f"?token={self._token}"
        return f"{scheme}://{self.address}/{token}"

    async def start(self) -> None:
        """Listen. Raises: ConsoleError when the address cannot be had."""
        settings = self._settings
        scheme = "http" if settings.tls is None else "https"
        self._gate = Gate(settings.hosts, bind=settings.bind, machine=socket.gethostname(), scheme=scheme)
        app = web.Application(middlewares=[self._guard], client_max_size=BODY_MAX)
        app.add_routes(self._routes())
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1, lingering_time=0.0)
        await runner.setup()
        self._runner = runner
        try:
            sock = await asyncio.to_thread(bound, settings.bind, settings.port)
        except (OSError, UnicodeError) as error:
            from flowshare.server.net.listener import not_bound

            await self.close()
            why = not_bound(
                error,
                host="name an address of this machine with --bind, 0.0.0.0 for all (--host: names that browsers use)",
                port="choose another --port",
            )
            raise ConsoleError(f"the console cannot listen on {settings.bind}:{settings.port}: {why}") from error
        self.address = shown(sock)
        port = sock.getsockname()[1]
        # A cookie is sent to all ports of a host, so each console has one of its own.
        self._cookie = f"flowshare-console-{port}" if settings.tls is None else f"__Host-flowshare-console-{port}"
        await Listening(runner, self._limiter, sock, settings.tls).start()

    async def close(self) -> None:
        """Stop listening and drop open connections; actions under way are cancelled."""
        await cancelled(*self._deeds)
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def _routes(self) -> list[web.RouteDef]:
        pages = [web.get(f"/{page.path}", self._handler(page)) for page in PAGES.values()]
        return [
            web.get("/", self._root),
            web.get("/login", self._login_form),
            web.post("/login", self._login),
            web.post("/logout", self._logout),
            web.get("/do/{action}", self._ask_action),
            web.post("/do/{action}", self._act),
            web.get("/static/{name}", self._file),
            *pages,
        ]

    # --- before every page ----------------------------------------------------------------------------------------

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        assert self._gate is not None
        if len(request.raw_path) > QUERY_MAX:
            return _dressed(web.Response(status=414, text="the address is too long"))
        try:
            return await guarded(self._gate, request, Need.HOST, handler, _dressed)
        except BadLogins as error:  # the file was changed meanwhile
            return _dressed(web.Response(status=503, text=str(error)))

    def _session(self, request: web.Request) -> Session | None:
        cookie = request.cookies.get(self._cookie)
        session = None if cookie is None else self._sessions.find(cookie, self._clock.monotonic())
        if session is not None and cookie is not None and self._settings.logins is not None:
            login = self._settings.logins.logins().get(session.name)
            if login is None or login.hashed != session.proof or login.role is not session.role:
                self._sessions.end(cookie)
                session = None
        connection = request.protocol
        if isinstance(connection, PageConnection):
            connection.recognise(None if session is None else session.name)
        return session

    async def _root(self, request: web.Request) -> web.StreamResponse:
        token = request.query.get("token")
        if token is None or self._settings.logins is not None:
            return _see_other("/groups")
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode()):
            return self._refuse_login("this address is of a console that has ended; take the one that is printed now")
        answer = _see_other("/groups")
        self._begin(request, answer, OPERATOR_BY_TOKEN, Role.OPERATOR)
        return answer

    def _begin(
        self, request: web.Request, answer: web.StreamResponse, name: str, role: Role, proof: bytes = b""
    ) -> None:
        cookie, _ = self._sessions.begin(name, role, self._clock.monotonic(), proof)
        secure = self._is_secure(request)
        answer.set_cookie(
            self._cookie, cookie, httponly=True, samesite="Strict", secure=secure, path="/", max_age=int(AGE_S)
        )

    def _is_secure(self, request: web.Request) -> bool:
        """True if the browser came by TLS: to this server, or to a proxy whose `https://` address was listed."""
        host = read_host(request.headers.get("Host", ""))
        behind = host is not None and any(
            one.scheme == "https" and one.name == host.name for one in self._settings.hosts
        )
        return self._settings.tls is not None or behind

    # --- logging in -----------------------------------------------------------------------------------------------

    def _refuse_login(self, why: str, status: int = 403) -> web.Response:
        return self._html("login.html", {"why": why, "by_token": self._settings.logins is None}, None, status=status)

    async def _login_form(self, request: web.Request) -> web.StreamResponse:
        return _see_other("/groups") if self._session(request) else self._refuse_login("", 200)

    async def _login(self, request: web.Request) -> web.StreamResponse:
        form = await _form(request)
        if self._settings.logins is None:
            token = form.get("token", "").strip()
            if hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode()):
                answer = _see_other("/groups")
                self._begin(request, answer, OPERATOR_BY_TOKEN, Role.OPERATOR)
                return answer
            return self._refuse_login("this is not the token that flowshare console printed")
        login = await self._checked(request, form.get("name", "")[:64], form.get("password", ""))
        if login is None:
            logger.warning("a login to the console failed: peer=%s", _peer(request))
            return self._refuse_login("the name or the password is wrong")
        answer = _see_other("/groups")
        self._begin(request, answer, login.name, login.role, login.hashed)
        return answer

    async def _checked(self, request: web.Request, name: str, password: str) -> Login | None:
        assert self._settings.logins is not None
        try:
            end = await self._guesses.begin(_peer(request), name)
        except ConnectionError:
            raise web.HTTPTooManyRequests(text="too many logins have failed from your address; wait a minute") from None
        login = None
        try:
            found = self._settings.logins.logins().get(name)
            async with self._hashing:
                login = found if await asyncio.to_thread(logins.matches, found, password) else None
        except BadLogins as error:  # a stranger is not told where files are
            logger.warning("nobody can log in to the console: %s", error)
            raise web.HTTPServiceUnavailable(text="logins cannot be read now; the console's log says why") from None
        finally:
            end(failed=login is None)
        return login

    async def _logout(self, request: web.Request) -> web.StreamResponse:
        session, form = self._session(request), await _form(request)
        if session is not None and session.is_page(form.get("page_token", "")):
            self._sessions.end(request.cookies.get(self._cookie, ""))
        answer = _see_other("/login")
        answer.del_cookie(self._cookie, secure=self._is_secure(request), httponly=True, samesite="Strict")
        return answer

    # --- pages ----------------------------------------------------------------------------------------------------

    def _handler(self, page: Page) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handler(request: web.Request) -> web.StreamResponse:
            session = self._session(request)
            if session is None:
                return _see_other("/login")
            context, status = await self._loaded(page, request)
            return self._html(page.template, {**context, "page": page}, session, status=status)

        return handler

    async def _loaded(self, page: Page, request: web.Request) -> tuple[dict[str, Any], int]:
        """Return a page's content and status; or the reason, if the content cannot be known."""
        query = dict(request.query)
        async with self._making:
            try:
                return await page.load(self._view, query), 200
            except PROBLEMS as error:
                status, text = _problem(error)
                return {"problem": text, "passing": status == 503, "query": query}, status

    def _html(
        self, template: str, context: Mapping[str, Any], session: Session | None, *, status: int = 200
    ) -> web.Response:
        if "problem" in context:
            template = "problem.html"
        look = self._collector.look
        seen_s = max(0.0, (self._clock.now_ms() - look.at_ms) / 1000)
        text = self._markup.render(
            template,
            {
                "session": session,
                "operator": session is not None and session.role is Role.OPERATOR,
                "page": None,
                "pages": PAGES,
                "look": look,
                "seen_s": seen_s,
                "trouble": self._collector.trouble or _late(look, seen_s),
                "history_trouble": self._store.trouble,
                "broker": self._view.broker,
                "notices": session.take_notices() if session is not None else (),
                **context,
            },
        )
        # Half surrogates may come in others' JSON, and cannot be sent as text.
        body = text.encode("utf-8", "backslashreplace")
        return web.Response(body=body, content_type="text/html", charset="utf-8", status=status)

    async def _file(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in self._static:
            raise web.HTTPNotFound(text="there is no such file")
        return web.Response(body=self._static[name], content_type=TYPES[name], charset="utf-8")

    # --- actions --------------------------------------------------------------------------------------------------

    def _operator(self, request: web.Request) -> Session:
        session = self._session(request)
        if session is None:
            raise web.HTTPSeeOther("/login")
        if session.role is not Role.OPERATOR:
            raise web.HTTPForbidden(text="a viewer sees everything and changes nothing; ask an operator")
        return session

    async def _ask_action(self, request: web.Request) -> web.StreamResponse:
        """Show the first step of an action: its form, then its effects and the command that does the same."""
        session, action = self._operator(request), _action(request)
        query = dict(request.query)
        context: dict[str, Any] = {"action": action, "query": query, "page": None, "back": None}
        status = 200
        if any(one.name not in query for one in action.fields if not one.hidden):
            return self._html("form.html", context, session)
        try:
            params = action.read(query)
            arguments = action.arguments(params)
            context |= {
                "params": params,
                "back": "/" + action.back(params),
                "command": action.said(params, self._broker),
                "password_variable": PASSWORD_VARIABLE if self._asks_password else None,
            }
            async with _room(self._previewing):
                context["preview"] = await action.preview(self._means, arguments)
        except PROBLEMS as error:
            status, context["why"] = _problem(error)
            return self._html("form.html", context, session, status=status)
        return self._html("confirm.html", context, session, status=status)

    async def _act(self, request: web.Request) -> web.StreamResponse:
        """Carry out the second step: the action itself."""
        session, action, form = self._operator(request), _action(request), await _form(request)
        if not session.is_page(form.get("page_token", "")):
            raise web.HTTPForbidden(text="this form is of an earlier login or of another site; open the page again")
        if sum(long is action.long for long in self._deeds.values()) >= ACTIONS_AT_ONCE:
            raise web.HTTPServiceUnavailable(text="too much is being done already; wait until some of it has ended")
        try:
            params = action.read(form)
            arguments = action.arguments(params)
            back, command = "/" + action.back(params), action.said(params)
        except (BadForm, click.ClickException) as error:
            raise web.HTTPBadRequest(text=_problem(error)[1]) from None
        if len(command) > TEXT_MAX:
            raise web.HTTPBadRequest(text=f"this is longer than the {TEXT_MAX} characters that are written down of it")
        self._check_pace(session)
        task = asyncio.create_task(self._carry_out(request, session, action, arguments, command))
        self._deeds[task] = action.long
        task.add_done_callback(self._deeds.pop)
        await asyncio.wait([task], timeout=ANSWER_S)
        if not task.done():
            session.add_notice(f"{action.title} goes on; the audit says how it ends", good=True)
        return _see_other(back)

    def _check_pace(self, session: Session) -> None:
        """Check the pace. Raises HTTPTooManyRequests."""
        pace, now_s = self._paces.setdefault(session.name, FailureTally(PACE)), self._clock.monotonic()
        if (wait_s := pace.wait_s(now_s)) > 0:
            raise web.HTTPTooManyRequests(text=f"{session.name} has done very much; the next action in {wait_s:.0f} s")
        pace.failed(now_s)

    async def _carry_out(
        self, request: web.Request, session: Session, action: Action, arguments: Given, command: str
    ) -> None:
        """Write the action down, do it, write its outcome down, and notify the user; also when no browser waits any
        more."""
        line = AuditLine(
            at_ms=self._clock.now_ms(),
            who=session.name,
            role=session.role.value,
            peer=_peer(request),
            action=action.name,
            command=command,
            outcome="begun",
        )
        try:
            number = await self._store.note(line)
        except sqlite3.Error as error:
            session.add_notice(f"nothing was done, as it cannot be written down who does it: {error}", good=False)
            return
        logger.info("%s by %s: %s", action.name, session.name, command)
        outcome, done = "the log says why", False
        try:
            outcome, done = await action.act(self._means, arguments), True
        except PROBLEMS as error:
            outcome = _problem(error)[1]
        except Exception:  # a fault of the console
            logger.exception("an action failed: %s", command)
        session.add_notice(outcome, good=done)
        self._collector.hurry()
        await self._store.end(number, outcome if done else f"failed: {outcome}")


PROBLEMS: Final = (FlowshareError, Failure, click.ClickException, OSError, ValueError)
"""Errors that pages and actions tell in a sentence; any other error is a fault of the console."""
_NOT_FOUND: Final = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


def _late(look: Snapshot, seen_s: float) -> str | None:
    """Return the warning if the next look takes much longer than the last one did, else None."""
    if not look.at_ms or seen_s < max(LATE_S, AWAY_S + 3 * look.took_s):
        return None
    return "the log does not answer at the moment"


def _problem(error: BaseException) -> tuple[int, str]:
    """Return status and text for an error that a page shows instead."""
    if isinstance(error, click.ClickException):
        return 400, error.format_message()
    text = str(error) if isinstance(error, ValueError) else explain(error)
    if isinstance(error, Missing) or (isinstance(error, ServerError) and error.code in _NOT_FOUND):
        return 404, text
    if isinstance(error, (BadForm, ValueError)) and not isinstance(error, ClientError):
        return 400, text
    return (503 if isinstance(error, (NotAnswering, OSError)) else 422), text


def _action(request: web.Request) -> Action:
    action = ACTIONS.get(request.match_info["action"])
    if action is None:
        raise web.HTTPNotFound(text="there is no such action")
    return action


async def _form(request: web.Request) -> dict[str, str]:
    """Return the fields of a form, the first of each name. Raises HTTPException."""
    if request.content_type != "application/x-www-form-urlencoded":
        raise web.HTTPUnsupportedMediaType(text="send a form (application/x-www-form-urlencoded)")
    try:
        async with asyncio.timeout(BODY_S):
            found = await request.post()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the form has not come within {BODY_S:g} s") from None
    except (LookupError, ValueError):
        raise web.HTTPBadRequest(text="this is no form that can be read: send it as UTF-8") from None
    return {name: value for name, value in reversed(list(found.items())) if isinstance(value, str)}


@contextlib.asynccontextmanager
async def _room(turns: asyncio.Semaphore) -> AsyncGenerator[None]:
    """Take one of a few places. Raises HTTPServiceUnavailable at once, when all are taken."""
    if turns.locked():
        raise web.HTTPServiceUnavailable(text="too much is being done already; wait until some of it has ended")
    async with turns:
        yield


def _see_other(where: str) -> web.Response:
    # Not raised: cookies are set on it.
    return web.Response(status=303, headers={"Location": str(URL(where))})


def _peer(request: web.Request) -> str:
    connection = request.protocol
    return connection.peer if isinstance(connection, PageConnection) else ""


def _dressed(answer: web.StreamResponse) -> web.StreamResponse:
    answer.headers.update(HEADERS)
    return answer
