"""Health, metrics and lists over HTTP, for a host that stands in."""

import asyncio
import json
import uuid
from types import SimpleNamespace

import aiohttp
import pytest

from flowshare.agents.feed.outcome_watch import HeardBreaker
from flowshare.agents.handler.options import AgentOptions
from flowshare.agents.pages import own_user
from flowshare.agents.pages.gate import PageSettings, read_hosts
from flowshare.agents.pages.site import PagesError
from flowshare.agents.run.stats import HandlerLook, HandlerTimes
from flowshare.backend.base import NATIVE
from flowshare.backend.memory import MemoryBackend
from flowshare.client.admin.admin import BatchFacts
from flowshare.clock import LoopClock
from flowshare.cooperative.types import HASHES
from flowshare.protocol.messages import ConfigEntry, SharePartitionOffsets
from flowshare.protocol.messages.cooperative import PartitionOffsets, ToldClaim, ToldWait
from flowshare.server.cooperative.stats import Stats as CooperativeStats
from flowshare.server.share.stats import Stats
from flowshare.share.breaker import BreakerState
from flowshare.web import metrics
from flowshare.web.server import KEPT_S, PageCache, WebServer
from tests.sim.clock import HandClock


class StandIn:
    """Stand-in for a host, with the parts that the pages ask for."""

    def __init__(self):
        self.watchdog = None
        self.maybe_producer = None
        self.not_ready = ()
        self.dead = ()
        self.runtimes = {}
        self.clock = LoopClock()
        self.admin = Admin()
        self.backend = Backend()
        self.drains = []
        self.led_here = {}

    def live(self):
        return self.dead

    def ready(self):
        return self.not_ready

    def in_flight(self, *, stacks=False):
        return [{"agent": "bill", "offset": 17, **({"stack": "here"} if stacks else {})}]

    def in_hand(self):
        return [{"agent": "bill", "group": "shop.bill", "held": 3, "exception": "ValueError", "message": "DE12"}]

    def led(self):
        return self.led_here

    async def drain(self, timeout_s=None):
        self.drains.append(timeout_s)
        return True


class Backend:
    capabilities = NATIVE


class Admin:
    """Two partitions of one topic that nobody adds to."""

    async def list_groups(self):
        return []

    async def group_offsets(self, group):
        known = {"topic": "orders", "topic_id": None, "start_offset": 5, "lag": 7, "redeliveries": 1}
        return [SharePartitionOffsets(partition=part, in_flight=2, **known) for part in (0, 1)]

    async def log_end(self, topic, partition):
        return 12

    async def topic_configs(self, topic):
        return [ConfigEntry(name="retention.ms", value="3600000", is_default=False)]

    async def peek(self, topic, partition, offset):
        return BatchFacts(LoopClock().now_ms() - 60_000, 100.0)

    async def describe_group(self, group):
        return Described()

    @property
    def cooperative(self):
        return Sharing()


class Described:
    state = "Stable"
    members = (SimpleNamespace(assignment={"orders": (0,)}),) * 3


class Sharing:
    """One partition, half of whose keys somebody holds, and the same somebody is waited for."""

    async def offsets(self, group):
        half = HASHES // 2
        return [
            PartitionOffsets(
                topic="orders",
                topic_id=uuid.UUID(int=1),
                partition=0,
                stable=5,
                furthest=9,
                unfinished=7,
                claims=(ToldClaim(0, half, "a", 1),),
                waits=(ToldWait(0, half, "b", "a", 3_000),),
                overlaps=1,
            )
        ]

    async def describe(self, group):
        return Described()


class Agent:
    name = "bill"
    group = "shop.bill"
    topics = ("orders",)
    options = AgentOptions(concurrency=4)
    group_type = "share"
    unshared = False


class Runtime:
    def __init__(self, running=4):
        from flowshare.agents.run.stats import AgentStats

        self.running = running
        self.agent = Agent()
        self.handler_times = HandlerTimes()
        self.exceptions = {}
        self.breaker = None
        self.counters = AgentStats(received=9, accepted=5, retried=2, released=1, dead_lettered=1)

    def handler_look(self):
        return HandlerLook(at_s=0.0, busy_s=8.0, settled=0, again=0, running=self.running)

    def stats(self):
        gauges = {"running": 2.0, "buffered": 3.0, "overdue": 0.0, "paused": 0.0}
        return {**self.counters.counters(), **gauges}


TOKEN = "a-token-of-24-characters"


async def get(host, page, *, method="GET", looks=0, headers=None, token=TOKEN, hosts=(), **options):
    """Status and text of a page. token: that is shown, None: none is."""
    server = WebServer(host, PageSettings(token=TOKEN.encode(), hosts=read_hosts(hosts, {})), **options)
    address = await server.start()
    shown = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        for _ in range(looks):
            await server._load.look()
            await asyncio.sleep(0)
        async with (
            aiohttp.ClientSession(headers={**shown, **(headers or {})}) as session,
            session.request(method, f"http://{address}{page}") as answer,
        ):
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
        await WebServer(StandIn(), PageSettings(port=port)).start()

    await first.close()


@pytest.mark.asyncio
async def test_lists_are_json():
    assert json.loads((await get(StandIn(), "/inflight"))[1]) == [{"agent": "bill", "offset": 17, "blocked": 0}]
    assert json.loads((await get(StandIn(), "/inflight?stacks=1"))[1])[0]["stack"] == "here"
    assert json.loads((await get(StandIn(), "/agents"))[1])[0]["message"] == "DE12"
    host = StandIn()
    host.runtimes = {"bill": Runtime()}
    assert json.loads((await get(host, "/lag"))[1])[0]["backlog"] == 7


@pytest.mark.asyncio
async def test_metrics_have_kafkas_words():
    host = StandIn()
    host.runtimes = {"bill": Runtime()}
    host.runtimes["bill"].handler_times.add(0.2, 4)

    status, text = await get(host, "/metrics", looks=2)

    assert status == 200
    labels = 'agent="bill",group="shop.bill"'
    assert f'flowshare_record_acknowledgements_total{{{labels},type="accept"}} 5.0' in text
    assert f'flowshare_record_acknowledgements_total{{{labels},type="release"}} 3.0' in text
    assert f'flowshare_record_acknowledgements_total{{{labels},type="reject"}} 1.0' in text
    assert 'flowshare_backlog_records{group="shop.bill",partition="0",topic="orders"} 7.0' in text
    assert f'flowshare_handler_seconds_bucket{{{labels},le="0.05"}} 4.0' in text
    assert f'flowshare_handler_seconds_bucket{{{labels},le="0.025"}} 0.0' in text
    assert "flowshare_ready 1.0" in text
    where = 'group="shop.bill",partition="0",topic="orders"'
    assert f"flowshare_oldest_record_age_seconds{{{where}}} 60." in text
    assert f"flowshare_retention_left_seconds{{{where}}} 35" in text
    by_topic = 'agent="bill",group="shop.bill",topic="orders"'
    assert f"flowshare_arriving_records_per_second{{{by_topic}}} 0.0" in text
    assert f"flowshare_redeliveries_per_second{{{by_topic}}} 0.0" in text
    assert f"flowshare_needed_workers{{{by_topic}}} 0.5" in text
    assert 'flowshare_group_members{group="shop.bill"} 3.0' in text


@pytest.mark.asyncio
async def test_metrics_tell_the_state_of_a_groups_breaker_and_how_often_it_opened():
    host = StandIn()
    host.runtimes = {"bill": Runtime()}
    assert "flowshare_breaker_state{" not in (await get(host, "/metrics"))[1]
    host.runtimes["bill"].breaker = HeardBreaker(BreakerState.OPEN, 3)

    text = (await get(host, "/metrics"))[1]

    assert 'flowshare_breaker_state{group="shop.bill",state="open"} 1.0' in text
    assert 'flowshare_breaker_state{group="shop.bill",state="closed"} 0.0' in text
    assert 'flowshare_breaker_state{group="shop.bill",state="half-open"} 0.0' in text
    assert 'flowshare_breaker_opened_total{group="shop.bill"} 3.0' in text


def test_what_all_workers_hear_of_a_breaker_stands_once_on_a_supervisors_page():
    text = 'flowshare_breaker_state{group="g",state="open"} 1.0\n'

    page = metrics.MergedMetrics({1: text, 2: text}, states={"ready": 2}, ready=True, led={}).text().decode()

    assert 'flowshare_breaker_state{group="g",state="open"} 1.0' in page


@pytest.mark.asyncio
async def test_what_is_needed_is_a_number_that_autoscalers_find():
    host = StandIn()
    host.runtimes = {"bill": Runtime()}

    found = json.loads((await get(host, "/scale", looks=2))[1])
    sooner = json.loads((await get(host, "/scale?target_age=500ms", looks=2))[1])

    assert (found["workers"], found["known"], found["members"]) == (1, True, 3)
    assert found["needed"] == 0.5, "10 wait besides the 4 in flight: 1/s, of 2 s each, in 4 places"
    assert (sooner["target_age_s"], sooner["workers"]) == (0.5, 10)
    assert isinstance(found["workers"], int)
    assert found["agents"][0]["topics"][0]["topic"] == "orders"


@pytest.mark.asyncio
async def test_before_it_is_known_what_is_needed_nothing_is_to_change():
    host = StandIn()
    host.runtimes = {"bill": Runtime(running=0)}

    found = json.loads((await get(host, "/scale", looks=2))[1])

    assert (found["workers"], found["known"], found["needed"]) == (3, False, None)


@pytest.mark.asyncio
async def test_a_target_age_that_is_no_time_is_refused():
    status, body = await get(StandIn(), "/scale?target_age=soon")

    assert status == 400
    assert "10s" in body


@pytest.mark.asyncio
async def test_lag_by_topic_has_rates():
    host = StandIn()
    host.runtimes = {"bill": Runtime()}

    [row] = json.loads((await get(host, "/lag?topics", looks=2))[1])

    assert (row["partitions"], row["backlog"], row["needed_workers"]) == (2, 14, 0.5)


@pytest.mark.asyncio
async def test_a_worker_is_drained_by_a_post_of_the_operator_only():
    host = StandIn()

    assert (await get(host, "/drain"))[0] == 405
    assert (await get(host, "/drain", method="POST", token=None))[0] == 403, "a process of another user of this machine"
    assert (await get(host, "/drain", method="POST", token="another-of-24-characters"))[0] == 401
    assert (await get(host, "/drain", method="POST", headers={"Origin": "http://evil.example"}))[0] == 403
    assert host.drains == []
    assert await get(host, "/drain", method="POST", drain_timeout_s=7.0) == (200, '{"drained":true}')
    assert host.drains == [7.0]


@pytest.mark.asyncio
async def test_the_workers_own_user_drains_it_without_any_token():
    host = StandIn()
    server = WebServer(host)
    address = await server.start()
    try:
        answer = await asyncio.to_thread(own_user.ask, address, "/drain", method="POST", timeout_s=5)
    finally:
        await server.close()

    assert (answer.status, answer.body) == (200, b'{"drained":true}')
    assert host.drains == [None]


@pytest.mark.parametrize("page", ["/", "/metrics", "/inflight", "/agents", "/lag", "/scale", "/drain", "/none"])
@pytest.mark.asyncio
async def test_a_page_in_a_browser_that_made_its_name_lead_here_gets_nothing(page):
    rebound = {"Host": "evil.example:8081"}
    host = StandIn()

    assert (await get(host, page, headers=rebound, token=None))[0] == 421
    assert (await get(host, page, headers=rebound))[0] in (200, 404, 405), "whoever has the token is no page"
    assert (await get(host, page, headers={"Host": "shop.svc:80"}, token=None, hosts=["shop.svc"]))[0] in (
        200,
        404,
        405,
    )


@pytest.mark.parametrize(
    "page", ["/", "/live", "/ready", "/metrics", "/inflight", "/agents", "/lag", "/scale", "/none"]
)
@pytest.mark.asyncio
async def test_a_page_of_another_origin_gets_nothing_from_any_page(page):
    assert (await get(StandIn(), page, headers={"Origin": "http://evil.example"}))[0] == 403
    assert (await get(StandIn(), page, headers={"Sec-Fetch-Site": "cross-site"}))[0] == 403


@pytest.mark.asyncio
async def test_probes_come_by_any_address_and_are_told_no_names():
    host = StandIn()
    host.not_ready = host.dead = ("bill: the dead letters of orders fail", "broker-1 is away")
    for page in ("/live", "/ready"):
        status, text = await get(host, page, headers={"Host": "10.0.0.7:8081"}, token=None)
        assert status == 503
        assert "2 reasons" in text
        assert not [name for name in ("bill", "orders", "broker-1") if name in text]
        assert "broker-1 is away" in (await get(host, page, headers={"Host": "10.0.0.7:8081"}))[1]
        assert "broker-1 is away" in (await get(host, page, token=None))[1], "asked by one of our hosts"


@pytest.mark.asyncio
async def test_prometheus_scrapes_a_pod_by_its_address_with_the_token_or_by_a_listed_one():
    by_address = {"Host": "10.0.0.7:8081"}

    assert (await get(StandIn(), "/metrics", headers=by_address, token=None))[0] == 421
    assert (await get(StandIn(), "/metrics", headers=by_address))[0] == 200
    assert (await get(StandIn(), "/metrics", headers=by_address, token=None, hosts=["10.0.0.7"]))[0] == 200


@pytest.mark.asyncio
async def test_stacks_and_names_are_the_operators_and_others_get_numbers():
    host = StandIn()
    host.runtimes = {"bill": Runtime()}

    assert json.loads((await get(host, "/inflight?stacks=1", token=None))[1]) == [{"offset": 17, "blocked": 0}]
    assert json.loads((await get(host, "/inflight", token=None))[1]) == [{"offset": 17, "blocked": 0}]
    assert json.loads((await get(host, "/agents", token=None))[1]) == [{"held": 3}]
    for page in ("/lag", "/lag?topics", "/lag?all", "/scale"):
        status, text = await get(host, page, looks=2, token=None)
        assert status == 200
        assert not [name for name in ("bill", "orders", "shop") if name in text], text
    scale = json.loads((await get(host, "/scale", looks=2, token=None))[1])
    assert (scale["workers"], scale["known"], scale["agents"][0]["topics"][0]["backlog"]) == (1, True, 14)


@pytest.mark.asyncio
async def test_many_who_ask_for_what_is_costly_have_it_made_once():
    host = StandIn()
    asked = []
    looked = asyncio.Event()

    async def positions(*, every):
        asked.append(every)
        await looked.wait()
        return [{"group": "g", "backlog": 7}]

    server = WebServer(host)
    server._positions = positions
    address = await server.start()
    try:
        async with aiohttp.ClientSession() as session:

            async def ask():
                async with session.get(f"http://{address}/lag") as answer:
                    return await answer.json()

            asking = [asyncio.ensure_future(ask()) for _ in range(30)]
            while not asked:  # noqa: ASYNC110 - the page has no event
                await asyncio.sleep(0)
            looked.set()
            assert await asyncio.gather(*asking) == [[{"backlog": 7}]] * 30
    finally:
        await server.close()

    assert asked == [False]


@pytest.mark.asyncio
async def test_what_could_not_be_made_is_made_again():
    made = iter((ValueError("no"), 7, 8))
    clock = HandClock()
    kept = PageCache(clock)

    async def make():
        found = next(made)
        if isinstance(found, Exception):
            raise found
        return found

    with pytest.raises(ValueError, match="no"):
        await kept.get("a", make)
    assert [await kept.get("a", make) for _ in range(2)] == [7, 7]
    clock.now_s += KEPT_S
    assert await kept.get("a", make) == 8


@pytest.mark.asyncio
async def test_metrics_tell_what_the_process_leads_and_nothing_when_it_leads_nothing():
    host = StandIn()
    _, nothing = await get(host, "/metrics")
    host.led_here = {"share_partitions": 3, "slots": 2, "slots_claimed": 5, "state_writes": 70}
    _, something = await get(host, "/metrics")

    assert "flowshare_fleet_slots_led" not in nothing
    assert "flowshare_fleet_slots_led 2.0" in something
    assert "flowshare_fleet_slots_claimed_total 5.0" in something
    assert "flowshare_state_writes_total 70.0" in something


async def status_and_text(address, page, method="GET", headers=None):
    """Return the status and text of a page at an address."""
    async with (
        aiohttp.ClientSession(headers=headers or {}) as session,
        session.request(method, f"http://{address}{page}") as answer,
    ):
        return answer.status, await answer.text()


def test_each_counter_of_a_leader_that_is_told_is_one_that_is_kept() -> None:
    others = {key for key in metrics.COUNTERS if key.startswith(("slots_", "output_", "offsets_"))}
    backend = MemoryBackend(clock=LoopClock())

    async def told() -> set[str]:
        await backend.start()
        try:
            return set(backend.stats())
        finally:
            await backend.close()

    assert metrics.COUNTERS.keys() - others <= asyncio.run(told())
    assert metrics.HISTOGRAMS.keys() <= Stats().copy().keys()


def test_each_counter_of_cooperative_groups_that_is_told_is_one_that_is_kept() -> None:
    told = metrics.COOPERATIVE.keys() | metrics.COOPERATIVE_HISTOGRAMS.keys()

    assert told == CooperativeStats().copy().keys()


@pytest.mark.asyncio
async def test_metrics_of_a_cooperative_group_say_what_is_held_and_who_waits():
    host = StandIn()
    host.runtimes = {"bill": Runtime()}
    host.runtimes["bill"].agent.group_type = "cooperative"
    host.led_here = {"cooperative": CooperativeStats(overlaps=2).copy()}

    _, text = await get(host, "/metrics", looks=2)

    where = 'group="shop.bill",partition="0",topic="orders"'
    assert f"flowshare_backlog_records{{{where}}} 7.0" in text
    assert f"flowshare_held_keys_ratio{{{where}}} 0.5" in text
    assert f"flowshare_handover_wait_seconds{{{where}}} 3.0" in text
    assert f"flowshare_key_overlaps_total{{{where}}} 1.0" in text
    assert 'flowshare_group_members{group="shop.bill"} 3.0' in text
    assert "flowshare_cooperative_overlaps_total 2.0" in text
