"""Every scenario of cooperative groups that the core can show, and the proof that each expectation can go red."""

from __future__ import annotations

import pytest

from tests.cooperative.scenarios import IDS, LEFT, SCENARIOS
from tests.cooperative.subject import CooperativeSubject
from tests.scenarios import runner
from tests.scenarios.language import Scenario

CASES = [pytest.param(scenario, id=scenario.id) for scenario in SCENARIOS]


@pytest.mark.parametrize("scenario", CASES)
def test_scenario(scenario: Scenario):
    failure = runner.run(scenario, CooperativeSubject)

    assert failure is None, failure.message


@pytest.mark.parametrize("scenario", CASES)
def test_a_flipped_expectation_turns_the_scenario_red(scenario: Scenario):
    flips = list(runner.flip_all(scenario, "core", CooperativeSubject))

    assert flips
    assert [flip.text for flip in flips if not flip.caught] == []


def test_every_scenario_is_shown_or_left_with_a_reason():
    shown = [scenario.id for scenario in SCENARIOS]

    assert sorted(shown + [left.id for left in LEFT], key=int) == list(IDS)
    assert all(left.reason for left in LEFT)


def test_a_step_that_nobody_knows_is_an_error():
    with pytest.raises(runner.BadStep, match="unknown operation fly"):
        runner.run(Scenario(id="x", on="core", when="fly => ok"), CooperativeSubject)
