"""Short runs of `tests.chaos.run`, judged as the long ones are: each kind of fault once, and kills alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.order import chaos
from tests.chaos.run import BROKER, FLEET, PATH, LoosePlan, LooseRun, poisoned
from tests.sim.seeds import drawn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
KILLS = {"records": 100_000, "kills": 6, "workers": 4, "partitions": 1}

FAULTS = (
    "cut from each other",
    "kill with accepts on their way",
    "cut from the broker",
    "apart for a moment",
    "frozen past the session",
    "stalled for a moment",
    "join and leave",
    "broker kill",
    "frozen for a moment",
    "kill",
    "rolling restart",
)


@pytest.mark.java
def test_a_fleet_loses_nothing_and_runs_nothing_twice_without_a_death_that_explains_it(tmp_path: Path) -> None:
    seed = drawn()
    plan = LoosePlan(
        seed=seed,
        backend=FLEET,
        records=20_000,
        rate=300.0,
        workers=3,
        kinds=FAULTS,
        claims_min=10,
        held_min=20,
        unconfirmed_min=5,
    )

    assert chaos([plan], tmp_path, LooseRun) == 0, f"seed {seed}"


@pytest.mark.real
def test_kills_lose_nothing_on_an_embedded_path_whoever_leads_it(tmp_path: Path) -> None:
    plan = LoosePlan(seed=drawn(), backend=PATH, **KILLS)

    assert chaos([plan], tmp_path, LooseRun) == 0


def test_kills_lose_nothing_on_the_share_groups_of_a_real_kafka(kafka, tmp_path: Path) -> None:
    plan = LoosePlan(seed=drawn(), backend=BROKER, url=kafka.url, **KILLS)

    assert chaos([plan], tmp_path, LooseRun) == 0


def test_a_record_that_kills_its_process_each_time_becomes_a_dead_letter_and_holds_up_nothing(tmp_path: Path) -> None:
    assert poisoned(tmp_path / "poison") == 0
