"""When a path had no leader."""

from __future__ import annotations

from tests.chaos.leadership import absences

LED = [(1, 0.0, 10.0), (2, 12.0, 20.0), (3, 20.5, 30.0)]


def test_the_time_between_two_leaders_is_an_absence_if_it_is_long_enough() -> None:
    assert absences(LED, [], 1.5) == [(10.0, 12.0)]
    assert absences(LED, [], 0.4) == [(10.0, 12.0), (20.0, 20.5)]
    assert absences(LED, [], 2.0) == []


def test_a_leader_that_stands_still_is_absent_and_another_process_is_not() -> None:
    assert absences(LED, [(2, 14.0, 17.0), (1, 14.0, 17.0)], 2.0) == [(14.0, 17.0)]


def test_a_standstill_counts_as_far_as_the_process_led() -> None:
    assert absences(LED, [(2, 11.0, 15.0)], 2.5) == [(10.0, 15.0)]
    assert absences(LED[:1], [(1, 8.0, 15.0)], 1.0) == [(8.0, 10.0)]


def test_absences_with_hardly_anything_between_them_are_one() -> None:
    assert absences(LED, [(2, 12.5, 13.5), (2, 13.2, 13.9)], 3.0) == [(10.0, 13.9)]
    assert absences(LED, [(2, 13.5, 14.5)], 2.5) == []
