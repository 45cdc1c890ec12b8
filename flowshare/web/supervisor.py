"""A supervisor's pages: those of its workers (`web.server`), of all of them under one address.

    /live      200 as long as the supervisor runs
    /ready     200 when every worker that is to run does and says that it is ready, else 503 with who is not and why
    /metrics   Prometheus text: a worker's names with the sums over all workers; what is the whole group's once; by
               worker, with the label `worker`, as `flowshare_worker_…`, so that nobody adds both up
    /workers   JSON: number, process, address and state of each worker
    /inflight  JSON: the records that handlers work on, with the worker's number
    /lag       as a worker's; /scale too
    /drain     POST: all workers fetch no more and finish what is running

Who gets what is decided as for a worker. The workers are asked by the way that their own user has (`agents.own_user`).
A worker that does not answer within `ASK_S` is left out, and told of by /ready.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from flowshare.agents import own_user
from flowshare.agents.gate import PageSettings
from flowshare.clock import LoopClock
from flowshare.web.server import NEEDS, TEXT, Kept, health, json_answer, kept_answer, rows_answer, verdict_of

if TYPE_CHECKING:
    import aiohttp
    from aiohttp import web

    from flowshare.agents.site import Site
    from flowshare.agents.supervisor import Supervisor
    from flowshare.backend.base import Backend

ASK_S: Final = 3.0
BYTES_MAX: Final = 64 * 1024 * 1024
"""Of one worker's page."""
LATER_S: Final = 10.0
"""How much longer than its drain time a worker's answer to /drain is waited for."""
STATE: Final = frozenset({"state"})


class SupervisorPages:
    """Serves them.

    backend: what the supervisor leads, None: nothing. settings: where, and to whom. drain_timeout_s: of its workers.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        backend: Backend | None,
        settings: PageSettings | None = None,
        *,
        drain_timeout_s: float,
    ) -> None:
        self._supervisor = supervisor
        self._backend = backend
        self._settings = settings or PageSettings()
        self._site: Site | None = None
        self._kept = Kept(LoopClock())
        self._drain_timeout_s = drain_timeout_s
        self._open = False

    async def start(self) -> str:
        """Listen; returns the address. Raises: PagesError when the port is taken."""
        from aiohttp import web

        from flowshare.agents.site import Site

        routes = {
            "/": self._index,
            "/live": self._live,
            "/ready": self._ready,
            "/metrics": self._metrics,
            "/workers": self._workers,
            "/inflight": self._in_flight,
            "/lag": self._any,
            "/scale": self._any,
        }
        self._paths = [path for path in routes if path != "/"]
        found = [*(web.get(path, handler) for path, handler in routes.items()), web.post("/drain", self._drain)]
        self._site = Site(self._settings, needs=NEEDS)
        address = await self._site.open(found)
        self._open = True
        return address

    async def close(self) -> None:
        """Stop listening; harmless when it does not."""
        self._open = False
        if self._site is not None:
            await self._site.close()

    # --- the pages ----------------------------------------------------------------------------------------------

    async def _index(self, _: web.Request) -> web.Response:
        return json_answer({"pages": self._paths})

    async def _live(self, request: web.Request) -> web.Response:
        return health(request, ())

    async def _ready(self, request: web.Request) -> web.Response:
        return health(request, await self._kept.get("ready", self._reasons))

    async def _reasons(self) -> list[str]:
        """Why not all workers work."""
        reasons = list(self._supervisor.problems())
        for number, told in (await self._ask_all("/ready")).items():
            if told is None:
                reasons.append(f"worker {number} does not answer")
            else:
                reasons += [f"worker {number}: {reason}" for reason in told["reasons"]]
        return reasons

    async def _metrics(self, _: web.Request) -> web.Response:
        from aiohttp import web

        return web.Response(body=await self._kept.get("metrics", self._text), headers={"Content-Type": TEXT})

    async def _text(self) -> bytes:
        told, reasons = await asyncio.gather(self._ask_all("/metrics", text=True), self._reasons())
        states = {"ready": len(self._supervisor.ready), "down": self._supervisor.size - len(self._supervisor.ready)}
        led = {} if self._backend is None else self._backend.stats()
        texts = {number: text for number, text in told.items() if text is not None}
        return await asyncio.to_thread(_merged, texts, states, not reasons, led)

    async def _workers(self, request: web.Request) -> web.Response:
        supervisor = self._supervisor
        found = sorted({*supervisor.running, *supervisor.ready, *supervisor.down})
        rows = [
            {
                "worker": number,
                "pid": supervisor.running.get(number),
                "address": supervisor.ready.get(number),
                "state": "ready" if number in supervisor.ready else "down" if number in supervisor.down else "starting",
                "why": supervisor.down.get(number),
            }
            for number in found
        ]
        return rows_answer(request, rows, keep=STATE)

    async def _in_flight(self, request: web.Request) -> web.Response:
        stacks = "stacks" in request.query and verdict_of(request).operator
        page = "/inflight?stacks" if stacks else "/inflight"

        async def rows() -> list[dict[str, Any]]:
            told = await self._ask_all(page)
            return [{"worker": number, **row} for number, rows in told.items() for row in rows or ()]

        return await kept_answer(request, self._kept, page, rows)

    async def _any(self, request: web.Request) -> web.Response:
        """What any worker can tell of the groups, from the first that does."""
        for number in sorted(self._supervisor.ready):
            status, told = await self._get(number, f"{request.path}?{request.query_string}")
            if told is not None:
                return rows_answer(request, told, status=status)
        reasons = list(self._supervisor.problems()) if verdict_of(request).trusted else []
        return json_answer({"error": "no worker answers", "reasons": reasons}, status=503)

    async def _drain(self, _request: web.Request) -> web.Response:
        limit_s = self._drain_timeout_s + LATER_S
        told = await self._ask_all("/drain", method="POST", limit_s=limit_s)
        return json_answer({"drained": all(one is not None and one["drained"] for one in told.values())})

    # --- asking the workers -------------------------------------------------------------------------------------

    async def _ask_all(
        self, page: str, *, text: bool = False, method: str = "GET", limit_s: float = ASK_S
    ) -> dict[int, Any]:
        """What each worker that runs answers, by number; None: nothing."""
        numbers = sorted(self._supervisor.ready)
        told = await asyncio.gather(
            *(self._get(number, page, text=text, method=method, limit_s=limit_s) for number in numbers)
        )
        return {number: answer for number, (_, answer) in zip(numbers, told, strict=True)}

    async def _get(
        self, number: int, page: str, *, text: bool = False, method: str = "GET", limit_s: float = ASK_S
    ) -> tuple[int, Any]:
        import aiohttp
        import orjson

        address = self._supervisor.ready.get(number)
        if not address or not self._open:
            return 503, None
        limit = aiohttp.ClientTimeout(total=limit_s)
        try:
            async with (
                self._session(address) as session,
                session.request(method, f"http://{address}{page}", timeout=limit, allow_redirects=False) as answer,
            ):
                body = await _whole(answer)
                if answer.status not in (200, 400, 503):
                    return answer.status, None
                if text or answer.content_type != "application/json":
                    return answer.status, body.decode(errors="replace")
                return answer.status, orjson.loads(body)
        except (OSError, ValueError, aiohttp.ClientError, TimeoutError):
            return 503, None

    def _session(self, address: str) -> aiohttp.ClientSession:
        """One that asks this worker: by its own user's way, else with the token."""
        import aiohttp

        try:
            sock = own_user.connect(address, 0)  # at once, or not: a worker that stands still has no room for more
        except own_user.OtherUser as error:
            raise OSError(str(error)) from None
        if sock is not None:
            return aiohttp.ClientSession(connector=_on(sock))
        token = self._settings.token
        return aiohttp.ClientSession(headers={} if token is None else {"Authorization": f"Bearer {token.decode()}"})


def _on(sock: socket.socket) -> aiohttp.BaseConnector:
    """A connector with one connection, that of this socket."""
    import aiohttp

    class Connected(aiohttp.UnixConnector):
        async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:
            _, protocol = await self._loop.create_unix_connection(self._factory, sock=sock)
            return protocol

    sock.setblocking(False)
    return Connected(path="")


async def _whole(answer: aiohttp.ClientResponse) -> bytes:
    """Everything that it says. Raises: ValueError when that is too much."""
    found = bytearray()
    async for piece in answer.content.iter_any():
        found += piece
        if len(found) > BYTES_MAX:
            raise ValueError("a worker's page is too long")
    return bytes(found)


def _merged(texts: Mapping[int, str], states: Mapping[str, int], ready: bool, led: Mapping[str, Any]) -> bytes:
    from flowshare.web.merged import MergedMetrics

    return MergedMetrics(texts, states=states, ready=ready, led=led).text()
