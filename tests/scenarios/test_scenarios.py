"""Every scenario of the catalogue, on every subject that can show it, and the proof that the runner can go red."""

from __future__ import annotations

import logging

import pytest

from tests.scenarios import runner
from tests.scenarios.catalogue import cases, catalogue, left, scenarios
from tests.scenarios.language import Scenario, flips, parse_step
from tests.scenarios.reach import NOT_ON_TCP

CASES = [
    pytest.param(scenario, subject, id=name, marks=[pytest.mark.slow] if scenario.slow else [])
    for name, scenario, subject in cases()
]
FLIPPED = [case for case in CASES if case.values[1] != "tcp"]
OVER_TCP = [case for case in CASES if case.values[1] == "tcp"]
FACTORIES = runner.subject_factories()


@pytest.fixture(autouse=True)
def _silent():
    """Scenarios make servers fail on purpose; what they log of it is not looked at."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(("scenario", "subject"), CASES)
def test_scenario(scenario: Scenario, subject: str):
    failure = runner.run(scenario, FACTORIES[subject])

    assert failure is None, failure.message


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "subject"), FLIPPED)
def test_a_flipped_expectation_turns_the_scenario_red(scenario: Scenario, subject: str):
    missed = [flip.text for flip in runner.flip_all(scenario, subject, FACTORIES[subject]) if not flip.caught]

    assert missed == []


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "subject"), OVER_TCP)
def test_a_flipped_last_expectation_turns_the_scenario_red_over_tcp(scenario: Scenario, subject: str):
    (flip,) = runner.flip_last(scenario, subject, FACTORIES[subject])

    assert flip.caught, flip.text


def test_every_id_of_the_catalogue_is_shown_or_left_with_a_reason():
    shown = {scenario.id for scenario in scenarios()}
    reasons = {item.id: item.reason for item in left()}

    assert shown | set(reasons) == set(catalogue())
    assert shown & set(reasons) == set()
    assert all(reasons.values())


def test_every_id_that_is_shown_is_shown_over_tcp_or_has_a_reason():
    over_tcp = {scenario.id for _, scenario, subject in cases() if subject == "tcp"}

    assert over_tcp | set(NOT_ON_TCP) == {scenario.id for scenario in scenarios()}
    assert over_tcp & set(NOT_ON_TCP) == set()


def test_every_scenario_expects_something():
    assert [scenario.id for scenario in scenarios() if not runner.expectations(scenario)] == []


def test_every_expectation_can_be_flipped():
    steps = [step for scenario in scenarios() for step in scenario.steps() if step.expected]

    assert [step.text for step in steps if not list(flips(step))] == []


def test_a_step_without_expectation_fails_on_an_error():
    step = parse_step("ack M1 0-9:accept")

    assert step.check(runner.Outcome("INVALID_RECORD_STATE")) is not None
    assert step.check(runner.Outcome("error UNKNOWN_TOPIC_ID")) is not None
    assert step.check(runner.Outcome("NONE")) is None
