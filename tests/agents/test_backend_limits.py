"""An agent's settings against what Kafka's brokers allow."""

from __future__ import annotations

import logging

import pytest

import flowshare as fs
from flowshare.agents.feed.backend_limits import asked_of, check_asked, native_limits
from flowshare.agents.feed.prefetch import Prefetch
from flowshare.agents.feed.setup import check_kind
from flowshare.agents.handler.errors import OptionError, UsageError
from flowshare.backend.base import EMBEDDED, MEMORY, NATIVE, WORKERS
from flowshare.client.errors import ServerError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import ConfigEntry
from tests.agents.agents_kit import one_agent

KAFKA_43 = {
    "group.share.delivery.count.limit": "5",
    "group.share.max.delivery.count.limit": "10",
    "group.share.partition.max.record.locks": "2000",
    "group.share.max.partition.max.record.locks": "4000",
    "group.share.min.record.lock.duration.ms": "15000",
    "group.share.max.record.lock.duration.ms": "60000",
    "listeners": "PLAINTEXT://:9092",
}
KAFKA_42 = {
    name: value for name, value in KAFKA_43.items() if ".max.delivery" not in name and ".max.partition" not in name
}


class Admin:
    def __init__(self, broker=KAFKA_43, kind=None):
        self.broker = broker
        self.kind = kind

    async def broker_configs(self):
        if self.broker is None:
            raise ServerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return [ConfigEntry(name=name, value=value, is_default=True) for name, value in self.broker.items()]

    async def group_kind(self, group_id):
        return self.kind


def agent(**options):
    async def handler(value: bytes) -> None: ...

    return one_agent(handler, **options).share_agents["agent"]


async def limits_of(options, broker=KAFKA_43):
    return await native_limits(agent(**options), Admin(broker))


pytestmark = pytest.mark.asyncio


async def test_settings_go_as_far_as_the_brokers_allow():
    limits = await limits_of({"retry": fs.Retry(max_attempts=7)})

    assert limits.locks == 4000
    assert limits.settings["share.delivery.count.limit"] == "10"
    assert limits.settings["share.partition.max.record.locks"] == "4000"
    assert limits.settings["share.auto.offset.reset"] == "earliest"
    assert "share.record.lock.duration.ms" not in limits.settings


async def test_kafka_42_has_no_limits_of_groups_so_none_are_set():
    limits = await limits_of({"retry": fs.Retry(max_attempts=4), "lock_duration": 20}, KAFKA_42)

    assert limits.locks == 2000
    assert set(limits.settings) == {
        "share.auto.offset.reset",
        "share.isolation.level",
        "share.record.lock.duration.ms",
    }


@pytest.mark.parametrize(
    ("attempts", "broker", "config"),
    [
        (10, KAFKA_43, "group.share.max.delivery.count.limit=10"),
        (12, KAFKA_43, "group.share.max.delivery.count.limit=10"),
        (5, KAFKA_42, "group.share.delivery.count.limit=5"),
        (5, None, "group.share.delivery.count.limit=5"),
    ],
)
async def test_attempts_that_the_brokers_do_not_allow_are_refused_naming_the_config(attempts, broker, config):
    with pytest.raises(UsageError, match=config):
        await limits_of({"retry": fs.Retry(max_attempts=attempts)}, broker)


@pytest.mark.parametrize(("seconds", "config"), [(10, "min.record.lock"), (61, "max.record.lock")])
async def test_a_lock_duration_outside_the_brokers_bounds_is_refused(seconds, config):
    with pytest.raises(UsageError, match=config):
        await limits_of({"lock_duration": seconds})


async def test_delays_of_more_than_a_day_are_refused():
    with pytest.raises(UsageError, match="shorten the delay"):
        await limits_of({"retry": fs.Retry(delay=fs.exponential(1, cap=2 * 86400))})


@pytest.mark.parametrize(("kind", "reason"), [(None, "asks for nothing they lack"), ("share", "its group is there")])
async def test_the_choice_is_told_with_its_reason(caplog, kind, reason):
    caplog.set_level(logging.INFO, "flowshare.agents")

    await check_kind(agent(), Admin(kind=kind))

    assert "share=native (asked: auto)" in caplog.text
    assert reason in caplog.text


async def test_a_name_of_a_consumer_group_is_refused():
    with pytest.raises(UsageError, match="is a consumer group"):
        await check_kind(agent(), Admin(kind="consumer"))


async def test_who_leads_is_one_of_three_words_and_goes_into_the_brokers_url():
    app = fs.App("t", share="workers", broker="kafka://k:9092")
    assert (app.share, app.broker_address.options) == ("workers", {"share": "workers", "fleet": "t"})
    told = fs.App("t", share="workers", fleet="shop", broker="kafka://k:9092?share=native").broker_address
    assert (told.share, told.options["fleet"]) == ("native", "shop")
    with pytest.raises(UsageError, match="'auto', 'native' or 'workers'"):
        fs.App("t", share="brokers")
    with pytest.raises(OptionError, match="share"):
        fs.App("t", shares="native")
    assert fs.App("t", share="native").share == "native"


async def test_where_giving_back_costs_an_attempt_nothing_is_fetched_ahead_of_slow_handlers():
    prefetch = Prefetch(2, careful=True)
    unknown = prefetch.target
    prefetch.finished(1, 20.0)
    slow = prefetch.target
    for _ in range(3):
        prefetch.finished(1000, prefetch.progress_at + 0.1)

    assert (unknown, slow) == (2, 2)
    assert prefetch.target > 500


async def test_an_order_is_refused_on_brokers_and_nowhere_else():
    ordered = agent(order=fs.Header("customer"))
    for offered in (EMBEDDED, MEMORY, WORKERS):
        check_asked(ordered, offered)

    with pytest.raises(UsageError, match=r"share=workers, or share=auto, which chooses them\), or leave order out"):
        check_asked(ordered, NATIVE)


async def test_auto_is_told_that_a_group_asks_for_an_order():
    assert asked_of([agent(order="key")]) == {"t.agent": ["an order by key (order='key')"]}
    assert asked_of([agent()]) == {"t.agent": []}
