"""The limit in time: how many records a trigger may take at a given moment."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowshare.agents.handler.rate_limit import TokenBucket
from flowshare.spark.source.options import SourceOptions


def bucket(per_second, now_s=0.0):
    options = SourceOptions(broker="kafka://localhost", group="g", topics=("t",), records_per_second=per_second)
    return TokenBucket(options.rate, now_s)


def test_without_a_limit_there_is_no_rate():
    assert SourceOptions(broker="kafka://localhost", group="g", topics=("t",)).rate is None


def test_a_query_that_begins_may_take_what_a_second_allows():
    assert bucket(100, 50.0).available(50.0) == 100


def test_what_was_taken_has_to_be_paid_for_in_time():
    rate = bucket(100, 10.0)
    rate.take(rate.available(10.0))

    assert [rate.available(at_s) for at_s in (10.0, 10.25, 10.5, 11.0)] == [0, 25, 50, 100]


def test_what_was_not_used_for_a_second_is_lost():
    rate = bucket(100, 10.0)
    rate.take(100)

    assert rate.available(11.0) == rate.available(500.0) == 100


def test_a_batch_that_was_larger_than_asked_for_is_paid_for_first():
    rate = bucket(100, 10.0)
    rate.take(350)

    assert [max(0, rate.available(at_s)) for at_s in (10.0, 11.0, 12.0, 12.5, 13.0)] == [0, 0, 0, 0, 50]


def test_less_than_one_record_a_second_is_one_after_that_time():
    rate = bucket(0.25)
    assert rate.available(0.0) == 1
    rate.take(1)

    assert [rate.available(at_s) for at_s in (0.0, 2.0, 4.0, 40.0)] == [0, 0, 1, 1]


@settings(max_examples=100, deadline=None)
@given(st.floats(0.001, 5.0))
def test_every_rate_gives_a_record_in_the_end(per_second):
    rate = bucket(per_second)
    rate.take(rate.available(0.0))

    assert rate.available(1e6) >= 1


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([0.5, 3.0, 10.0, 1_000.0]), st.lists(st.floats(0.0, 3.0), max_size=30))
def test_over_any_time_no_more_is_taken_than_the_rate_and_a_second_of_it(per_second, pauses_s):
    rate, now_s, taken = bucket(per_second), 0.0, 0
    for pause_s in pauses_s:
        now_s += pause_s
        room = rate.available(now_s)
        assert room >= 0
        rate.take(room)
        taken += room

    burst = max(1.0, per_second)
    assert taken <= per_second * now_s + burst + 1e-6


@pytest.mark.parametrize("per_second", [50, 2.5])
@pytest.mark.parametrize("pause_s", [0.01, 0.13, 0.9])
def test_a_query_that_asks_often_gets_its_rate(per_second, pause_s):
    rate, now_s, taken = bucket(per_second), 0.0, 0
    while now_s < 20.0:
        room = rate.available(now_s)
        rate.take(room)
        taken += room
        now_s += pause_s

    assert 0.96 * per_second * 20 <= taken <= per_second * 21 + 1
