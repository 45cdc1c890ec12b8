"""The scenarios on a real Kafka 4.3.1, through flowshare's client, and what is said of where it differs.

One test a section of the catalogue; within it scenarios run beside each other, each with topics and groups of its own.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.scenarios import differences
from tests.scenarios.catalogue import catalogue, kafka_cases, left, named
from tests.scenarios.kafka_run import run_all
from tests.scenarios.language import Scenario
from tests.scenarios.reach import NOT_ON_KAFKA, NOT_ON_TCP

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "differences.md"
CASES = kafka_cases()
SECTIONS = list(dict.fromkeys(scenario.id[0] for _, scenario in CASES))


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.timeout(300, func_only=True)
@pytest.mark.parametrize("section", SECTIONS)
def test_kafka_does_what_the_scenarios_say(section: str, kafka):
    chosen = [(name, scenario) for name, scenario in CASES if scenario.id.startswith(section)]

    assert asyncio.run(run_all(kafka.addresses[0], chosen)) == []


@pytest.mark.java
@pytest.mark.slow
def test_a_wrong_expectation_is_seen_on_kafka(kafka):
    wrong = Scenario(id="A01", given="log 0-9", when="fetch M1 => [0-9]c2")

    (message,) = asyncio.run(run_all(kafka.addresses[0], [("A01.wrong", wrong)]))

    assert message.startswith("A01.wrong: step 1: fetch M1 => [0-9]c2: got [0-9]c1")


def test_every_id_is_shown_on_kafka_or_has_a_reason():
    shown = {scenario.id for _, scenario in CASES}
    reasons = {name.split(".")[0] for name in NOT_ON_KAFKA} | set(NOT_ON_TCP) | {item.id for item in left()}

    assert shown | reasons == set(catalogue())
    assert shown & set(NOT_ON_TCP) == set()


def test_what_is_not_run_on_kafka_exists_and_runs_on_the_server():
    runs = {name for name, scenario in named() if "server" in scenario.subjects}

    assert set(NOT_ON_KAFKA) - runs == set()
    assert all(NOT_ON_KAFKA.values())


def test_every_override_fits_a_scenario_that_runs_on_kafka():
    on_kafka = dict(CASES)

    assert set(differences.OVERRIDES) - set(on_kafka) == set()
    assert all(differences.on_kafka(name, scenario) for name, scenario in CASES)


def test_an_override_that_fits_no_line_is_an_error():
    with pytest.raises(ValueError, match="0 times"):
        differences.on_kafka("V04", Scenario(id="V04", given="log 0-9"))


def documented() -> dict[str, set[str]]:
    """Difference -> what holds it, out of the document's table."""
    rows = re.findall(r"^\| ([a-z-]+) \|.*\| ([^|]+) \|$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: set(re.findall(r"`([^`]+)`", held)) for name, held in rows if name != "id"}


def test_the_document_and_the_overrides_tell_of_the_same_differences():
    by_scenarios = {
        name: held for name, held in documented().items() if not any(one.startswith("tests/") for one in held)
    }

    assert by_scenarios == differences.overridden()


def test_the_document_names_tests_that_exist():
    files = {one for held in documented().values() for one in held if one.startswith("tests/")}

    assert files
    assert [one for one in files if not (ROOT / one).is_file()] == []
