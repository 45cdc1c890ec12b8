"""The judge of all chaos on journals made by hand: good ones, and one for each thing that may be wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chaos.journal import (
    ACCEPTED,
    BEGUN,
    CANCELLED,
    CONFIRMED,
    FAILED,
    LINE,
    NO_FENCE,
    NO_KEY,
    REJECTED,
    STILL,
    Journals,
    fails,
    keys_of,
    poisoned,
)
from tests.chaos.judge import Fault, Processes, Verdict, judge, judge_without_order, met, turns_in

ME, YOU = 1, 2
LOCK_S = 2.0
POISON = 9
"""This one is planned for the dead letters."""


class Told:
    """Lines of journals; records are told by offset, their id, and are all of one key in one partition."""

    def __init__(self, *faults: Fault, ended: dict[int, float] | None = None) -> None:
        self.lines: list[tuple] = []
        self.faults = faults
        self.ended = ended or {}

    def line(
        self,
        what: bytes,
        pid: int,
        offset: int,
        at: float,
        attempt: int = 1,
        key: int = 0,
        fence: tuple[int, int] = NO_FENCE,
    ) -> None:
        self.lines.append((what, 0, attempt, 0, pid, offset, key, offset, *fence, round(at * 1e9)))

    def turn(
        self,
        pid: int,
        offset: int,
        begin: float,
        end: float | None,
        outcome: bytes = ACCEPTED,
        attempt: int = 1,
        key: int = 0,
        fence: tuple[int, int] = NO_FENCE,
    ) -> Told:
        """A handler; without an end it wrote none."""
        self.line(BEGUN, pid, offset, begin, attempt, key, fence)
        if end is not None:
            self.line(outcome, pid, offset, end, attempt, key, fence)
        return self

    def still(self, pid: int, since: float, until: float) -> Told:
        """A process found that it had stood still."""
        self.lines.append((STILL, 0, 0, 0, pid, 0, NO_KEY, round((until - since) * 1e9), *NO_FENCE, round(until * 1e9)))
        return self

    def confirmed(self, pid: int, offset: int, at: float, attempt: int = 1) -> Told:
        """A member was told that its accept counts."""
        self.line(CONFIRMED, pid, offset, at, attempt)
        return self

    def without_order(self, records: int, letters: Sequence[int] = (), *, unconfirmed_s: float = 1.0) -> Verdict:
        processes = Processes(self.faults, lock_s=LOCK_S, ended=self.ended)
        turns = turns_in(self.lines, processes)
        return judge_without_order(turns, processes, records=records, letters=letters, unconfirmed_s=unconfirmed_s)

    def verdict(self, records: int, letters: Sequence[int] = ()) -> Verdict:
        processes = Processes(self.faults, lock_s=LOCK_S, ended=self.ended)
        turns = turns_in(self.lines, processes)
        return judge(turns, processes, records=records, rejected=lambda number: number == POISON, letters=letters)


def killed(pid: int, at: float) -> Fault:
    return Fault("kill", at, at + 0.1, (pid,), (pid,), killed=(pid,))


def stopped(pid: int, at: float, until: float) -> Fault:
    return Fault("frozen", at, until, (pid,), (pid,), still=(pid,))


def only(verdict: Verdict, name: str, count: int = 1) -> None:
    """This is wrong and nothing else."""
    assert {one: len(getattr(verdict, one)) for one in Verdict.NAMES if getattr(verdict, one)} == {name: count}


# -- nothing is wrong


def test_records_of_a_key_that_run_one_after_the_other_in_any_processes_are_right():
    told = Told().turn(ME, 0, 1.0, 1.1).turn(ME, 1, 1.1, 1.2).turn(YOU, 2, 1.3, 1.4)

    assert told.verdict(3).violations == 0


def test_keys_and_records_without_a_key_run_beside_each_other():
    told = Told().turn(ME, 0, 1.0, 2.0, key=0).turn(ME, 1, 1.1, 1.2, key=1)
    told.turn(ME, 2, 1.1, 1.9, key=NO_KEY).turn(YOU, 3, 1.1, 1.2, key=NO_KEY)

    assert told.verdict(4).violations == 0


def test_a_record_that_fails_runs_again_before_the_next_of_its_key():
    told = Told().turn(ME, 0, 1.0, 1.1, FAILED).turn(YOU, 0, 1.2, 1.3, attempt=2).turn(YOU, 1, 1.3, 1.4)

    verdict = told.verdict(2)

    assert (verdict.violations, verdict.failed, verdict.repeats) == (0, 1, 0)


def test_a_rejected_record_is_in_the_dead_letters_and_its_key_goes_on():
    told = Told().turn(ME, POISON, 1.0, 1.1, REJECTED).turn(YOU, POISON + 1, 1.2, 1.3)
    for other in range(POISON):
        told.turn(ME, other, 1.0, 1.1, key=1 + other)

    assert told.verdict(POISON + 2, letters=[POISON]).violations == 0
    only(told.verdict(POISON + 2), "lost")


def test_a_killed_process_takes_its_handler_with_it_and_the_record_runs_elsewhere():
    told = Told(killed(ME, 1.5)).turn(ME, 0, 1.0, None).turn(YOU, 0, 3.0, 3.1, attempt=2)

    verdict = told.verdict(1)

    assert (verdict.violations, verdict.cut_short) == (0, 1)


def test_after_a_kill_what_of_a_chain_was_not_settled_runs_again_from_its_first_record():
    told = Told(killed(ME, 1.5)).turn(ME, 0, 1.0, 1.1).turn(ME, 1, 1.1, 1.2).turn(ME, 2, 1.2, None)
    told.turn(YOU, 0, 3.0, 3.1, attempt=2).turn(YOU, 1, 3.1, 3.2, attempt=2).turn(YOU, 2, 3.2, 3.3, attempt=2)

    verdict = told.verdict(3)

    assert (verdict.violations, verdict.repeats) == (0, 2)


def test_what_of_a_chain_was_settled_before_the_kill_does_not_run_again():
    told = Told(killed(ME, 1.5)).turn(ME, 0, 1.0, 1.1).turn(ME, 1, 1.1, 1.2).turn(ME, 2, 1.2, None)
    told.turn(YOU, 1, 3.1, 3.2, attempt=2).turn(YOU, 2, 3.2, 3.3, attempt=2)

    verdict = told.verdict(3)

    assert (verdict.violations, verdict.repeats) == (0, 1)


def test_a_handler_whose_process_stood_still_past_its_lock_is_counted_apart():
    told = Told(stopped(ME, 1.1, 5.0)).turn(ME, 0, 1.0, 5.1).turn(YOU, 0, 3.2, 3.3, attempt=2).turn(YOU, 1, 3.3, 3.4)

    verdict = told.verdict(2)

    assert (verdict.violations, verdict.stood, verdict.found) == (0, 2, 0)


def test_that_a_process_stood_still_may_stand_in_its_own_journal():
    told = Told().turn(ME, 0, 1.0, 5.1).still(ME, 1.1, 5.0).turn(YOU, 0, 3.2, 3.3, attempt=2)

    verdict = told.verdict(1)

    assert (verdict.violations, verdict.stood) == (0, 1)


def test_the_fence_finds_the_handler_that_went_on():
    told = Told(stopped(ME, 1.1, 5.0)).turn(ME, 0, 1.0, 5.1, fence=(7, 4))
    told.turn(YOU, 0, 3.2, 3.3, attempt=2, fence=(7, 5)).turn(YOU, 1, 3.3, 3.4, fence=(7, 6))

    verdict = told.verdict(2)

    assert (verdict.violations, verdict.stood, verdict.found) == (0, 2, 2)


def test_a_handler_that_was_about_to_begin_when_its_process_stopped_is_counted_apart():
    told = Told(stopped(ME, 1.1, 5.0)).turn(YOU, 0, 4.9, 5.2, attempt=2).turn(ME, 0, 5.001, 5.1)

    verdict = told.verdict(1)

    assert (verdict.violations, verdict.thawed) == (0, 1)


def test_one_that_was_about_to_begin_is_found_by_its_fence_when_all_others_of_its_key_are_done():
    told = Told(stopped(ME, 1.1, 5.0)).turn(YOU, 0, 3.1, 3.2, attempt=2, fence=(7, 5))
    told.turn(YOU, 1, 3.3, 3.4, fence=(7, 6)).turn(ME, 0, 5.001, 5.002, fence=(7, 4))

    verdict = told.verdict(2)

    assert (verdict.violations, verdict.thawed, verdict.found) == (0, 1, 1)


def test_one_that_begins_long_after_its_process_stood_still_is_not_excused_by_that():
    told = Told(stopped(ME, 1.1, 5.0)).turn(YOU, 0, 3.1, 3.2, attempt=2, fence=(7, 5))
    told.turn(YOU, 1, 3.3, 3.4, fence=(7, 6)).turn(ME, 0, 5.1, 5.2, fence=(7, 4))

    assert told.verdict(2).unfenced


# -- each thing that may be wrong


def test_a_record_of_which_no_handler_ended_in_an_accept_is_lost():
    only(Told(killed(ME, 1.5)).turn(ME, 0, 1.0, None).verdict(1), "lost")
    only(Told().turn(ME, 0, 1.0, 1.1, FAILED).verdict(1), "lost")
    only(Told().verdict(1), "lost")


def test_a_dead_letter_that_was_not_planned_is_one_too_many():
    only(Told().turn(ME, 0, 1.0, 1.1).verdict(1, letters=[0]), "letters_wrong")


def test_a_record_that_begins_before_the_one_before_it_has_ever_begun_is_an_inversion():
    only(Told().turn(ME, 1, 1.0, 1.1).turn(ME, 0, 1.2, 1.3).verdict(2), "inversions")


@pytest.mark.parametrize("outcome", [FAILED, CANCELLED])
def test_a_record_that_begins_behind_one_that_failed_is_an_inversion(outcome: bytes):
    told = Told().turn(ME, 0, 1.0, 1.1, outcome).turn(ME, 1, 1.1, 1.2).turn(ME, 0, 1.3, 1.4, attempt=2)

    only(told.verdict(2), "inversions")


def test_a_record_that_begins_behind_one_that_died_with_its_process_is_an_inversion():
    told = Told(killed(ME, 1.5)).turn(ME, 0, 1.0, None).turn(YOU, 1, 2.0, 2.1).turn(YOU, 0, 3.0, 3.1, attempt=2)

    only(told.verdict(2), "inversions")


def test_a_later_record_than_the_next_is_an_inversion_too():
    told = Told(killed(ME, 1.5)).turn(ME, 0, 1.0, 1.1).turn(ME, 1, 1.1, 1.2)
    told.turn(YOU, 0, 3.0, 3.1, FAILED, attempt=2).turn(YOU, 2, 3.1, 3.2).turn(YOU, 0, 3.3, 3.4, attempt=3)

    verdict = told.verdict(3)

    only(verdict, "inversions")


def test_another_process_that_goes_on_behind_an_accept_which_was_not_settled_is_an_inversion():
    told = Told(killed(ME, 1.5)).turn(ME, 0, 1.0, 1.1).turn(YOU, 1, 1.2, 1.3).turn(YOU, 0, 3.0, 3.1, attempt=2)

    only(told.verdict(2), "inversions")


def test_the_same_process_that_goes_on_behind_a_rejection_which_was_not_settled_is_an_inversion():
    told = Told(killed(ME, 1.5)).turn(ME, POISON, 1.0, 1.1, REJECTED).turn(ME, POISON + 1, 1.1, 1.2)
    told.turn(YOU, POISON, 3.0, 3.1, REJECTED, attempt=2).turn(YOU, POISON + 1, 3.2, 3.3, attempt=2)
    for other in range(POISON):
        told.turn(ME, other, 1.0, 1.1, key=1 + other)

    only(told.verdict(POISON + 2, letters=[POISON]), "inversions")


def test_after_a_kill_a_chain_that_runs_again_from_its_second_record_is_an_inversion():
    told = Told(killed(ME, 1.5)).turn(ME, 0, 1.0, 1.1).turn(ME, 1, 1.1, 1.2)
    told.turn(YOU, 1, 3.0, 3.1, attempt=2).turn(YOU, 0, 3.2, 3.3, attempt=2)

    only(told.verdict(2), "inversions")


def test_two_handlers_of_one_record_at_once_are_an_overlap():
    only(Told().turn(ME, 0, 1.0, 1.5, FAILED).turn(YOU, 0, 1.4, 1.6, attempt=2).verdict(1), "overlaps")


def test_two_handlers_of_one_key_at_once_are_an_overlap_in_the_same_process_too():
    verdict = Told().turn(ME, 0, 1.0, 1.5).turn(ME, 1, 1.4, 1.6).verdict(2)

    assert (len(verdict.overlaps), len(verdict.inversions)) == (1, 1)


def test_a_process_that_stood_still_for_less_than_its_locks_excuses_no_overlap():
    told = Told(stopped(ME, 1.1, 1.5)).turn(ME, 0, 1.0, 1.7, FAILED).turn(YOU, 0, 1.4, 1.6, attempt=2)

    only(told.verdict(1), "overlaps")


def test_a_process_that_stood_still_excuses_no_overlap_before_that():
    told = Told(stopped(ME, 1.5, 9.0)).turn(ME, 0, 1.0, 9.1).turn(YOU, 0, 1.4, 1.6, attempt=2)

    only(told.verdict(1), "overlaps")


def test_a_process_that_ended_in_order_left_no_handler_behind():
    told = Told(ended={ME: 2.0}).turn(ME, 0, 1.0, None).turn(YOU, 0, 1.5, 1.6, attempt=2)

    only(told.verdict(1), "overlaps")


def test_a_record_that_runs_again_after_its_accept_without_a_fault_is_not_excused():
    only(Told().turn(ME, 0, 1.0, 1.1).turn(YOU, 0, 1.2, 1.3, attempt=2).verdict(1), "unexcused")


def test_a_kill_long_after_the_accept_is_no_excuse():
    told = Told(killed(ME, 30.0)).turn(ME, 0, 1.0, 1.1).turn(YOU, 0, 31.0, 31.1, attempt=2)

    only(told.verdict(1), "unexcused")


def test_the_kill_of_another_process_is_no_excuse():
    told = Told(killed(YOU, 1.15)).turn(ME, 0, 1.0, 1.1).turn(ME, 0, 1.2, 1.3, attempt=2)

    only(told.verdict(1), "unexcused")


def test_two_deliveries_with_one_attempt_are_one_that_was_not_counted():
    told = Told(killed(ME, 1.5)).turn(ME, 0, 1.0, None).turn(YOU, 0, 3.0, 3.1)

    only(told.verdict(1), "recounted")


def test_a_fence_that_does_not_rise_in_its_key_is_one_that_finds_nothing():
    told = Told().turn(ME, 0, 1.0, 1.1, fence=(7, 5)).turn(ME, 1, 1.1, 1.2, fence=(7, 5))

    only(told.verdict(2), "unfenced")


def test_a_handler_that_went_on_and_is_not_below_the_others_is_not_found():
    told = Told(stopped(ME, 1.1, 5.0)).turn(ME, 0, 1.0, 5.1, fence=(7, 5))
    told.turn(YOU, 0, 3.2, 3.3, attempt=2, fence=(7, 5))

    assert told.verdict(1).unfenced


# -- without an order


def test_records_without_an_order_run_beside_each_other_and_in_any_order():
    told = Told().turn(ME, 1, 1.0, 2.0).turn(ME, 0, 1.1, 1.2).turn(YOU, 2, 1.1, 1.9).confirmed(ME, 0, 1.3)

    assert told.without_order(3).violations == 0


@pytest.mark.parametrize("end", [None, 1.4])
def test_what_was_not_confirmed_when_its_process_was_killed_may_run_again(end: float | None):
    told = Told(killed(ME, 1.5)).turn(ME, 0, 1.0, end).turn(YOU, 0, 3.0, 3.1, attempt=2)

    verdict = told.without_order(1)

    assert (verdict.violations, verdict.repeats) == (0, 1)


def test_a_record_that_no_handler_ended_and_that_is_no_dead_letter_is_lost():
    only(Told(killed(ME, 1.5)).turn(ME, 0, 1.0, None).without_order(1), "lost")
    only(Told().without_order(1), "lost")


def test_a_dead_letter_is_right_if_each_process_that_began_the_record_was_killed():
    twice = Told(killed(ME, 1.5), killed(YOU, 2.5)).turn(ME, 0, 1.0, None).turn(YOU, 0, 2.0, None, attempt=2)
    once = Told(killed(ME, 1.5)).turn(ME, 0, 1.0, None).turn(YOU, 0, 2.0, None, attempt=2)

    assert (twice.without_order(1, [0]).violations, twice.without_order(1, [0]).buried) == (0, 1)
    only(once.without_order(1, [0]), "letters_wrong")
    only(Told().without_order(1, [0]), "letters_wrong")


def test_a_record_that_begins_after_its_accept_was_confirmed_is_late_and_without_excuse():
    told = Told(killed(ME, 1.5)).turn(ME, 0, 1.0, 1.1).confirmed(ME, 0, 1.2).turn(YOU, 0, 3.0, 3.1, attempt=2)

    verdict = told.without_order(1)

    assert (len(verdict.late), len(verdict.unexcused), verdict.violations) == (1, 1, 2)


def test_a_record_that_runs_again_without_a_fault_of_its_process_is_not_excused():
    told = Told(killed(YOU, 1.05)).turn(ME, 0, 1.0, 1.1).turn(YOU, 0, 1.2, 1.3, attempt=2)

    only(told.without_order(1), "unexcused")


def test_an_accept_that_was_under_way_for_too_long_before_the_kill_was_lost():
    told = Told(killed(ME, 9.0)).turn(ME, 0, 1.0, 1.1).turn(YOU, 0, 9.5, 9.6, attempt=2)

    only(told.without_order(1), "unexcused")
    assert told.without_order(1, unconfirmed_s=float("inf")).violations == 0


def test_a_process_that_was_given_up_may_begin_what_it_held_and_no_other_may():
    told = Told(stopped(ME, 1.0, 9.0)).turn(YOU, 0, 5.0, 5.1, attempt=2).turn(ME, 0, 9.1, 9.2)

    assert (told.without_order(1).violations, told.without_order(1).thawed) == (0, 1)
    only(Told().turn(YOU, 0, 5.0, 5.1, attempt=2).turn(ME, 0, 9.1, 9.2).without_order(1), "unexcused")


def test_two_runs_with_one_attempt_are_an_acquire_that_was_lost():
    told = Told(killed(ME, 1.5)).turn(ME, 0, 1.0, None).turn(YOU, 0, 3.0, 3.1)

    only(told.without_order(1), "recounted")


def test_the_faults_are_counted_with_what_they_met():
    told = Told(killed(ME, 1.5)).turn(ME, 0, 1.0, None).turn(ME, 1, 1.0, 1.4).turn(YOU, 2, 1.0, 1.2)
    told.turn(ME, 3, 1.0, 1.1).confirmed(ME, 3, 1.2)
    turns = turns_in(told.lines, Processes(told.faults, lock_s=LOCK_S, ended={}))

    found = met(turns, [1.4, 2.0, 99.0], told.faults)["kill"]

    assert (found.faults, found.held, found.unconfirmed, found.claims) == (1, 1, 1, 1)


# -- the plan and the journals


def test_the_plan_is_the_seeds_and_has_the_parts_that_it_says():
    keys = keys_of(3, 50, 20_000, 0.7)

    assert keys == keys_of(3, 50, 20_000, 0.7)
    assert keys != keys_of(4, 50, 20_000, 0.7)
    assert 0.04 < keys.count(NO_KEY) / len(keys) < 0.06
    assert keys.count(0) > 5 * keys.count(49)
    assert 0.04 < sum(poisoned(3, number) for number in range(20_000)) / 20_000 < 0.06
    assert 0.09 < sum(fails(3, number, 1) for number in range(20_000)) / 20_000 < 0.11
    assert any(fails(3, number, 1) and not fails(3, number, 2) for number in range(100))


def test_journals_are_read_as_they_grow_and_half_a_line_is_left(tmp_path: Path):
    journals = Journals(tmp_path)
    line = LINE.pack(ACCEPTED, 0, 1, 0, ME, 5, 0, 5, *NO_FENCE, 7)
    (tmp_path / "1.journal").write_bytes(line + line[:10])
    journals.go_on()

    assert (journals.decided, len(list(journals.lines()))) == ({5}, 1)

    (tmp_path / "1.journal").write_bytes(line + line)
    journals.go_on()

    assert len(list(journals.lines())) == 2
