"""The limit in time: how many records a trigger may take at a given moment."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowshare.spark.rate import Rate


def test_without_a_limit_each_trigger_may_take_the_most():
    rate = Rate(0, 500)

    for now_s in (0.0, 0.0, 7.0):
        assert rate.room(now_s) == 500
        rate.took(500, now_s)


def test_a_query_that_begins_may_take_what_a_second_allows():
    assert Rate(100, 1_000).room(50.0) == 100


def test_what_was_taken_has_to_be_paid_for_in_time():
    rate = Rate(100, 1_000)
    rate.took(rate.room(10.0), 10.0)

    assert [rate.room(at_s) for at_s in (10.0, 10.25, 10.5, 11.0)] == [0, 25, 50, 100]


def test_what_was_not_used_for_a_second_is_lost():
    rate = Rate(100, 1_000)
    rate.took(100, 10.0)

    assert rate.room(11.0) == rate.room(500.0) == 100


def test_what_was_left_of_a_second_can_be_taken_after_it():
    rate = Rate(100, 1_000)
    rate.took(40, 10.0)

    assert rate.room(10.0) == 60


def test_a_batch_that_was_larger_than_asked_for_is_paid_for_first():
    rate = Rate(100, 1_000)
    rate.took(350, 10.0)

    assert [rate.room(at_s) for at_s in (10.0, 11.0, 12.0, 12.5, 13.0)] == [0, 0, 0, 0, 50]


def test_never_more_than_the_most_is_taken_at_once():
    rate = Rate(10_000, 300)

    assert rate.room(0.0) == 300
    rate.took(300, 0.0)
    assert rate.room(0.0) == 300


def test_less_than_one_record_a_second_is_one_after_that_time():
    rate = Rate(0.25, 1_000)
    assert rate.room(0.0) == 1
    rate.took(1, 0.0)

    assert [rate.room(at_s) for at_s in (0.0, 2.0, 4.0, 40.0)] == [0, 0, 1, 1]


def test_nothing_taken_costs_nothing():
    rate = Rate(100, 1_000)
    rate.took(0, 10.0)

    assert rate.room(10.0) == 100


@settings(max_examples=100, deadline=None)
@given(st.floats(0.001, 5.0))
def test_every_rate_gives_a_record_in_the_end(per_second):
    rate = Rate(per_second, 10)
    rate.took(rate.room(0.0), 0.0)

    assert rate.room(1e6) >= 1


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([0.5, 3.0, 10.0, 1_000.0]),
    st.integers(1, 2_000),
    st.lists(st.floats(0.0, 3.0), max_size=30),
)
def test_over_any_time_no_more_is_taken_than_the_rate_and_a_second_of_it(per_second, most, pauses_s):
    rate, now_s, taken = Rate(per_second, most), 0.0, 0
    for pause_s in pauses_s:
        now_s += pause_s
        room = rate.room(now_s)
        assert 0 <= room <= most
        rate.took(room, now_s)
        taken += room

    burst = max(1.0, per_second)
    assert taken <= per_second * now_s + burst + 1e-6


@pytest.mark.parametrize("pause_s", [0.01, 0.13, 0.9])
def test_a_query_that_asks_often_gets_its_rate(pause_s):
    rate, now_s, taken = Rate(50, 1_000), 0.0, 0
    while now_s < 20.0:
        room = rate.room(now_s)
        rate.took(room, now_s)
        taken += room
        now_s += pause_s

    assert 0.98 * 50 * 20 <= taken <= 50 * 21
