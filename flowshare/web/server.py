"""The worker's own web server, on the service loop: a blocked handler neither stops nor slows an answer.

    /live      200 while there is hope for this process, else 503: restart it
    /ready     200 when the agents run and the handler loop answers, else 503
    /metrics   Prometheus text
    /inflight  JSON: the records that handlers work on
    /lag       JSON: backlog, in flight, oldest age, redeliveries a share-partition; `?topics`: sums and rates a topic
    /scale     JSON: how many workers the app needs, as autoscalers read it; `?target_age=` seconds or text as 30s
    /drain     POST, from this machine only: fetch no more, finish what is running; answers when that is done

Bound to 127.0.0.1 on a free port unless told otherwise. An application's own pages are Faust's web server's and run on
the handler loop.
"""

from __future__ import annotations

import asyncio
import importlib
import ipaddress
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from flowshare.agents.load import LoadWatch
from flowshare.agents.scaling import TARGET_AGE_S, read_seconds
from flowshare.forks import hold_alone

if TYPE_CHECKING:
    from aiohttp import web

    from flowshare.agents.host import Host
    from flowshare.web.metrics import Metrics

Handler = Callable[["web.Request"], Awaitable["web.Response"]]


class PagesError(Exception):
    """The health pages cannot be served; the text says what to do."""


class Site:
    """Where pages are listened for; port 0: a free one."""

    def __init__(self, *, port: int, bind: str) -> None:
        self._port = port
        self._bind = bind
        self._runner: web.AppRunner | None = None

    async def open(self, app: web.Application) -> str:
        """Listen; returns the address. Raises: PagesError when the port is taken."""
        from aiohttp import web

        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
        await self._runner.setup()
        try:
            site: Any = web.TCPSite(self._runner, self._bind, self._port)
            await site.start()
            for one in site._server.sockets:  # noqa: SLF001 - aiohttp tells none
                hold_alone(one.fileno())
        except OSError as error:
            await self.close()
            raise PagesError(
                f"health and metrics cannot listen on {self._bind}:{self._port}: {error.strerror or error}; "
                "choose another --web-port, or leave it out for a free one"
            ) from error
        host, port = self._runner.addresses[0][:2]
        return f"{host}:{port}"

    async def close(self) -> None:
        """Stop listening and drop what is open; harmless when it does not listen."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()


class WebServer:
    """Serves one host's health, metrics and lists. `start` and `close` on the service loop.

    drain_timeout_s: seconds that handlers get when `/drain` is asked for; None: what the agents say.
    """

    def __init__(
        self, host: Host, *, port: int = 0, bind: str = "127.0.0.1", drain_timeout_s: float | None = None
    ) -> None:
        self._host = host
        self._drain_timeout_s = drain_timeout_s
        self._load: LoadWatch | None = None
        self._site = Site(port=port, bind=bind)
        self._metrics: Metrics | None = None
        self.address = ""
        """`host:port` once started."""

    async def start(self) -> str:
        """Listen; returns the address. Raises: PagesError when the port is taken."""
        await asyncio.to_thread(_import)  # 0.1 s, while the agents on this loop fetch their first records
        from aiohttp import web

        from flowshare.web.metrics import Metrics

        self._load = LoadWatch(self._host)
        self._metrics = Metrics(self._host, self._load)
        app = web.Application()
        app.add_routes([web.get(path, handler) for path, handler in self._routes().items()])
        app.add_routes([web.post("/drain", self._drain)])
        try:
            self.address = await self._site.open(app)
        except PagesError:
            await self.close()
            raise
        self._load.start()
        return self.address

    async def close(self) -> None:
        """Stop listening and drop what is open."""
        if self._load is not None:
            await self._load.close()
        await self._site.close()

    def _routes(self) -> dict[str, Handler]:
        return {
            "/": self._index,
            "/live": self._live,
            "/ready": self._ready,
            "/metrics": self._prometheus,
            "/inflight": self._in_flight,
            "/lag": self._lag,
            "/scale": self._scale,
        }

    async def _index(self, _request: web.Request) -> web.Response:
        return json_answer({"pages": [path for path in self._routes() if path != "/"]})

    async def _live(self, _request: web.Request) -> web.Response:
        return _health(self._host.live())

    async def _ready(self, _request: web.Request) -> web.Response:
        return _health(self._host.ready())

    async def _prometheus(self, _request: web.Request) -> web.Response:
        from aiohttp import web

        assert self._metrics is not None
        text = self._metrics.text()
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _in_flight(self, request: web.Request) -> web.Response:
        return json_answer(self._host.in_flight(stacks="stacks" in request.query))

    async def _lag(self, request: web.Request) -> web.Response:
        if "topics" in request.query:
            return json_answer(self._watched.topics(_target_age(request)))
        return json_answer(await self._host.lag(all_groups="all" in request.query))

    async def _scale(self, request: web.Request) -> web.Response:
        return json_answer(self._watched.report(_target_age(request)))

    async def _drain(self, request: web.Request) -> web.Response:
        from aiohttp import web

        if not from_here(request.remote):
            raise web.HTTPForbidden(text="a worker is drained from its own machine or container only")
        return json_answer({"drained": await self._host.drain(self._drain_timeout_s)})

    @property
    def _watched(self) -> LoadWatch:
        assert self._load is not None
        return self._load


def _target_age(request: web.Request) -> float:
    """`?target_age=10` or `10s`, `2m`. Raises: HTTPBadRequest."""
    from aiohttp import web

    text = request.query.get("target_age")
    try:
        return TARGET_AGE_S if text is None else read_seconds(text)
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"target_age: {error}") from None


def from_here(remote: str | None) -> bool:
    """Whether a peer's address is this machine's."""
    try:
        return ipaddress.ip_address(remote or "").is_loopback
    except ValueError:
        return False


def _import() -> None:
    importlib.import_module("aiohttp.web")
    importlib.import_module("flowshare.web.metrics")


def _health(reasons: tuple[str, ...]) -> web.Response:
    return json_answer({"ok": not reasons, "reasons": list(reasons)}, status=503 if reasons else 200)


def json_answer(value: Any, *, status: int = 200) -> web.Response:
    """An answer of JSON."""
    import orjson
    from aiohttp import web

    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")
