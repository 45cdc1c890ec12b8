"""A fleet's own settings: set at any worker, kept with its state, followed by all."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from flowshare.core_errors import InvalidConfig
from flowshare.fleet.groups.settings import FLEET_CONFIGS, KEY, KNOW_S, FleetConfig
from flowshare.log.base import StorageError
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.server.net.limits import ListenerLimits
from flowshare.share.config import ServerConfig
from flowshare.slots.placement import group_slot
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.world import Fleet

SIZE = "group.share.max.size"
LOCK = "group.share.record.lock.duration.ms"


def virtually(scenario):
    """Run a scenario that takes a clock on virtual time."""
    return run(scenario(LoopTimeClock()))


async def alter(fleet, *, resource="", validate_only=False, **settings):
    """Set settings of the fleet at some worker; what it answers."""
    connection = fleet.connection()
    answer = await connection.send(
        m.IncrementalAlterConfigsRequest(
            resource_type="broker", resource=resource, configs=settings, validate_only=validate_only
        )
    )
    await connection.close()
    return answer


async def described(machine, resource=""):
    """Settings as one worker tells them: name -> (value, is the default)."""
    connection = machine.worker.connect("test")
    answer = await connection.send(m.DescribeConfigsRequest(resource_type="broker", resource=resource))
    assert answer.error is ErrorCode.NONE, answer
    return {one.name: (one.value, one.is_default) for one in answer.entries}


def sizes(fleet):
    """Return the setting that each living worker acts by."""
    return [machine.worker.settings.acting.server.group_max_size for machine in fleet.living]


def test_what_is_set_at_one_worker_acts_at_all_within_a_second(caplog):
    caplog.set_level(logging.INFO, "flowshare.fleet.groups.settings")

    async def scenario(clock):
        async with Fleet(clock, workers=3) as fleet:
            assert sizes(fleet) == [200] * 3
            answer = await alter(fleet, **{SIZE: "500", "max.connections": "300"})
            assert answer.error is ErrorCode.NONE, answer
            await clock.sleep(1)

            assert sizes(fleet) == [500] * 3
            assert {one.worker.settings.acting.limits.connections_max for one in fleet.machines} == {300}
            for machine in fleet.machines:
                assert await described(machine) == {SIZE: ("500", False), "max.connections": ("300", False)}
                told = await described(machine, str(machine.worker.node_id))
                assert told[SIZE] == ("500", False)
                assert told[LOCK] == ("30000", True)
                assert told.keys() == FLEET_CONFIGS.keys()

    virtually(scenario)
    said = [one.getMessage() for one in caplog.records if one.name == "flowshare.fleet.groups.settings"]
    assert said == ["the fleet has other settings from now on: group.share.max.size=500 max.connections=300"] * 3


def test_defaults_and_bounds_act_on_groups_that_are_there_and_on_their_leaders():
    async def scenario(clock):
        async with Fleet(clock, workers=3, slots=6) as fleet:
            await fleet.topic("orders", 2)
            await fleet.produce("orders", b"a")
            await fleet.configure()
            member = fleet.member("orders")
            await member.start()
            assert await member.fetch(records_max=1, max_wait_s=1)

            await alter(fleet, **{LOCK: "45000", "group.share.min.record.lock.duration.ms": "20000"})
            await clock.sleep(1)

            coordinator = fleet.coordinator("g").worker
            assert coordinator._service.coordinator.groups["g"].config.record_lock_duration_ms == 45_000
            for partition in range(2):
                leader = fleet.leader("orders", partition).worker
                assert leader._service.duties.config_of("g").record_lock_duration_ms == 45_000
            (owner,) = fleet.leader("orders", 0).worker._service.partitions.owners("g")
            assert owner.partition.limits.lock_duration_ms == 45_000
            connection = fleet.connection()
            answer = await connection.send(
                m.IncrementalAlterConfigsRequest(
                    resource_type="group", resource="g", configs={"share.record.lock.duration.ms": "15000"}
                )
            )
            await connection.close()
            assert answer.error is ErrorCode.INVALID_CONFIG
            assert "20000" in answer.message

    virtually(scenario)


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"group.share.max.sise": "5"}, "did you mean group.share.max.size"),
        ({SIZE: "many"}, "allowed: 1 to 10000"),
        ({"max.connections": "1"}, "allowed: 100 to"),
        ({"num.partitions": "3"}, "unknown setting"),
        ({LOCK: "5000", "group.share.min.record.lock.duration.ms": "20000"}, "must lie between"),
        ({SIZE: "400", LOCK: "x"}, LOCK),
    ],
)
def test_what_makes_no_sense_is_refused_as_a_whole(settings, hint):
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            answer = await alter(fleet, **settings)
            assert answer.error is ErrorCode.INVALID_CONFIG
            assert hint in answer.message
            await clock.sleep(1)
            assert sizes(fleet) == [200] * 2
            assert await described(fleet.machines[0]) == {}

    virtually(scenario)


def test_one_worker_alone_has_no_settings_of_its_own():
    async def scenario(clock):
        async with Fleet(clock, workers=1) as fleet:
            connection = fleet.machines[0].worker.connect("test")
            answer = await connection.send(
                m.IncrementalAlterConfigsRequest(
                    resource_type="broker", resource=str(fleet.machines[0].worker.node_id), configs={SIZE: "5"}
                )
            )
            assert answer.error is ErrorCode.INVALID_REQUEST
            assert "flowshare fleet config" in answer.message

    virtually(scenario)


def test_a_setting_is_unset_and_a_dry_run_sets_nothing():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            await alter(fleet, **{SIZE: "500", LOCK: "40000"})
            await alter(fleet, **{SIZE: None})
            answer = await alter(fleet, validate_only=True, **{SIZE: "700"})
            assert answer.error is ErrorCode.NONE
            await clock.sleep(1)
            assert sizes(fleet) == [200] * 2
            assert await described(fleet.machines[1]) == {LOCK: ("40000", False)}

    virtually(scenario)


def test_settings_outlive_the_workers_that_kept_them():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            await alter(fleet, **{SIZE: "500"})
            slot_manager = fleet.coordinator("")
            await slot_manager.kill()
            await fleet.settled()
            await alter(fleet, **{LOCK: "40000"})
            await clock.sleep(1)
            (left,) = fleet.living
            assert await described(left) == {SIZE: ("500", False), LOCK: ("40000", False)}
            added = await fleet.add()
            await fleet.settled()
            await left.stop()
            await fleet.settled()
            assert await described(added) == {SIZE: ("500", False), LOCK: ("40000", False)}
            assert sizes(fleet) == [500]

    virtually(scenario)


def test_a_worker_that_joins_serves_nothing_before_it_knows_the_settings():
    async def scenario(clock):
        async with Fleet(clock, workers=1) as fleet:
            await alter(fleet, **{SIZE: "500"})
            seen = []
            added = await fleet.add()
            while not added.worker.served:
                await clock.sleep(0.01)
            seen.append(added.worker.settings.acting.server.group_max_size)
            assert seen == [500]

    virtually(scenario)


def test_a_telling_that_was_lost_is_made_up_for():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            await alter(fleet, **{SIZE: "500"})
            await clock.sleep(1)
            behind = next(one for one in fleet.machines if one is not fleet.coordinator(""))
            behind.worker.settings._version = (-1, 0)
            behind.worker.settings.acting = FleetConfig(ServerConfig.embedded(), ListenerLimits())
            await clock.sleep(6)
            assert sizes(fleet) == [500] * 2

    virtually(scenario)


def test_settings_are_learned_after_an_answer_that_could_not_be_read():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            behind = next(one for one in fleet.machines if one is not fleet.coordinator(""))
            call = behind.worker._peers.call

            async def unreadable(*_, **fields):
                return {}

            behind.worker._peers.call = unreadable
            await clock.sleep(6)
            behind.worker._peers.call = call
            await alter(fleet, **{SIZE: "500"})
            await clock.sleep(1)
            behind.worker.settings._version = (-1, 0)
            behind.worker.settings.acting = FleetConfig(ServerConfig.embedded(), ListenerLimits())
            await clock.sleep(12)
            assert sizes(fleet) == [500] * 2

    virtually(scenario)


def test_the_urls_settings_are_those_of_a_fleet_that_never_had_any():
    async def scenario(clock):
        async with Fleet(clock, workers=3, settings={SIZE: "600"}) as fleet:
            await clock.sleep(1)
            assert sizes(fleet) == [600] * 3
            assert await described(fleet.machines[2]) == {SIZE: ("600", False)}
            await alter(fleet, **{SIZE: None})
            await clock.sleep(1)
            await fleet.add()
            await fleet.settled()
            await clock.sleep(6)
            assert sizes(fleet) == [200] * 4, "unset is not never set"

    virtually(scenario)


def test_a_worker_whose_url_says_otherwise_says_so_once(caplog):
    async def scenario(clock):
        async with Fleet(clock, workers=1) as fleet:
            await alter(fleet, **{SIZE: "500"})
            fleet.settings = {SIZE: "600"}
            with caplog.at_level(logging.WARNING):
                await fleet.add()
                await fleet.settled()
                await clock.sleep(30)
            assert sizes(fleet) == [500] * 2
        warnings = [one.getMessage() for one in caplog.records if "broker URL" in one.getMessage()]
        assert len(warnings) == 1
        assert "flowshare fleet config group.share.max.size=600" in warnings[0]

    virtually(scenario)


def test_only_one_of_two_urls_counts_when_a_fleet_starts():
    async def scenario(clock):
        fleet = Fleet(clock, workers=2)
        fleet.machines[0].settings = {SIZE: "600"}
        fleet.machines[1].settings = {SIZE: "700"}
        async with fleet:
            await clock.sleep(6)
            first, second = sizes(fleet)
            assert first == second
            assert first in (600, 700)

    virtually(scenario)


def test_a_fleet_without_the_keeper_of_its_settings_serves_after_a_while(caplog):
    async def scenario(clock):
        async with Fleet(clock, workers=1) as fleet:
            settings = (await fleet.add()).worker.settings
            settings._known.clear()
            settings._version = (10**9, 0)  # nothing that it is told is news
            with caplog.at_level(logging.WARNING):
                begun = clock.monotonic()
                await settings.known()
            assert clock.monotonic() - begun == pytest.approx(KNOW_S)
        assert any("cannot be learned" in one.getMessage() for one in caplog.records)

    virtually(scenario)


def test_settings_of_a_later_version_are_kept_and_left_out():
    async def scenario(clock):
        async with Fleet(clock, workers=1) as fleet:
            worker = fleet.machines[0].worker
            slot_manager = worker._slot_manager.led[group_slot("", fleet.slots)]
            await slot_manager.write([(KEY, b'{"group.share.max.size":"500","of.tomorrow":"1"}')])
            await fleet.add()
            await fleet.machines[0].stop()
            await fleet.settled()
            assert sizes(fleet) == [500]
            assert (await alter(fleet, **{LOCK: "40000"})).error is ErrorCode.NONE
            assert fleet.living[0].worker.settings._stored == {SIZE: "500", "of.tomorrow": "1", LOCK: "40000"}
            assert (await alter(fleet, **{"of.tomorrow": None})).error is ErrorCode.NONE

    virtually(scenario)


def test_what_cannot_be_read_is_told_and_can_be_set_anew(caplog):
    async def scenario(clock):
        async with Fleet(clock, workers=1) as fleet:
            slot_manager = fleet.machines[0].worker._slot_manager.led[group_slot("", fleet.slots)]
            await slot_manager.write([(KEY, b"\xff")])
            await fleet.add()
            with caplog.at_level(logging.ERROR):
                await fleet.machines[0].stop()
                await fleet.settled()
            assert sizes(fleet) == [200]
            await alter(fleet, **{SIZE: "500"})
            assert sizes(fleet) == [500]
        assert any("cannot be read" in one.getMessage() for one in caplog.records)

    virtually(scenario)


def test_every_setting_has_a_default_within_its_bounds_and_can_be_set_to_it():
    config = FleetConfig(ServerConfig.embedded(), ListenerLimits())
    for entry in config.entries({}):
        assert config.changed({entry.name: entry.value}) == config
    with pytest.raises(InvalidConfig, match="unknown setting"):
        config.changed({"no.such": "1"})


def test_urls_settings_that_cannot_be_written_now_are_offered_again():
    async def scenario(clock):
        async with Fleet(clock, workers=1) as fleet:
            settings, failures = fleet.machines[0].worker.settings, [StorageError("the state topic is away")] * 2
            write = settings.store.write

            async def failing(writes):
                if failures:
                    raise failures.pop()
                await write(writes)

            settings.store = SimpleNamespace(write=failing)
            settings.first = {SIZE: "600"}
            await clock.sleep(20)
            assert sizes(fleet) == [600]

    virtually(scenario)
