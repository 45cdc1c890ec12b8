"""Tests of the fate of a message that is due."""

from __future__ import annotations

import pytest

from flowshare.kmq.redelivery import Copy, QueueRules, copy_of, redelivered

RULES = QueueRules("q", "m")
APP = ("app", b"x")


def test_the_first_copy_has_the_records_headers_and_the_count():
    assert copy_of([APP], RULES) == Copy("q", True, (APP, ("kmq-redelivery-count", b"\x01")))


def test_the_count_is_set_once():
    headers = [("kmq-redelivery-count", b"\x01"), APP, ("kmq-redelivery-count", b"\x02")]

    assert copy_of(headers, RULES) == Copy("q", True, (APP, ("kmq-redelivery-count", b"\x03")))


def test_after_three_redeliveries_a_message_is_undelivered_with_its_headers():
    headers = (APP, ("kmq-redelivery-count", b"\x03"))

    assert copy_of(headers, RULES) == Copy("q__undelivered", False, headers)


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_a_message_is_delivered_once_more_than_it_may_be_redelivered(limit):
    headers, deliveries = (), 1
    while (copy := copy_of(headers, RULES._replace(redeliveries=limit))).again:
        headers, deliveries = copy.headers, deliveries + 1

    assert deliveries == 1 + limit
    assert redelivered(headers, RULES.count_header) == limit


def test_topic_and_header_have_the_names_that_are_given():
    rules = QueueRules("q", "m", 1, "dead", "again")

    assert copy_of([("kmq-redelivery-count", b"\x07")], rules).headers[-1] == ("again", b"\x01")
    assert copy_of([("again", b"\x01")], rules).topic == "dead"
