"""Health, metrics and lists over HTTP, for a host that stands in."""

import json

import aiohttp
import pytest

from flowshare.agents.times import HandlerTimes
from flowshare.web.server import PagesError, WebServer


class StandIn:
    """What the pages ask a host for."""

    def __init__(self):
        self.watchdog = None
        self.maybe_producer = None
        self.not_ready = ()
        self.dead = ()
        self.runtimes = {}

    def live(self):
        return self.dead

    def ready(self):
        return self.not_ready

    def in_flight(self, *, stacks=False):
        return [{"agent": "bill", "offset": 17, **({"stack": "here"} if stacks else {})}]

    async def lag(self, *, all_groups=False):
        return [
            {
                "group": "shop.bill",
                "topic": "orders",
                "partition": 0,
                "start_offset": 5,
                "backlog": 7,
                "in_flight": 2,
                "delayed": 0,
                "redeliveries": 1,
                "oldest_age_s": None,
            }
        ]


class Agent:
    group = "shop.bill"


class Runtime:
    def __init__(self):
        from flowshare.agents.stats import AgentStats

        self.agent = Agent()
        self.handler_times = HandlerTimes()
        self.counters = AgentStats(received=9, accepted=5, retried=2, released=1, dead_lettered=1)

    def stats(self):
        gauges = {"running": 2.0, "buffered": 3.0, "overdue": 0.0, "paused": 0.0}
        return {**self.counters.counters(), **gauges}


async def get(host, page):
    server = WebServer(host)
    address = await server.start()
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://{address}{page}") as answer:
            return answer.status, await answer.text()
    finally:
        await server.close()


@pytest.mark.asyncio
async def test_health_is_503_with_the_reasons():
    host = StandIn()
    assert (await get(host, "/live"))[0] == (await get(host, "/ready"))[0] == 200

    host.not_ready = ("the worker is draining",)
    status, body = await get(host, "/ready")

    assert status == 503
    assert json.loads(body) == {"ok": False, "reasons": ["the worker is draining"]}
    assert (await get(host, "/live"))[0] == 200


@pytest.mark.asyncio
async def test_a_port_that_is_taken_is_said_with_what_to_do():
    first = WebServer(StandIn())
    port = int((await first.start()).rpartition(":")[2])

    with pytest.raises(PagesError, match=f"127.0.0.1:{port}.*--web-port"):
        await WebServer(StandIn(), port=port).start()

    await first.close()


@pytest.mark.asyncio
async def test_lists_are_json():
    assert json.loads((await get(StandIn(), "/inflight"))[1]) == [{"agent": "bill", "offset": 17}]
    assert json.loads((await get(StandIn(), "/inflight?stacks=1"))[1])[0]["stack"] == "here"
    assert json.loads((await get(StandIn(), "/lag"))[1])[0]["backlog"] == 7


@pytest.mark.asyncio
async def test_metrics_have_kafkas_words():
    host = StandIn()
    host.runtimes = {"bill": Runtime()}
    host.runtimes["bill"].handler_times.add(0.2, 4)

    status, text = await get(host, "/metrics")

    assert status == 200
    labels = 'agent="bill",group="shop.bill"'
    assert f'flowshare_record_acknowledgements_total{{{labels},type="accept"}} 5.0' in text
    assert f'flowshare_record_acknowledgements_total{{{labels},type="release"}} 3.0' in text
    assert f'flowshare_record_acknowledgements_total{{{labels},type="reject"}} 1.0' in text
    assert 'flowshare_backlog_records{group="shop.bill",partition="0",topic="orders"} 7.0' in text
    assert f'flowshare_handler_seconds_bucket{{{labels},le="0.05"}} 4.0' in text
    assert f'flowshare_handler_seconds_bucket{{{labels},le="0.025"}} 0.0' in text
    assert "flowshare_ready 1.0" in text
    assert "flowshare_oldest_record_age_seconds{" not in text
