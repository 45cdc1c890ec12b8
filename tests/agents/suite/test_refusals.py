"""Tests of refusals: a worker does not start with options that its backend cannot serve; the error says what to do."""

from __future__ import annotations

from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.handler.errors import UsageError
from flowshare.cli.check import _log
from flowshare.clock import LoopClock
from flowshare.ops.figures import PartitionFigures
from flowshare.ops.replay import Replayed
from flowshare.ops.session import CommandSession
from tests.agents.agents_kit import positions
from tests.agents.suite.places import Place
from tests.waiting import until

pytestmark = pytest.mark.asyncio


async def work(value: bytes) -> None:
    """Never runs."""


async def refusal(place: Place, app: fs.App) -> str | None:
    """Return the error that refuses the app's start; None: the app starts."""
    try:
        async with place.running(app):
            return None
    except UsageError as error:
        return str(error)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"retry": fs.Retry(max_attempts=50)}, "group.share.max.delivery.count.limit=10: raise it above 50"),
        ({"lock_duration": 120}, "group.share.max.record.lock.duration.ms=60000: take 1 to 60 s, change it there"),
    ],
)
async def test_what_is_beyond_the_brokers_limits_is_refused_where_they_are_not_ours(
    place: Place, options: dict[str, Any], names: str
) -> None:
    said = await refusal(place, place.agent(work, **options))

    if place.capabilities.own_limits:
        assert said is None
    else:
        assert said is not None
        assert names in said


@pytest.mark.parametrize(
    ("options", "can", "names"),
    [
        ({"max_in_flight": 3}, "group_limit", "let concurrency=16 times the number of workers"),
        ({"max_rate": "10/m"}, "group_limit", "or give each worker its part with rate_limit"),
        ({"breaker": fs.Breaker()}, "group_limit", "or leave breaker out and let retries wait longer"),
        ({"priority": "new"}, "priority", "leave it out"),
    ],
)
async def test_what_only_a_leader_of_our_own_can_do_is_refused_elsewhere(
    place: Place, options: dict[str, Any], can: str, names: str
) -> None:
    app = place.agent(work, **options)
    async with place.outside() as (backend, admin, _):
        findings = await _log(CommandSession(backend, admin, LoopClock()), app)
        checked = [found.text for found in findings if found.level == "error"]
    said = await refusal(place, app)

    if getattr(place.capabilities, can):
        assert (said, checked) == (None, [])
    else:
        assert said is not None
        assert names in said
        assert checked == [said]


async def test_delays_that_could_not_be_kept_honestly_are_refused(place: Place) -> None:
    said = await refusal(place, place.agent(work, retry=fs.Retry(delay=2 * 24 * 3600)))

    if place.capabilities.delayed_release:
        assert said is None
    else:
        assert said is not None
        assert "shorten the delay" in said


async def test_a_lock_shorter_than_any_backend_keeps_is_refused(place: Place) -> None:
    said = await refusal(place, place.agent(work, lock_duration=0.01))

    assert said is not None
    assert said.startswith("agent work: ")
    assert "lock" in said


async def test_a_missing_topic_is_refused_where_none_may_be_made(place: Place) -> None:
    app = place.app(topic_allow_declare=False)
    app.share_agent(place.topic, name="work")(work)

    said = await refusal(place, app)

    assert said is not None
    assert f"flowshare topics create {place.topic}" in said


async def test_what_the_backend_cannot_tell_is_shown_as_unknown(place: Place) -> None:
    async with place.running(place.agent(work)) as [worker]:
        await worker.send(place.topic, b"x")
        await worker.ended(1)

        async def rows() -> list[PartitionFigures]:
            found = await worker.host.service.call(lambda: positions(worker.host))
            return [row for row in found if row.topic == place.topic]

        [told] = await until(rows)  # a fleet's leader may be another one just now

    # Kafka's brokers tell neither.
    assert (told.in_flight is not None) == (place.name != "native")
    assert (told.redeliveries is not None) == (place.name != "native")


async def test_check_finds_what_the_start_would_refuse(place: Place) -> None:
    app = place.agent(work, retry=fs.Retry(max_attempts=50))
    async with place.outside() as (backend, admin, _):
        findings = await _log(CommandSession(backend, admin, LoopClock()), app)

    refused = [found.text for found in findings if found.level == "error"]
    assert bool(refused) != place.capabilities.own_limits
    assert all("group.share.max.delivery.count.limit" in text for text in refused)


@pytest.mark.parametrize(
    ("options", "says"),
    [({"dead_letter": "dead!"}, "dead!"), ({"sink": ["so?"]}, "so?"), ({"lock_duration": 1e7}, "lock")],
)
async def test_check_finds_names_and_settings_that_the_start_would_refuse(
    place: Place, options: dict[str, Any], says: str
) -> None:
    app = place.agent(work, **options)
    async with place.outside() as (backend, admin, _):
        findings = await _log(CommandSession(backend, admin, LoopClock()), app)
        topics = {topic.name for topic in await admin.list_topics()}

    [refused] = [found.text for found in findings if found.level == "error"]
    assert says in refused
    assert place.topic not in topics


async def test_a_group_that_may_not_renew_its_locks_is_refused_before_a_record_runs_twice(place: Place) -> None:
    async with place.outside() as (_, admin, _):
        settings = {entry.name for entry in await admin.group_configs(place.group)}
        if "share.renew.acknowledge.enable" in settings:
            await admin.alter_group_configs(place.group, {"share.renew.acknowledge.enable": "false"})

    if "share.renew.acknowledge.enable" not in settings:  # brokers of 4.2 always renew
        assert await refusal(place, place.agent(work, group=place.group)) is None
        return
    said = await refusal(place, place.agent(work, group=place.group)) or ""
    assert f"flowshare groups config {place.group} share.renew.acknowledge.enable=true" in said
    assert await refusal(place, place.agent(work, group=place.group, renew=False, timeout=5)) is None


async def test_what_was_replayed_is_remembered_wherever_groups_live(place: Place) -> None:
    letters = f"{place.topic}.dlq"
    async with place.outside() as (_, admin, _):
        await admin.create_topic(letters, partitions=2)
        first = Replayed(admin, letters)
        await first.load()
        assert (0, 7) not in first
        await first.add([(0, 7), (0, 8), (1, 0)])
        await first.add([(1, 1)])

        later = Replayed(admin, letters)
        await later.load()
        known = {(partition, offset) for partition in range(2) for offset in range(12) if (partition, offset) in later}
        assert known == {(0, 7), (0, 8), (1, 0), (1, 1)}
