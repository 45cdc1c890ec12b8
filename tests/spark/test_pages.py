"""The pages of pipelines and of a fleet on Spark, without any Spark: who is told what."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from flowshare.agents.pages import own_user
from flowshare.agents.pages.gate import PageSettings
from flowshare.spark.pipeline.pages import PipelinePages
from flowshare.spark.pipeline.supervisor import PipelineFigures
from flowshare.spark.workers.pages import WorkersPages
from flowshare.spark.workers.run import environment
from tests.web.test_web import TOKEN, StandIn, status_and_text

pytestmark = pytest.mark.asyncio


class Fleet:
    """Of one worker."""

    figures = SimpleNamespace(numbers=())

    def __init__(self) -> None:
        self.stacks: list[bool] = []
        self.drains = 0

    def rows(self):
        return [{"worker": 1, "state": "ready", "host": "node-7", "problems": ["bill fails"], "runs": 2}]

    async def in_flight(self, *, stacks: bool = False):
        self.stacks.append(stacks)
        return [{"worker": 1, "agent": "bill", "offset": 17, "age_s": 1.0, **({"stack": "here"} if stacks else {})}]


class View(StandIn):
    def __init__(self) -> None:
        super().__init__()
        self.supervisor = Fleet()


def pipelines() -> PipelinePages:
    figures = [
        PipelineFigures(name="bills", group="shop.bills", state="failed", records=5, last_error="no /data/bills")
    ]
    return PipelinePages(SimpleNamespace(figures=figures), PageSettings(token=TOKEN.encode()))


async def ask(pages, *requests):
    """Status and text of each, for (path, method, headers)."""
    address = await pages.start()
    try:
        return [await status_and_text(address, path, method, headers) for path, method, headers in requests]
    finally:
        await pages.close()


TO_OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
POD = {"Host": "10.0.0.7:8081"}


async def test_a_pipelines_names_and_errors_are_the_operators():
    named, numbers, ready, foreign = await ask(
        pipelines(),
        ("/pipelines", "GET", TO_OPERATOR),
        ("/pipelines", "GET", {}),
        ("/ready", "GET", {}),
        ("/ready", "GET", POD),
    )

    assert json.loads(named[1])[0]["last_error"] == "no /data/bills"
    assert json.loads(numbers[1])[0]["records"] == 5
    assert json.loads(numbers[1])[0]["state"] == "failed"
    assert "bills" not in numbers[1] + foreign[1]
    assert "pipeline bills is failed" in ready[1]
    assert (ready[0], foreign[0]) == (503, 503)


@pytest.mark.parametrize("make", [pipelines, lambda: WorkersPages(View(), PageSettings(token=TOKEN.encode()))])
async def test_foreign_hosts_and_origins_are_refused(make):
    evil = {"Host": "evil.example"}
    found = await ask(
        make(),
        ("/metrics", "GET", evil),
        ("/metrics", "GET", {**POD, **TO_OPERATOR}),
        ("/pipelines", "GET", evil),
        ("/live", "GET", evil),
        ("/live", "GET", {"Origin": "http://evil.example"}),
        ("/metrics", "GET", {}),
    )

    assert [status for status, _ in found] == [421, 200, 421, 200, 403, 200]


async def test_a_fleets_stacks_names_and_drain_are_the_operators():
    view = View()
    found = await ask(
        WorkersPages(view, PageSettings(token=TOKEN.encode())),
        ("/inflight?stacks", "GET", {}),
        ("/workers", "GET", {}),
        ("/drain", "POST", {}),
        ("/inflight?stacks", "GET", TO_OPERATOR),
        ("/workers", "GET", TO_OPERATOR),
    )

    assert json.loads(found[0][1]) == [{"worker": 1, "offset": 17, "age_s": 1.0}]
    assert json.loads(found[1][1]) == [{"worker": 1, "state": "ready", "problems": [], "runs": 2}]
    assert found[2][0] == 403
    assert (view.supervisor.stacks, view.drains) == ([False, True], [])
    assert "here" in found[3][1]
    assert "node-7" in found[4][1]


async def test_a_fleet_is_drained_by_the_drivers_own_user():
    view = View()
    pages = WorkersPages(view)
    address = await pages.start()
    try:
        answer = await asyncio.to_thread(own_user.ask, address, "/drain", method="POST", timeout_s=5)
    finally:
        await pages.close()

    assert answer.body == b'{"drained":true}'
    assert len(view.drains) == 1


async def test_the_pages_token_goes_to_no_worker_of_spark(monkeypatch):
    from flowshare.backend.url import parse_broker

    monkeypatch.setenv("FLOWSHARE_WEB_TOKEN", TOKEN)
    monkeypatch.setenv("FLOWSHARE_WEB_TOKEN_FILE", "/run/token")
    monkeypatch.setenv("FLOWSHARE_OTHER", "x")

    told = environment(parse_broker("kafka://k:9092"))

    assert told["FLOWSHARE_OTHER"] == "x"
    assert not [name for name in told if "TOKEN" in name]
