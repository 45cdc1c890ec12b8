"""A short run of `tests.chaos.run`: each kind of fault once, judged as the long ones are."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.run import Plan, chaos

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(600)]

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


def test_a_fleet_loses_nothing_and_runs_nothing_twice_without_a_death_that_explains_it(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    plan = Plan(
        seed=seed,
        records=20_000,
        rate=300.0,
        workers=3,
        kinds=FAULTS,
        claims_min=10,
        held_min=20,
        unconfirmed_min=5,
    )

    assert chaos([plan], tmp_path) == 0, f"seed {seed}"
