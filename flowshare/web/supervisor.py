"""A supervisor's pages: those of its workers (`web.server`), of all of them under one address.

    /live      200 as long as the supervisor runs
    /ready     200 when every worker that is to run does and says that it is ready, else 503 with who is not and why
    /metrics   Prometheus text: a worker's names with the sums over all workers; what is the whole group's once; by
               worker, with the label `worker`, as `flowshare_worker_…`, so that nobody adds both up
    /workers   JSON: number, process, address and state of each worker
    /inflight  JSON: the records that handlers work on, with the worker's number
    /agents    JSON: what each agent of each worker holds, and what its handlers raised last
    /lag       as a worker's; /scale too
    /drain     POST: all workers fetch no more and finish what is running
    /resize    POST, `?workers=N`: keep N workers from now on; those that go drain first. Not of `flowshare scale`

Who gets what is decided as for a worker. The workers are asked by the way that their own user has
(`agents.pages.own_user`). A worker that does not answer within `ASK_S` is left out, and told of by /ready.
"""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from flowshare.agents.pages import own_user
from flowshare.agents.pages.gate import PageSettings
from flowshare.clock import LoopClock
from flowshare.web.server import STATE, Handler, Pages, admission_of, json_answer, kept_answer, rows_answer

if TYPE_CHECKING:
    from aiohttp import web

    from flowshare.agents.worker.supervisor import Supervisor
    from flowshare.backend.base import Backend

ASK_S: Final = 3.0
WORKERS_MAX: Final = 256
ASKERS: Final = WORKERS_MAX
"""Threads at most: as many as there may be workers, each of which may stand still."""
LATER_S: Final = 10.0
"""How much longer than its drain time a worker's answer to /drain is waited for."""


class SupervisorPages(Pages):
    """Serves them.

    backend: what the supervisor leads, None: nothing. settings: where, and to whom. drain_timeout_s: of its workers.
    fixed: how many there are is nobody's decision but the operator's.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        backend: Backend | None,
        settings: PageSettings | None = None,
        *,
        drain_timeout_s: float,
        fixed: bool = True,
    ) -> None:
        self._fixed = fixed
        self._clock = LoopClock()
        super().__init__(settings, self._clock)
        self._askers = ThreadPoolExecutor(ASKERS, "ask worker")
        self._supervisor = supervisor
        self._backend = backend
        self._drain_timeout_s = drain_timeout_s

    async def close(self) -> None:
        """Stop listening, and ask nobody any more."""
        await super().close()
        self._askers.shutdown(wait=False, cancel_futures=True)

    # --- the pages ----------------------------------------------------------------------------------------------

    def _routes(self) -> dict[str, Handler]:
        return {
            **super()._routes(),
            "/workers": self._workers,
            "/inflight": self._in_flight,
            "/agents": self._agents,
            "/lag": self._any,
            "/scale": self._any,
        }

    def _orders(self) -> dict[str, Handler]:
        return {"/drain": self._drain, "/resize": self._resize}

    async def _reasons(self) -> list[str]:
        return await self._kept.get("ready", self._find_reasons)

    async def _find_reasons(self) -> list[str]:
        """Why not all workers work."""
        reasons = list(self._supervisor.problems())
        for number, told in (await self._ask_all("/ready")).items():
            if told is None:
                reasons.append(f"worker {number} does not answer")
            else:
                reasons += [f"worker {number}: {reason}" for reason in told["reasons"]]
        return reasons

    async def _text(self) -> bytes:
        told, reasons = await asyncio.gather(self._ask_all("/metrics"), self._reasons())
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
        stacks = "stacks" in request.query and admission_of(request).operator
        return await self._of_each(request, "/inflight?stacks" if stacks else "/inflight")

    async def _agents(self, request: web.Request) -> web.Response:
        return await self._of_each(request, "/agents")

    async def _of_each(self, request: web.Request, page: str) -> web.Response:
        """The rows of all workers, each with its worker's number."""

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
        reasons = list(self._supervisor.problems()) if admission_of(request).trusted else []
        return json_answer({"error": "no worker answers", "reasons": reasons}, status=503)

    async def _drain(self, _request: web.Request) -> web.Response:
        limit_s = self._drain_timeout_s + LATER_S
        told = await self._ask_all("/drain", method="POST", limit_s=limit_s)
        return json_answer({"drained": all(one is not None and one["drained"] for one in told.values())})

    async def _resize(self, request: web.Request) -> web.Response:
        text = request.query.get("workers", "")
        if not self._fixed:
            return json_answer(
                {"error": "flowshare scale decides how many workers there are (--min, --max)"}, status=409
            )
        if not (text.isascii() and text.isdecimal() and 1 <= int(text[:4]) <= WORKERS_MAX):
            return json_answer({"error": f"workers is a number from 1 to {WORKERS_MAX}"}, status=400)
        self._supervisor.resize(int(text))
        return json_answer({"workers": self._supervisor.size})

    # --- asking the workers -------------------------------------------------------------------------------------

    async def _ask_all(self, page: str, *, method: str = "GET", limit_s: float = ASK_S) -> dict[int, Any]:
        """What each worker that runs answers, by number; None: nothing."""
        numbers = sorted(self._supervisor.ready)
        told = await asyncio.gather(*(self._get(number, page, method=method, limit_s=limit_s) for number in numbers))
        return {number: answer for number, (_, answer) in zip(numbers, told, strict=True)}

    async def _get(self, number: int, page: str, *, method: str = "GET", limit_s: float = ASK_S) -> tuple[int, Any]:
        """A worker's answer: its status, and its JSON or text; None: there is none, or not in time."""
        address = self._supervisor.ready.get(number)
        if not address:
            return 503, None
        ask = partial(own_user.ask, address, page, method=method, timeout_s=limit_s, token=self._settings.token)
        asked = asyncio.get_running_loop().run_in_executor(self._askers, ask)
        try:
            answer = await self._clock.wait_for(asked, limit_s)
            if answer.status not in (200, 400, 503):
                return answer.status, None
            is_json = answer.content_type == "application/json"
            return answer.status, orjson.loads(answer.body) if is_json else answer.body.decode(errors="replace")
        except (OSError, ValueError, http.client.HTTPException, own_user.OtherUser):
            return 503, None


def _merged(texts: Mapping[int, str], states: Mapping[str, int], ready: bool, led: Mapping[str, Any]) -> bytes:
    from flowshare.web.metrics import MergedMetrics

    return MergedMetrics(texts, states=states, ready=ready, led=led).text()
