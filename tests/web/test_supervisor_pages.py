"""A supervisor's pages: what its workers' pages say, in one place."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from contextlib import asynccontextmanager
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp import web

from flowshare.agents.pages import own_user
from flowshare.agents.pages.gate import PageSettings
from flowshare.agents.pages.site import PagesError
from flowshare.cli.pages import ask
from flowshare.ops import Failure
from flowshare.web.metrics import MergedMetrics
from flowshare.web.server import WebServer
from flowshare.web.supervisor import SupervisorPages
from tests.web.test_web import StandIn

pytestmark = pytest.mark.asyncio

TOKEN = "a-token-of-24-characters"
METRICS = """\
# HELP flowshare_ready 1 when /ready answers 200.
# TYPE flowshare_ready gauge
flowshare_ready 1.0
# HELP flowshare_records_received_total Deliveries taken from the group.
# TYPE flowshare_records_received_total counter
flowshare_records_received_total{{agent="bill",group="shop.bill"}} {received}
# HELP flowshare_backlog_records Records of the share-partition that are not finished (its lag).
# TYPE flowshare_backlog_records gauge
flowshare_backlog_records{{group="shop.bill",partition="0",topic="orders"}} 7.0
# HELP flowshare_handler_seconds Time a handler took for a record (or a batch).
# TYPE flowshare_handler_seconds histogram
flowshare_handler_seconds_bucket{{agent="bill",group="shop.bill",le="0.1"}} {received}
flowshare_handler_seconds_bucket{{agent="bill",group="shop.bill",le="+Inf"}} {received}
flowshare_handler_seconds_count{{agent="bill",group="shop.bill"}} {received}
flowshare_handler_seconds_sum{{agent="bill",group="shop.bill"}} 0.5
"""


class Worker:
    """A worker's pages, as far as the supervisor asks for them."""

    def __init__(self, received: float, reasons: tuple[str, ...] = ()) -> None:
        self.received = received
        self.reasons = reasons
        self.silent = False
        self.drained = 0

    async def answer(self, request: web.Request) -> web.Response:
        if self.silent:
            raise web.HTTPInternalServerError
        match request.path:
            case "/metrics":
                return web.Response(text=METRICS.format(received=self.received))
            case "/ready":
                status = 503 if self.reasons else 200
                return web.json_response({"ok": not self.reasons, "reasons": list(self.reasons)}, status=status)
            case "/inflight":
                return web.json_response([{"agent": "bill", "offset": self.received, "stacks": request.query_string}])
            case "/agents":
                return web.json_response([{"agent": "bill", "group": "shop.bill", "held": self.received}])
            case "/drain":
                self.drained += 1
                return web.json_response({"drained": True})
            case _:
                return web.json_response({"page": request.path, "query": request.query_string})


class Crew:
    """A supervisor with these workers, and one place without any."""

    def __init__(self) -> None:
        self.ready: dict[int, str] = {}
        self.down: dict[int, str] = {}
        self.running = {1: 4711, 2: 4712}
        self.size = 2

    def problems(self) -> tuple[str, ...]:
        return tuple(self.down.values())


@asynccontextmanager
async def crew(*workers: Worker, led=None):
    """The supervisor's pages, by a function: page -> (status, text)."""
    supervisor, runners = Crew(), []
    for number, worker in enumerate(workers, 1):
        app = web.Application()
        app.router.add_route("*", "/{page:.*}", worker.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        runners.append(runner)
        supervisor.ready[number] = "{}:{}".format(*runner.addresses[0][:2])
    backend = None if led is None else SimpleNamespace(stats=lambda: led)
    pages = SupervisorPages(supervisor, backend, PageSettings(token=TOKEN.encode()), drain_timeout_s=1.0)
    address = await pages.start()

    async def get(page: str, method: str = "GET", *, token: str | None = TOKEN, **headers: str) -> tuple[int, str]:
        shown = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession(headers={**shown, **headers}) as session,
            session.request(method, f"http://{address}{page}") as answer,
        ):
            return answer.status, await answer.text()

    try:
        yield get, supervisor
    finally:
        await pages.close()
        await asyncio.gather(*(runner.cleanup() for runner in runners))


async def test_metrics_are_sums_and_what_is_the_groups_is_there_once():
    async with crew(Worker(3), Worker(4), led={"sessions": 5}) as (get, _):
        lines = (await get("/metrics"))[1].splitlines()

    assert 'flowshare_records_received_total{agent="bill",group="shop.bill"} 7.0' in lines
    assert 'flowshare_backlog_records{group="shop.bill",partition="0",topic="orders"} 7.0' in lines
    assert 'flowshare_handler_seconds_bucket{agent="bill",group="shop.bill",le="0.1"} 7.0' in lines
    assert 'flowshare_worker_records_received_total{agent="bill",group="shop.bill",worker="2"} 4.0' in lines
    assert not [line for line in lines if line.startswith("flowshare_worker_backlog")]
    assert "flowshare_ready 1.0" in lines
    assert 'flowshare_worker_ready{worker="1"} 1.0' in lines
    assert 'flowshare_workers{state="ready"} 2.0' in lines
    assert "flowshare_share_sessions 5.0" in lines
    told = [line for line in lines if line.startswith("# TYPE")]
    assert len(told) == len(set(told)), "Prometheus refuses a family that stands there twice"


async def test_ready_says_who_is_not_and_why():
    async with crew(Worker(1), Worker(1, ("the broker has not answered for 12 s",))) as (get, supervisor):
        supervisor.down = {3: "worker 3 cannot start: there is no module 'shop'"}
        status, text = await get("/ready")

        assert status == 503
        assert json.loads(text)["reasons"] == [
            "worker 3 cannot start: there is no module 'shop'",
            "worker 2: the broker has not answered for 12 s",
        ]
        assert (await get("/live"))[0] == 200


async def test_a_worker_that_does_not_answer_is_told_of_and_the_others_are_shown():
    silent = Worker(4)
    async with crew(Worker(3), silent) as (get, supervisor):
        silent.silent = True
        assert json.loads((await get("/ready"))[1])["reasons"] == ["worker 2 does not answer"]
        metrics = (await get("/metrics"))[1]
        assert 'flowshare_records_received_total{agent="bill",group="shop.bill"} 3.0' in metrics
        assert "flowshare_ready 0.0" in metrics
        supervisor.ready[2] = "127.0.0.1:1"
        assert json.loads((await get("/ready"))[1])["reasons"] == ["worker 2 does not answer"]


async def test_lists_are_those_of_all_workers_and_what_is_the_groups_is_any_ones():
    async with crew(Worker(3), Worker(4)) as (get, supervisor):
        rows = json.loads((await get("/inflight?stacks"))[1])
        assert [(row["worker"], row["offset"], row["stacks"]) for row in rows] == [(1, 3, "stacks"), (2, 4, "stacks")]
        rows = json.loads((await get("/agents"))[1])
        assert [(row["worker"], row["group"], row["held"]) for row in rows] == [
            (1, "shop.bill", 3),
            (2, "shop.bill", 4),
        ]
        assert json.loads((await get("/lag?topics"))[1]) == {"page": "/lag", "query": "topics"}
        assert json.loads((await get("/scale?target_age=5"))[1]) == {"page": "/scale", "query": "target_age=5"}
        supervisor.ready.pop(2)
        supervisor.down = {2: "worker 2 ended (exit code 1)"}
        rows = json.loads((await get("/workers"))[1])
        assert [(row["worker"], row["state"], row["why"]) for row in rows] == [
            (1, "ready", None),
            (2, "down", "worker 2 ended (exit code 1)"),
        ]
        supervisor.ready.clear()
        assert (await get("/lag"))[0] == 503


async def test_all_workers_are_drained_by_one_post():
    workers = Worker(3), Worker(4)
    async with crew(*workers) as (get, _):
        assert json.loads((await get("/drain", "POST"))[1]) == {"drained": True}
        assert [worker.drained for worker in workers] == [1, 1]


async def test_orders_stacks_and_names_are_the_operators_and_others_get_numbers():
    workers = Worker(3), Worker(4)
    async with crew(*workers) as (get, supervisor):
        supervisor.down = {3: "worker 3 cannot start: there is no module 'shop'"}
        assert (await get("/drain", "POST", token=None))[0] == 403
        assert [worker.drained for worker in workers] == [0, 0]
        rows = json.loads((await get("/inflight?stacks", token=None))[1])
        assert rows == [{"worker": 1, "offset": 3}, {"worker": 2, "offset": 4}]
        assert json.loads((await get("/workers", token=None))[1])[2] == {
            "worker": 3,
            "pid": None,
            "address": None,
            "state": "down",
        }
        assert "shop" not in (await get("/workers", token=None))[1]
        assert "shop" in (await get("/workers"))[1]


async def test_foreign_hosts_and_origins_are_refused_and_probes_told_no_names():
    async with crew(Worker(3)) as (get, supervisor):
        supervisor.down = {3: "worker 3 cannot start: there is no module 'shop'"}
        for page in ("/", "/metrics", "/workers", "/inflight", "/agents", "/lag", "/scale"):
            assert (await get(page, token=None, Host="evil.example"))[0] == 421
        for page in ("/live", "/ready", "/workers", "/none"):
            assert (await get(page, Origin="http://evil.example"))[0] == 403
        status, text = await get("/ready", token=None, Host="10.0.0.7:8081")
        assert (status, "shop" in text) == (503, False)
        assert (await get("/live", token=None, Host="10.0.0.7:8081"))[0] == 200
        assert (await get("/metrics", Host="10.0.0.7:8081"))[0] == 200


async def test_workers_are_asked_by_their_own_users_way():
    host = StandIn()
    worker = WebServer(host)
    supervisor = Crew()
    supervisor.ready[1] = await worker.start()
    pages = SupervisorPages(supervisor, None, drain_timeout_s=1.0)
    address = await pages.start()
    try:
        rows = await asyncio.to_thread(own_user.ask, address, "/inflight?stacks", timeout_s=5)
        drained = await asyncio.to_thread(own_user.ask, address, "/drain", method="POST", timeout_s=5)
    finally:
        await pages.close()
        await worker.close()

    assert json.loads(rows.body) == [{"worker": 1, "agent": "bill", "offset": 17, "stack": "here", "blocked": 0}]
    assert drained.body == b'{"drained":true}'
    assert len(host.drains) == 1


async def test_a_port_that_is_taken_is_said_with_what_to_do():
    first = SupervisorPages(Crew(), None, drain_timeout_s=1.0)
    port = int((await first.start()).rpartition(":")[2])
    try:
        with pytest.raises(PagesError, match=f"127.0.0.1:{port}.*--web-port"):
            await SupervisorPages(Crew(), None, PageSettings(port=port), drain_timeout_s=1.0).start()
    finally:
        await first.close()


@pytest.mark.parametrize("host", ["x..y", "192.0.2.1"])
async def test_an_address_that_this_machine_does_not_have_is_said_with_what_to_do(host):
    with pytest.raises(
        PagesError, match=f"cannot listen on {host}:0: .*name an address of this machine with --web-bind"
    ):
        await SupervisorPages(Crew(), None, PageSettings(bind=host), drain_timeout_s=1.0).start()


async def test_without_any_worker_there_are_metrics_of_the_supervisor():
    text = MergedMetrics({}, states={"ready": 0, "down": 2}, ready=False, led={}).text().decode()
    assert 'flowshare_workers{state="down"} 2.0' in text
    assert "flowshare_ready 0.0" in text


@pytest.mark.parametrize("accepts", [True, False])
async def test_another_user_who_has_the_own_users_way_takes_no_worker_out_of_ready_and_orders_say_so(
    monkeypatch: pytest.MonkeyPatch, accepts: bool
):
    """Of the workers' ports the user here has the listener, and somebody else the names."""
    theirs: list[socket.socket] = []

    def taken(address: str) -> None:
        theirs.append(socket.socket(socket.AF_UNIX))
        theirs[-1].bind(own_user.names(address)[0])
        theirs[-1].listen(0)
        if not accepts:  # its queue is full
            theirs.append(socket.socket(socket.AF_UNIX))
            theirs[-1].connect(own_user.names(address)[0])
        raise OSError(98, "Address already in use")

    host, supervisor, owner = StandIn(), Crew(), own_user.port_owner
    worker = WebServer(host)
    pages = SupervisorPages(supervisor, None, drain_timeout_s=1.0)
    with monkeypatch.context() as patch:
        patch.setattr(own_user, "listen", taken)
        mine = supervisor.ready[1] = await worker.start()
    address = await pages.start()
    monkeypatch.setattr(own_user, "port_owner", lambda at: os.geteuid() + 1 if at == mine else owner(at))
    try:
        ready = await asyncio.to_thread(own_user.ask, address, "/ready", timeout_s=5)
        drained = await asyncio.to_thread(own_user.ask, address, "/drain", method="POST", timeout_s=5)
        with pytest.raises(Failure, match=r"worker 1 takes no order of its supervisor.*--web-token-file"):
            await asyncio.to_thread(ask, address, "/drain", method="POST")
    finally:
        await pages.close()
        await worker.close()
        for one in theirs:
            one.close()

    assert (ready.status, json.loads(ready.body)) == (200, {"ok": True, "reasons": []})
    assert drained.status == 409
    assert not host.drains
