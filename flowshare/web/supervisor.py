"""A supervisor's pages: those of its workers (`web.server`), of all of them under one address.

    /live      200 as long as the supervisor runs
    /ready     200 when all workers run and are ready, else 503 with the others and the reasons
    /metrics   Prometheus text: a worker's names with the sums over all workers; a group's own metrics once; by
               worker, with the label `worker`, as `flowshare_worker_…`, so that sums do not count both
    /workers   JSON: number, process, address and state of each worker
    /inflight  JSON: the records that handlers work on, with the worker's number
    /agents    JSON: held records of each agent of each worker, and its handlers' last exceptions
    /lag       as a worker's; /scale too
    /drain     POST: all workers fetch no more and finish the running handlers
    /resize    POST, `?workers=N`: keep N workers from now on; those that go drain first. Not of `flowshare scale`

Rights are decided as for a worker. The workers are asked by their own user's way (`agents.pages.own_user`). A worker
that does not answer within `ASK_S` is left out, and /ready names it.
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
"""The most threads: one for each possible worker, as each may stand still."""
REFUSED: Final = (401, 403)
NO_ORDERS: Final = (
    "worker {} takes no order of its supervisor, as another process has the name of the own user's way to its pages: "
    "start them with a token (--web-token-file), or end the supervisor by SIGTERM, which drains all"
)
LATER_S: Final = 10.0
"""Time, in s, beyond its drain time to wait for a worker's answer to /drain."""


class SupervisorPages(Pages):
    """The pages of a supervisor.

    backend: the backend that the supervisor leads, None: none. settings: address and rights. drain_timeout_s: of its
    workers. fixed: True: only the operator sets the number of workers.
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
        """Stop listening, and stop asking workers."""
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
        """Return the reasons why not all workers work."""
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
        """Return the rows of all workers, each with its worker's number."""

        async def rows() -> list[dict[str, Any]]:
            told = await self._ask_all(page)
            return [{"worker": number, **row} for number, rows in told.items() for row in rows or ()]

        return await kept_answer(request, self._kept, page, rows)

    async def _any(self, request: web.Request) -> web.Response:
        """Answer with the facts of the groups, from the first worker that tells them."""
        for number in sorted(self._supervisor.ready):
            status, told = await self._get(number, f"{request.path}?{request.query_string}")
            if told is not None:
                return rows_answer(request, told, status=status)
        reasons = list(self._supervisor.problems()) if admission_of(request).trusted else []
        return json_answer({"error": "no worker answers", "reasons": reasons}, status=503)

    async def _drain(self, _request: web.Request) -> web.Response:
        limit_s = self._drain_timeout_s + LATER_S
        told = await self._answers("/drain", method="POST", limit_s=limit_s)
        refused = [str(number) for number, (status, _) in told.items() if status in REFUSED]
        if refused:
            return json_answer({"error": NO_ORDERS.format(", ".join(refused))}, status=409)
        return json_answer({"drained": all(one is not None and one["drained"] for _, one in told.values())})

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
        """Ask each running worker; return the answers by number. None: no answer."""
        told = await self._answers(page, method=method, limit_s=limit_s)
        return {number: answer for number, (_, answer) in told.items()}

    async def _answers(self, page: str, *, method: str, limit_s: float) -> dict[int, tuple[int, Any]]:
        """Return each answer with its status."""
        numbers = sorted(self._supervisor.ready)
        told = await asyncio.gather(*(self._get(number, page, method=method, limit_s=limit_s) for number in numbers))
        return dict(zip(numbers, told, strict=True))

    async def _get(self, number: int, page: str, *, method: str = "GET", limit_s: float = ASK_S) -> tuple[int, Any]:
        """Return a worker's answer: its status, and its JSON or text; None: none, or not in time."""
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
