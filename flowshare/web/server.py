"""The worker's own web server, on the service loop: a blocked handler neither stops nor slows an answer.

    /live      200 while there is hope for this process, else 503: restart it
    /ready     200 when the agents run and the handler loop answers, else 503
    /metrics   Prometheus text
    /inflight  JSON: the records that handlers work on; `?stacks`: and their stacks
    /agents    JSON: each agent's held records, the age of the oldest, and its handlers' last exceptions
    /lag       JSON: backlog, in flight, oldest age, redeliveries a share-partition; `?topics`: sums and rates a topic
    /scale     JSON: number of workers that the app needs, for autoscalers; `?target_age=` seconds or text as 30s
    /drain     POST: fetch no more, finish the running handlers; answers after that

`agents.pages.gate` decides the rights: /live and /ready answer every caller but a page in a browser, the others answer
callers that ask by one of this server's hosts, with numbers instead of names; names, stacks and /drain are the
operator's. Bound to 127.0.0.1 on a free port unless told otherwise. An application's own pages are Faust's web server's
and run on the handler loop.
"""

from __future__ import annotations

import abc
import asyncio
import importlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import orjson

from flowshare.agents.pages.gate import Need, PageAdmission, PageSettings, numbers
from flowshare.ops.load import LoadWatch
from flowshare.ops.reading import every_group, groups_of, partitions
from flowshare.ops.scaling import TARGET_AGE_S, read_seconds

if TYPE_CHECKING:
    from aiohttp import web

    from flowshare.agents.host.host import Host
    from flowshare.agents.pages.site import PageConnection, Site
    from flowshare.clock import Clock

T = TypeVar("T")
Handler = Callable[["web.Request"], Awaitable["web.Response"]]
TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
NEEDS: Final[Mapping[str, Need]] = {
    "/live": Need.NOTHING,
    "/ready": Need.NOTHING,
    "/drain": Need.OPERATOR,
    "/resize": Need.OPERATOR,
}
KEPT_S: Final = 1.0
STATE: Final = frozenset({"state"})
"""Keys of a page's rows whose texts are no names."""


class PageCache:
    """Cache of costly results: a result is kept for a second, and made once for all concurrent callers.

    Keys come from the code, never from a user's text.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._made: dict[str, tuple[float, Any]] = {}
        self._making: dict[str, asyncio.Future[Any]] = {}

    async def get(self, key: str, make: Callable[[], Awaitable[T]]) -> T:
        """Return the result for a key."""
        made = self._made.get(key)
        if made is not None and self._clock.monotonic() - made[0] < KEPT_S:
            kept: T = made[1]
            return kept
        making = self._making.get(key)
        if making is None:
            making = self._making[key] = asyncio.ensure_future(self._make(key, make))
            making.add_done_callback(lambda _: self._making.pop(key, None))
        value: T = await asyncio.shield(making)
        return value

    async def _make(self, key: str, make: Callable[[], Awaitable[T]]) -> T:
        now_s = self._clock.monotonic()
        value = await make()
        self._made[key] = now_s, value
        return value


class Pages(abc.ABC):
    """Health and metrics over HTTP, for workers, supervisors and pipelines, each with more pages (`_routes`).

    Call `start` and `close` on the loop that answers. settings: address and rights.
    """

    def __init__(self, settings: PageSettings | None, clock: Clock) -> None:
        self._settings = settings or PageSettings()
        self._site: Site | None = None
        self._kept = PageCache(clock)
        self.address = ""
        """`host:port` once started."""

    async def start(self) -> str:
        """Listen; returns the address. Raises: PagesError when the address cannot be had."""
        await asyncio.to_thread(_import)  # 0.1 s, while the agents on this loop fetch their first records
        from aiohttp import web

        from flowshare.agents.pages.site import Site

        self._site = Site(self._settings, needs=NEEDS)
        routes = [web.get(path, handler) for path, handler in self._routes().items()]
        orders = [web.post(path, handler) for path, handler in self._orders().items()]
        self.address = await self._site.open([*routes, *orders])
        return self.address

    async def close(self) -> None:
        """Stop listening and drop open connections; harmless when it does not listen."""
        if self._site is not None:
            await self._site.close()

    def _routes(self) -> dict[str, Handler]:
        return {"/": self._index, "/live": self._live, "/ready": self._ready, "/metrics": self._prometheus}

    def _orders(self) -> dict[str, Handler]:
        """Return the handlers of POST requests."""
        return {}

    @abc.abstractmethod
    async def _reasons(self) -> Sequence[str]:
        """Return the reasons why /ready answers 503; none: all is well."""

    @abc.abstractmethod
    async def _text(self) -> bytes:
        """Return the metrics."""

    async def _index(self, _request: web.Request) -> web.Response:
        return json_answer({"pages": [path for path in self._routes() if path != "/"]})

    async def _live(self, request: web.Request) -> web.Response:
        return health(request, ())

    async def _ready(self, request: web.Request) -> web.Response:
        return health(request, await self._reasons())

    async def _prometheus(self, _request: web.Request) -> web.Response:
        from aiohttp import web

        return web.Response(body=await self._kept.get("metrics", self._text), headers={"Content-Type": TEXT})


class WebServer(Pages):
    """Serves one host's health, metrics and lists, on the service loop.

    drain_timeout_s: seconds for handlers after `/drain`; None: by the agents' options.
    """

    def __init__(
        self, host: Host, settings: PageSettings | None = None, *, drain_timeout_s: float | None = None
    ) -> None:
        super().__init__(settings, host.clock)
        self._host = host
        self._drain_timeout_s = drain_timeout_s
        self._load: LoadWatch | None = None

    async def start(self) -> str:
        """Listen, and begin to look at the groups. Raises: PagesError when the address cannot be had."""
        host = self._host
        self._load = LoadWatch(host.runtimes, host.admin, host.backend.capabilities, clock=host.clock)
        await super().start()
        self._load.start()
        return self.address

    async def close(self) -> None:
        """Stop listening and drop open connections."""
        if self._load is not None:
            await self._load.close()
        await super().close()

    def _routes(self) -> dict[str, Handler]:
        return {
            **super()._routes(),
            "/inflight": self._in_flight,
            "/agents": self._agents,
            "/lag": self._lag,
            "/scale": self._scale,
        }

    def _orders(self) -> dict[str, Handler]:
        return {"/drain": self._drain}

    async def _live(self, request: web.Request) -> web.Response:
        return health(request, self._host.live())

    async def _reasons(self) -> Sequence[str]:
        return self._host.ready()

    async def _text(self) -> bytes:
        from flowshare.web.metrics import Metrics

        return Metrics(self._host, self._watched).text()

    async def _in_flight(self, request: web.Request) -> web.Response:
        if "stacks" in request.query and admission_of(request).operator:
            return json_answer(await self._records(stacks=True))
        return await kept_answer(request, self._kept, "inflight", self._records)

    async def _records(self, *, stacks: bool = False) -> list[dict[str, Any]]:
        """Return the records that handlers work on; blocked: number of records of their key that waited at the last
        look."""
        rows = self._host.in_flight(stacks=stacks)
        stuck: dict[tuple[Any, ...], int] = {
            (one.topic, key.partition, key.offset): key.blocked
            for one in self._watched.seen.partitions
            for key in one.stuck
        }
        for row in rows:
            where = row.get("topic"), row.get("partition"), row.get("offset")
            row["blocked"] = stuck.get(where, 0)
        return rows

    async def _agents(self, request: web.Request) -> web.Response:
        return rows_answer(request, self._host.in_hand())

    async def _lag(self, request: web.Request) -> web.Response:
        if "topics" in request.query:
            return rows_answer(request, self._watched.topics(_target_age(request)))
        every = "all" in request.query
        key = "lag of all" if every else "lag"
        return await kept_answer(request, self._kept, key, lambda: self._positions(every=every))

    async def _positions(self, *, every: bool) -> list[dict[str, Any]]:
        """Return the figures of each partition of the agents' groups, or of all groups that the backend knows."""
        host = self._host
        if every:
            known = await every_group(host.admin, host.backend.capabilities)
            groups = {name: kind for name, (kind, _) in known.items()}
        else:
            groups = groups_of(runtime.agent for runtime in list(host.runtimes.values()))
        return [one.row() for one in await partitions(host.admin, groups, host.clock.now_ms())]

    async def _scale(self, request: web.Request) -> web.Response:
        return rows_answer(request, self._watched.report(_target_age(request)))

    async def _drain(self, _request: web.Request) -> web.Response:
        return json_answer({"drained": await self._host.drain(self._drain_timeout_s)})

    @property
    def _watched(self) -> LoadWatch:
        assert self._load is not None
        return self._load


def _target_age(request: web.Request) -> float:
    """Read `?target_age=10` or `10s`, `2m`. Raises HTTPBadRequest."""
    from aiohttp import web

    text = request.query.get("target_age")
    try:
        return TARGET_AGE_S if text is None else read_seconds(text)
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"target_age: {error}") from None


def _import() -> None:
    importlib.import_module("flowshare.agents.pages.site")
    importlib.import_module("flowshare.web.metrics")


def admission_of(request: web.Request) -> PageAdmission:
    """Return the rights with which the caller was let in."""
    return cast("PageConnection", request.protocol).admission


def health(request: web.Request, reasons: Sequence[str]) -> web.Response:
    """Answer if all is well, and give reasons to trusted callers only: reasons name agents, brokers and workers."""
    told = list(reasons)
    if told and not admission_of(request).trusted:
        told = [f"{len(told)} reasons, for who asks by one of this server's hosts (--web-host) or with its token"]
    return json_answer({"ok": not reasons, "reasons": told}, status=503 if reasons else 200)


def rows_answer(
    request: web.Request, value: Any, *, keep: frozenset[str] = frozenset(), status: int = 200
) -> web.Response:
    """Return JSON for the operator; for others without names. keep: keys whose texts are no names."""
    return json_answer(value if admission_of(request).operator else numbers(value, keep), status=status)


async def kept_answer(
    request: web.Request, kept: PageCache, key: str, make: Callable[[], Awaitable[Any]]
) -> web.Response:
    """Answer as `rows_answer`, for results that are costly to make and long to encode: both forms are cached."""
    operator = admission_of(request).operator

    async def body() -> bytes:
        found = await kept.get(key, make)
        return orjson.dumps(found if operator else numbers(found))

    return _json(await kept.get(f"{key} for {'operators' if operator else 'others'}", body))


def json_answer(value: Any, *, status: int = 200) -> web.Response:
    """Return an answer of JSON."""
    return _json(orjson.dumps(value), status=status)


def _json(body: bytes, *, status: int = 200) -> web.Response:
    from aiohttp import web

    return web.Response(body=body, status=status, content_type="application/json")
