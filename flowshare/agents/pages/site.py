"""Listeners of pages: bounds on connections and requests, and the gate before every page.

A connection has one request, and bounds for its bytes, the time until it has come and the time until its answer is
read. A client over the bounds loses the connection. Between two requests the loop turns once, so that other work on it
waits for one page at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.web_server import Server

from flowshare.agents.pages import own_user
from flowshare.agents.pages.gate import Gate, Need, PageAdmission, PageSettings, RequestHead
from flowshare.agents.pages.handshakes import Handshakes
from flowshare.clock import Clock, LoopClock, TimerHandle
from flowshare.core_errors import FlowshareError
from flowshare.forks import hold_alone

logger = logging.getLogger("flowshare.pages")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
BACKLOG: Final = 64
KEEP_ALIVE_S: Final = 75.0
"""Seconds between two requests of an app's own pages."""
OF_APPS: Final[Mapping[str, str]] = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'self'",
}
"""Headers of an app's own pages, unless the page sets them."""
HEADERS: Final[Mapping[str, str]] = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "flowshare",
}
"""Headers of flowshare's pages, which are JSON and text."""
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class PagesError(FlowshareError):
    """The pages cannot be served; the text says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of the connections to one port.

    connections: at once. by_address: of one address, or of one IPv6 network of a machine (64 bits). head_s: seconds
    until a request's head has come. send_s: seconds until the client has read the ready bytes. request_bytes: of a
    request; 0: the application's limit. one_request: connections end with their answer, which is read within `send_s`;
    else a part of it must be. strangers_go: clients without a known user make room for others, whatever they do;
    without such clients, the user with most connections does. by_owner: of one known user.
    """

    connections: int = 256
    by_address: int = 64
    by_owner: int = 32
    head_s: float = 10.0
    send_s: float = 30.0
    request_bytes: int = 32 * 1024
    one_request: bool = True
    strangers_go: bool = False


BOUNDS: Final = Bounds()
BOUNDS_OF_APPS: Final = Bounds(
    connections=1000, by_address=500, head_s=30.0, send_s=60.0, request_bytes=0, one_request=False
)


class ConnectionLimiter:
    """Counts connections, and drops those that send no request when there is no room."""

    def __init__(self, bounds: Bounds, clock: Clock) -> None:
        self.bounds = bounds
        self.clock = clock
        self.refused = 0
        """Number of connections that found no room, or had to make some."""
        self._by_address: Counter[str] = Counter()
        self._by_owner: Counter[str] = Counter()
        self._owners: dict[PageConnection, str] = {}
        """Known users at the other ends; the one that asked last comes last."""
        self._open: dict[PageConnection, str] = {}
        self._waiting: dict[PageConnection, None] = {}

    @property
    def open(self) -> int:
        """Number of connections."""
        return len(self._open)

    def enter(self, connection: PageConnection, address: str) -> bool:
        """Admit a connection; False if refused.

        If there is no room, the connection that has waited longest without a request is dropped.
        """
        crowded = self._by_address[address] >= self.bounds.by_address
        if crowded or len(self._open) >= self.bounds.connections:
            longest = self._longest(address if crowded else None)
            if longest is None:
                return self._refuse()
            longest.drop()
        self._open[connection] = address
        self._waiting[connection] = None
        self._by_address[address] += 1
        return True

    def _longest(self, address: str | None) -> PageConnection | None:
        """Return the connection that makes room. address: only its connections."""
        if not self.bounds.strangers_go:
            return None if address is not None else next(iter(self._waiting), None)
        self._refuse()
        there = [one for one, where in self._open.items() if address in (None, where)]
        stranger = next((one for one in there if one not in self._owners), None)
        if stranger is not None:
            return stranger
        ((most, _),) = Counter(self._owners[one] for one in there).most_common(1)
        found = {*there}
        return self._idlest(one for one, owner in self._owners.items() if owner == most and one in found)

    @staticmethod
    def _idlest(connections: Iterable[PageConnection]) -> PageConnection:
        """Return the one of a user's connections that asked longest ago, if possible one without an answer under
        way."""
        found = list(connections)
        return next((one for one in found if not one.busy), found[0])

    def recognised(self, connection: PageConnection, owner: str | None) -> None:
        """Note the user at a connection's other end; None: not a known one."""
        self._forget(connection)
        if owner is None or connection not in self._open:
            return
        if self._by_owner[owner] >= self.bounds.by_owner:
            self._refuse()
            self._idlest(one for one, whose in self._owners.items() if whose == owner).drop()
        self._owners[connection] = owner
        self._by_owner[owner] += 1

    def _forget(self, connection: PageConnection) -> None:
        owner = self._owners.pop(connection, None)
        if owner is not None:
            self._by_owner[owner] -= 1
            if not self._by_owner[owner]:
                del self._by_owner[owner]

    def begun(self, connection: PageConnection) -> None:
        """Note that its request has come."""
        self._waiting.pop(connection, None)

    def leave(self, connection: PageConnection) -> None:
        """Forget a connection; harmless twice."""
        self._waiting.pop(connection, None)
        self._forget(connection)
        address = self._open.pop(connection, None)
        if address is None:
            return
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def _refuse(self) -> bool:
        if self.refused == 0:
            logger.warning("the pages have too many connections: some are refused from now on")
        self.refused += 1
        return False


class PageConnection(web.RequestHandler):
    """One connection, within the bounds of its limiter."""

    def __init__(self, limiter: ConnectionLimiter, manager: Server, **kwargs: Any) -> None:
        super().__init__(manager, loop=asyncio.get_running_loop(), **kwargs)
        self._limiter = limiter
        self._timer: TimerHandle | None = None
        self._sending: TimerHandle | None = None
        self._link: asyncio.Transport | None = None
        self._bytes = 0
        self._begun = False
        self.own_user = False
        """True if this user's own process is at the other end, over the socket that only it can use."""
        self.peer: str = ""
        """Address of the other end."""
        self.busy = False
        """True while an answer is being made."""
        self.handshake: asyncio.Task[None] | None = None
        """TLS's handshake, while under way."""
        self._entered = False
        self.admission = PageAdmission(403)
        """The gate's decision on the last request."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin a connection (asyncio)."""
        link = self._link = cast("asyncio.Transport", transport)
        sock: Any = transport.get_extra_info("socket")
        local = sock is not None and sock.family == socket.AF_UNIX
        self.own_user = local and own_user.is_own(sock)
        peername = transport.get_extra_info("peername")
        peer = peername[0] if isinstance(peername, tuple) else ""
        if (local and not self.own_user) or not (self._entered or self.enter(peer)):
            self._force_close = True
            link.abort()
            return
        link.set_write_buffer_limits(0)  # so that each unread byte is reported
        self._timer = self._limiter.clock.call_later(self._limiter.bounds.head_s, self._late)
        super().connection_made(transport)

    @property
    def connected(self) -> bool:
        """True if the connection was made, and its handshake, if any, is done."""
        return self._link is not None

    def enter(self, address: str) -> bool:
        """Count the connection; return True if there is room for it."""
        self.peer = address
        self._entered = self._limiter.enter(self, _network(address))
        return self._entered

    def leave(self) -> None:
        """Count it no more."""
        self._limiter.leave(self)

    def recognise(self, owner: str | None) -> None:
        """Note the user at the other end, as the application knows; None: unknown."""
        self._limiter.recognised(self, owner)

    def data_received(self, data: bytes) -> None:
        """Take in bytes (asyncio's hook)."""
        self._bytes += len(data)
        if 0 < self._limiter.bounds.request_bytes < self._bytes:
            if not self._begun and self._link is not None and not self._force_close:
                self._link.write(_TOO_LARGE)
            self.force_close()
            return
        super().data_received(data)

    def begin(self) -> None:
        """Note that the head of a request has come."""
        if not self._begun:
            self._begun = True
            self._limiter.begun(self)
            _cancel(self._timer)

    def drop(self) -> None:
        """End the connection."""
        self._limiter.leave(self)
        if self.handshake is not None:
            self.handshake.cancel()
        if self._link is not None:
            self._link.abort()

    def pause_writing(self) -> None:
        """Watch the reader: ready bytes lie unread (asyncio)."""
        super().pause_writing()
        self._watch_reader()

    def _watch_reader(self) -> None:
        _cancel(self._sending)
        left = 0 if self._link is None else self._link.get_write_buffer_size()
        self._sending = self._limiter.clock.call_later(self._limiter.bounds.send_s, lambda: self._unread(left))

    def _unread(self, before: int) -> None:
        """End a connection whose bytes were not all read in time, unless a part of an application's long answer was."""
        moved = self._link is not None and self._link.get_write_buffer_size() < before
        if moved and not self._limiter.bounds.one_request:
            self._watch_reader()
        else:
            self.drop()

    def resume_writing(self) -> None:
        """Stop the watch: all were read (asyncio)."""
        _cancel(self._sending)
        super().resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection (asyncio)."""
        self._limiter.leave(self)
        _cancel(self._timer)
        _cancel(self._sending)
        super().connection_lost(exc)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer an error as aiohttp does, without the client's text in the log or in the answer."""
        gone = self.transport is None or self.transport.is_closing()
        if gone and isinstance(exc, ConnectionError):  # the client left in the middle: no fault of the page
            logger.debug("nobody waits for a page any more: path=%r", request.path)
        elif status >= 500:
            logger.error("a page failed: path=%r", request.path, exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer was begun")
        text = "the page failed; the log says why" if status >= 500 else "this is no HTTP request that can be read"
        return _dressed(web.Response(status=status, text=text))

    def _late(self) -> None:
        if not self._begun:
            self.drop()


class Listening(web.BaseSite):
    """aiohttp's site on one socket, whose connections go through a limiter."""

    def __init__(
        self,
        runner: web.AppRunner,
        limiter: ConnectionLimiter,
        sock: socket.socket,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(runner, ssl_context=ssl_context, backlog=BACKLOG)
        self._limiter = limiter
        self._sock = sock

    @property
    def name(self) -> str:
        """aiohttp's: names the site."""
        return f"flowshare:{self._sock.fileno()}"

    async def start(self) -> None:
        """Listen on it."""
        await super().start()
        server = self._runner.server
        assert server is not None
        options = dict(server._kwargs)  # noqa: SLF001 - what aiohttp makes its own connections of
        if not self._limiter.bounds.one_request:
            options["keepalive_timeout"] = KEEP_ALIVE_S

        def connection() -> PageConnection:
            return PageConnection(self._limiter, server, **options)

        loop = asyncio.get_running_loop()
        if self._ssl_context is not None:
            self._sock.listen(self._backlog)
            limit_s = self._limiter.bounds.head_s
            # aiohttp needs only `close` of a server.
            self._server = cast("Any", Handshakes(self._sock, self._ssl_context, connection, limit_s))
        elif self._sock.family == socket.AF_UNIX:
            self._server = await loop.create_unix_server(connection, sock=self._sock, backlog=BACKLOG)
        else:
            self._server = await loop.create_server(connection, sock=self._sock, backlog=BACKLOG)


class Site:
    """Listener of pages, with the gate before them.

    needs: right that a path needs, by default `Need.HOST`.
    """

    def __init__(
        self,
        settings: PageSettings,
        *,
        needs: Mapping[str, Need],
        bounds: Bounds = BOUNDS,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._needs = needs
        self._gate = Gate(settings.hosts, bind=settings.bind, machine=socket.gethostname(), token=settings.token)
        self._limiter = ConnectionLimiter(bounds, LoopClock() if clock is None else clock)
        self._own = ConnectionLimiter(bounds, self._limiter.clock)
        self._turn = asyncio.Lock()
        self._runner: web.AppRunner | None = None

    async def open(self, routes: Iterable[web.RouteDef]) -> str:
        """Listen; return the address. Raises: PagesError when it cannot be had."""
        app = web.Application(middlewares=[self._guard], client_max_size=self._limiter.bounds.request_bytes)
        app.add_routes(list(routes))
        settings = self._settings
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=0.1, lingering_time=0.0
        )
        await self._runner.setup()
        try:
            sock = await asyncio.to_thread(bound, settings.bind, settings.port)
        except (OSError, UnicodeError) as error:
            from flowshare.server.net.listener import not_bound

            await self.close()
            why = not_bound(
                error,
                host="name an address of this machine with --web-bind, 0.0.0.0 for all",
                port="choose another --web-port, or leave it out for a free one",
            )
            raise PagesError(f"health and metrics cannot listen on {settings.bind}:{settings.port}: {why}") from error
        address = shown(sock)
        await Listening(self._runner, self._limiter, sock).start()
        try:
            own = own_user.listen(address)
        except OSError as error:
            logger.warning("the own user's way to the pages at %s is taken (%s): orders want the token", address, error)
        else:
            if own is not None:
                await Listening(self._runner, self._own, own).start()
        return address

    async def close(self) -> None:
        """Stop listening and drop open connections; harmless when it does not listen."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        _connection(request).begin()
        async with self._turn:
            await self._limiter.clock.sleep(0)  # one page per turn of the loop
        resource = request.match_info.route.resource
        need = Need.HOST if resource is None else self._needs.get(resource.canonical, Need.HOST)

        async def page(request: web.Request) -> web.StreamResponse:
            if request.body_exists and (request.content_length is None or request.content_length > 0):
                return web.Response(status=413, text="a page takes no body")
            return await handler(request)

        return await guarded(self._gate, request, need, page, _dressed)


async def guarded(
    gate: Gate,
    request: web.Request,
    need: Need,
    handler: Handler,
    dress: Callable[[web.StreamResponse], web.StreamResponse],
) -> web.StreamResponse:
    """Return the handler's answer if the gate admits the request, else a refusal; both dressed."""
    connection, headers = _connection(request), request.headers
    connection.begin()
    asked = RequestHead(
        method=request.method,
        hosts=tuple(headers.getall("Host", ())),
        origins=tuple(headers.getall("Origin", ())),
        credentials=tuple(headers.getall("Authorization", ())),
        fetch_site=headers.get("Sec-Fetch-Site", ""),
        fetch_mode=headers.get("Sec-Fetch-Mode", ""),
        peer=connection.peer,
        own_user=connection.own_user,
    )
    admission = connection.admission = gate.judge(asked, need)
    if admission.status != 200:
        answer = web.Response(status=admission.status, text=admission.why)
        if admission.status == 401:
            answer.headers["WWW-Authenticate"] = "Bearer"
        answer.force_close()
        return dress(answer)
    connection.busy = True
    try:
        return dress(await handler(request))
    except web.HTTPException as error:
        dress(error)
        raise
    finally:
        connection.busy = False


def _connection(request: web.Request) -> PageConnection:
    connection = request.protocol
    assert isinstance(connection, PageConnection)
    return connection


def _dressed(answer: web.StreamResponse) -> web.StreamResponse:
    answer.headers.update(HEADERS)
    answer.force_close()
    return answer


def bound(bind: str, port: int) -> socket.socket:
    """Bind a socket, port 0: a free one. Blocks while a name is looked up. Raises: OSError, UnicodeError."""
    # Without a host: all addresses.
    found = socket.getaddrinfo(bind or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, where = found[0]
    sock = socket.create_server(where[:2], family=family, backlog=BACKLOG)
    sock.setblocking(False)
    hold_alone(sock.fileno())
    return sock


def shown(sock: socket.socket) -> str:
    """Return `host:port` of a socket, an IPv6 address in brackets."""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _network(text: str) -> str:
    """Return the network that counts as one address: of an IPv6 address its /64, else the address itself."""
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(text)
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
            return str(ipaddress.ip_network((found, 64), strict=False))
    return text


def _cancel(timer: TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
