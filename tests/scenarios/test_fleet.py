"""The scenarios on a fleet of three workers on a real Kafka 4.3.1, and what is said of where that differs.

One test a section of the catalogue, as in `test_kafka`.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.scenarios import fleet_differences
from tests.scenarios.catalogue import catalogue, fleet_cases, left, named
from tests.scenarios.fleet_run import TOGETHER, run_all
from tests.scenarios.language import Scenario
from tests.scenarios.reach import NOT_ON_FLEET, NOT_ON_TCP

CASES = fleet_cases()
SECTIONS = list(dict.fromkeys(scenario.id[0] for _, scenario in CASES))


@pytest.fixture(autouse=True)
def _silent():
    """Scenarios make workers fail on purpose; what they log of it is not looked at."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.timeout(300, func_only=True)
@pytest.mark.parametrize("section", SECTIONS)
def test_a_fleet_does_what_the_scenarios_say(section: str, fleet):
    chosen = [(name, scenario) for name, scenario in CASES if scenario.id.startswith(section)]

    assert asyncio.run(run_all(fleet, chosen)) == []


@pytest.mark.java
@pytest.mark.slow
def test_a_wrong_expectation_is_seen_on_a_fleet(fleet):
    wrong = Scenario(id="A01", given="log 0-9", when="fetch M1 => [0-9]c2")

    (message,) = asyncio.run(run_all(fleet, [("A01.wrong", wrong)]))

    assert message.startswith("A01.wrong: step 1: fetch M1 => [0-9]c2: got [0-9]c1")


def test_every_id_is_shown_on_a_fleet_or_has_a_reason():
    shown = {scenario.id for _, scenario in CASES}
    reasons = {name.split(".")[0] for name in NOT_ON_FLEET} | set(NOT_ON_TCP) | {item.id for item in left()}

    assert shown | reasons == set(catalogue())
    assert shown & set(NOT_ON_TCP) == set()


def test_what_is_not_run_on_a_fleet_exists_and_runs_on_the_server():
    runs = {name for name, scenario in named() if "server" in scenario.subjects}

    assert set(NOT_ON_FLEET) - runs == set()
    assert all(NOT_ON_FLEET.values())


def test_every_override_fits_a_scenario_that_runs_on_a_fleet():
    on_fleet = dict(CASES)

    assert set(fleet_differences.OVERRIDES) | TOGETHER <= set(on_fleet)
    assert all(fleet_differences.on_fleet(name, scenario) for name, scenario in CASES)
