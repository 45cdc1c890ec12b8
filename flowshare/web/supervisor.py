"""A supervisor's pages: those of its workers (`web.server`), of all of them under one address.

    /live      200 as long as the supervisor runs
    /ready     200 when every worker that is to run does and says that it is ready, else 503 with who is not and why
    /metrics   Prometheus text: a worker's names with the sums over all workers; what is the whole group's once; by
               worker, with the label `worker`, as `flowshare_worker_…`, so that nobody adds both up
    /workers   JSON: number, process, address and state of each worker
    /inflight  JSON: the records that handlers work on, with the worker's number
    /lag       as a worker's; /scale too
    /drain     POST, from this machine only: all workers fetch no more and finish what is running

A worker that does not answer within `ASK_S` is left out, and told of by /ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from flowshare.web.server import Site, from_here, json_answer

if TYPE_CHECKING:
    import aiohttp
    from aiohttp import web

    from flowshare.agents.supervisor import Supervisor
    from flowshare.backend.base import Backend

ASK_S: Final = 3.0
BYTES_MAX: Final = 64 * 1024 * 1024
"""Of one worker's page."""
LATER_S: Final = 10.0
"""How much longer than its drain time a worker's answer to /drain is waited for."""
TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


class SupervisorPages:
    """Serves them. backend: what the supervisor leads, None: nothing. drain_timeout_s: of its workers."""

    def __init__(
        self,
        supervisor: Supervisor,
        backend: Backend | None,
        *,
        port: int = 0,
        bind: str = "127.0.0.1",
        drain_timeout_s: float,
    ) -> None:
        self._supervisor = supervisor
        self._backend = backend
        self._site = Site(port=port, bind=bind)
        self._drain_timeout_s = drain_timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> str:
        """Listen; returns the address. Raises: PagesError when the port is taken."""
        import aiohttp
        from aiohttp import web

        app = web.Application()
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
        app.add_routes([*(web.get(path, handler) for path, handler in routes.items()), web.post("/drain", self._drain)])
        address = await self._site.open(app)
        self._session = aiohttp.ClientSession()
        return address

    async def close(self) -> None:
        """Stop listening; harmless when it does not."""
        await self._site.close()
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # --- the pages ----------------------------------------------------------------------------------------------

    async def _index(self, _: web.Request) -> web.Response:
        return json_answer({"pages": self._paths})

    async def _live(self, _: web.Request) -> web.Response:
        return json_answer({"ok": True, "reasons": []})

    async def _ready(self, _: web.Request) -> web.Response:
        reasons = await self._reasons()
        return json_answer({"ok": not reasons, "reasons": reasons}, status=503 if reasons else 200)

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

        told, reasons = await asyncio.gather(self._ask_all("/metrics", text=True), self._reasons())
        states = {"ready": len(self._supervisor.ready), "down": self._supervisor.size - len(self._supervisor.ready)}
        led = {} if self._backend is None else self._backend.stats()
        texts = {number: text for number, text in told.items() if text is not None}
        body = await asyncio.to_thread(_merged, texts, states, not reasons, led)
        return web.Response(body=body, headers={"Content-Type": TEXT})

    async def _workers(self, _: web.Request) -> web.Response:
        supervisor = self._supervisor
        numbers = sorted({*supervisor.running, *supervisor.ready, *supervisor.down})
        rows = [
            {
                "worker": number,
                "pid": supervisor.running.get(number),
                "address": supervisor.ready.get(number),
                "state": "ready" if number in supervisor.ready else "down" if number in supervisor.down else "starting",
                "why": supervisor.down.get(number),
            }
            for number in numbers
        ]
        return json_answer(rows)

    async def _in_flight(self, request: web.Request) -> web.Response:
        told = await self._ask_all(f"/inflight?{request.query_string}")
        return json_answer([{"worker": number, **row} for number, rows in told.items() for row in rows or ()])

    async def _any(self, request: web.Request) -> web.Response:
        """What any worker can tell of the groups, from the first that does."""
        for number in sorted(self._supervisor.ready):
            status, told = await self._get(number, f"{request.path}?{request.query_string}")
            if told is not None:
                return json_answer(told, status=status)
        return json_answer({"error": "no worker answers", "reasons": list(self._supervisor.problems())}, status=503)

    async def _drain(self, request: web.Request) -> web.Response:
        from aiohttp import web

        if not from_here(request.remote):
            raise web.HTTPForbidden(text="workers are drained from their own machine or container only")
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
        if not address or self._session is None:
            return 503, None
        limit = aiohttp.ClientTimeout(total=limit_s)
        try:
            async with self._session.request(method, f"http://{address}{page}", timeout=limit) as answer:
                body = await answer.content.read(BYTES_MAX)
                if answer.status not in (200, 400, 503):
                    return answer.status, None
                if text or answer.content_type != "application/json":
                    return answer.status, body.decode(errors="replace")
                return answer.status, orjson.loads(body)
        except (OSError, ValueError, aiohttp.ClientError, TimeoutError):
            return 503, None


def _merged(texts: Mapping[int, str], states: Mapping[str, int], ready: bool, led: Mapping[str, Any]) -> bytes:
    from flowshare.web.merged import MergedMetrics

    return MergedMetrics(texts, states=states, ready=ready, led=led).text()
