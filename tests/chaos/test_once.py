"""Short rows of `tests.chaos.once` and a short run of `tests.chaos.order` with outputs, judged as the long ones are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import once_steps
from tests.chaos.once import RANDOM, Hit, Plan, Row, prove, table
from tests.chaos.once_judge import AT_LEAST_ONCE, EXACTLY_ONCE, OnceVerdict
from tests.chaos.once_world import ALL, BROKER, LEADER, MEMBER, VICTIMS
from tests.chaos.order import Plan as OrderPlan
from tests.chaos.order import chaos

SEED, PER_KILL = 41, 1_000
ON_A_PATH = (
    (RANDOM, MEMBER),
    (once_steps.DECIDE, ALL),
    (once_steps.WRITTEN, MEMBER),
    (once_steps.ANSWER, LEADER),
)
IN_A_FLEET = (
    (once_steps.DECIDE, LEADER),
    (once_steps.SENDING, BROKER),
    (once_steps.OUTPUTS_WRITTEN, LEADER),
    (once_steps.ENDED, ALL),
    (once_steps.FOLLOWING, LEADER),
    (once_steps.ANSWER, MEMBER),
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def plan(place: str, *hits: tuple[str, str], promise: str = EXACTLY_ONCE) -> Plan:
    return Plan(
        place=place, hits=tuple(Hit(*one) for one in hits), records=PER_KILL * len(hits), seed=SEED, promise=promise
    )


def violations(rows: list[Row]) -> dict[str, int]:
    """By row, with what would be needed to look into it."""
    return {f"{row.plan}: {row.trouble}": row.violations for row in rows if row.violations}


def test_outputs_on_a_path_are_there_twice_without_the_promise_when_the_leader_dies_before_its_answer_leaves(
    tmp_path: Path,
) -> None:
    (row,) = prove([plan("embedded", *[(once_steps.ANSWER, LEADER)] * 2, promise=AT_LEAST_ONCE)], tmp_path)

    assert row.trouble == []
    assert row.kills == 2
    assert row.verdict.lost == row.verdict.of_no_accept == []
    assert row.verdict.twice


def test_the_rows_have_each_step_and_each_victim() -> None:
    """Each step with each victim, in rows of their own, is `make chaos`: that takes an hour."""
    for hits, backend, place in ((ON_A_PATH, "embedded", "embedded"), (IN_A_FLEET, "workers", "fleet1")):
        assert {step for step, _ in hits} >= set(once_steps.steps(backend, EXACTLY_ONCE))
        assert {victim for _, victim in hits} == set(VICTIMS[place])


def test_outputs_on_a_path_are_there_once_whoever_is_killed(tmp_path: Path) -> None:
    assert violations(prove([plan("embedded", *ON_A_PATH)], tmp_path)) == {}


@pytest.mark.java
def test_outputs_of_a_fleet_are_there_once_whoever_is_killed(tmp_path: Path) -> None:
    assert violations(prove([plan("fleet1", *IN_A_FLEET)], tmp_path)) == {}


@pytest.mark.java
def test_outputs_of_a_fleet_on_two_brokers_are_there_once_when_one_of_them_dies(tmp_path: Path) -> None:
    assert violations(prove([plan("fleet2", (RANDOM, BROKER))], tmp_path)) == {}


def test_outputs_are_there_once_and_in_order_through_every_kind_of_fault(tmp_path: Path) -> None:
    one = OrderPlan(seed=SEED, backend="embedded", records=6_000, more=False, once=EXACTLY_ONCE)

    assert chaos([one], tmp_path) == 0, f"seed {SEED}"


def test_the_table_has_a_line_for_each_row_and_a_row_that_did_not_come_to_its_end_is_a_violation() -> None:
    right = Row(plan("embedded", *ON_A_PATH), kills=2, left=0)
    stuck = Row(plan("fleet1", (once_steps.DECIDE, ALL)), trouble=["it hangs"], left=7)
    wrong = Row(plan("embedded", (RANDOM, ALL)), OnceVerdict(twice=["id 3 in sent"]), left=0)

    assert [row.violations for row in (right, stuck, wrong)] == [0, 2, 1]
    lines = table([right, stuck, wrong]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[2].split()[:3] == ["fleet1", "before", "decide"]
