"""Short runs of `tests.chaos.cooperative`, judged as the long ones are, and what it adds to the judge of an order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.cooperative import EMBEDDED, FLEET, CooperativeRun, kept, numbered, plan_of
from tests.chaos.journal import ACCEPTED, FAILED, NO_FENCE, Turn
from tests.chaos.judge import Fault, Verdict, judge
from tests.chaos.judge import Processes as Known
from tests.chaos.order import chaos

SEED, RECORDS, KILLS = 11, 4_000, 2
STOPPED = Fault("frozen past the locks", 10.0, 15.0, (1,), (1,), still=(1,))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_on_a_path_that_come_go_stand_still_and_die_lose_nothing_and_keep_the_order(tmp_path: Path) -> None:
    plan = plan_of(EMBEDDED, seed=SEED, kills=KILLS, records=RECORDS)

    assert chaos([plan], tmp_path, CooperativeRun) == 0, f"seed {SEED}"


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(600)
def test_a_fleet_whose_workers_come_go_stand_still_and_die_loses_nothing_and_keeps_the_order(tmp_path: Path) -> None:
    plan = plan_of(FLEET, seed=SEED, kills=KILLS, records=RECORDS)

    assert chaos([plan], tmp_path, CooperativeRun) == 0, f"seed {SEED}"


def turn(offset: int, pid: int, begin: float, end: float, outcome: bytes = ACCEPTED, epoch: int = 3) -> Turn:
    return Turn(0, offset, offset, 7, 1, pid, begin, end, outcome, (epoch, offset))


def test_a_commit_that_counts_although_its_process_was_stopped_past_its_lease_is_found() -> None:
    zombie = turn(0, 1, 9.5, 15.2)
    assert kept([zombie, turn(1, 2, 16.0, 17.0)], [STOPPED]) == [zombie]


def test_what_was_begun_again_did_not_count() -> None:
    assert kept([turn(0, 1, 9.5, 15.2), turn(0, 2, 14.0, 14.5)], [STOPPED]) == []
    assert kept([turn(0, 1, 9.5, 15.2), turn(0, 1, 16.0, 16.5)], [STOPPED]) == []


def test_what_ended_before_or_began_afterwards_or_failed_or_was_anothers_may_count() -> None:
    others = [turn(0, 1, 9.0, 9.9), turn(1, 1, 15.1, 15.2), turn(2, 1, 9.5, 15.2, FAILED), turn(3, 2, 9.5, 15.2)]
    assert kept(others, [STOPPED]) == []


def test_turns_are_numbered_as_they_began_and_keep_their_fences() -> None:
    late, early = turn(4, 1, 12.0, 13.0, epoch=3), turn(9, 2, 11.0, 12.0, epoch=5)
    unfenced = Turn(0, 1, 1, 7, 1, 1, 10.0)
    told = numbered([late, early, unfenced])
    assert [(one.offset, one.attempt, one.fence) for one in told] == [(1, 0, NO_FENCE), (9, 1, (5, 9)), (4, 2, (3, 4))]


def judged(*turns: Turn) -> Verdict:
    """Without chains, of a process that was killed."""
    killed = Known([Fault("kill", 10.5, 10.5, (1,), (1,), killed=(1,))], lock_s=3.0, ended={})
    return judge(turns, killed, records=2, rejected=lambda number: False, letters=(), chains=False)


def test_a_record_that_began_behind_one_that_was_not_committed_is_found_when_that_comes_again() -> None:
    found = judged(turn(0, 1, 10.0, 10.1), turn(1, 1, 10.2, 10.3), turn(0, 2, 14.0, 14.1, epoch=4),
                   turn(1, 2, 14.2, 14.3, epoch=4))  # fmt: skip
    assert (len(found.inversions), found.lost, found.unfenced) == (1, [], [])


def test_one_that_comes_again_with_nothing_begun_behind_it_is_no_inversion() -> None:
    found = judged(turn(0, 1, 10.0, 10.1), turn(0, 2, 14.0, 14.1, epoch=4), turn(1, 2, 14.2, 14.3, epoch=4))
    assert (found.inversions, found.lost, found.unfenced, found.repeats) == ([], [], [], 1)


def test_a_repeat_with_the_fence_of_the_first_time_is_found() -> None:
    found = judged(turn(0, 1, 9.0, 9.1, FAILED), turn(0, 1, 9.2, 9.3), turn(1, 1, 9.4, 9.5))
    assert len(found.unfenced) == 1
