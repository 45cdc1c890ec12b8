"""How long until retention deletes what a group has not finished, from settings and what is known of the records."""

from __future__ import annotations

import math

import pytest

from flowshare.ops.figures import PartitionFigures, of_topics
from flowshare.ops.retention import FINISHED, FOREVER, Keeping, left, read_keeping

HOUR_MS = 3_600_000


def of(keeping: Keeping, **facts):
    known = {"backlog": 5, "oldest_age_s": 600.0, "behind": 100, "record_bytes": 1000.0, "arrival_per_s": 10.0, **facts}
    return left(keeping, **known)


def test_by_age_it_is_what_the_oldest_record_has_left():
    assert of(Keeping(ms=HOUR_MS)) == (3000.0, "by retention.ms")
    assert of(Keeping(ms=HOUR_MS), oldest_age_s=9999.0).seconds == 0


def test_by_size_it_is_what_may_still_arrive_behind_it():
    assert of(Keeping(bytes=200_000)) == (10.0, "by retention.bytes")
    assert of(Keeping(bytes=99_000)).seconds == 0
    assert of(Keeping(bytes=200_000), arrival_per_s=0.0).seconds == math.inf


def test_the_nearer_limit_counts():
    assert of(Keeping(ms=HOUR_MS, bytes=200_000)).why == "by retention.bytes"
    assert of(Keeping(ms=601_000, bytes=200_000)) == (1.0, "by retention.ms")


def test_without_limits_or_without_backlog_it_never_comes():
    assert of(Keeping()) == (math.inf, FOREVER)
    assert of(Keeping(ms=1), backlog=0) == (math.inf, FINISHED)


@pytest.mark.parametrize(
    ("keeping", "facts", "why"),
    [
        (Keeping(ms=1), {"oldest_age_s": None}, "the age of"),
        (Keeping(bytes=1), {"record_bytes": None}, "the size of the records"),
        (Keeping(ms=1, bytes=200_000), {"arrival_per_s": None}, "the rate of new records"),
        (Keeping(problem="not allowed"), {}, "not allowed"),
    ],
)
def test_what_cannot_be_known_is_said(keeping, facts, why):
    found = of(keeping, **facts)

    assert found.seconds is None
    assert why in found.why


def test_settings_of_topics_are_read():
    assert read_keeping({"retention.ms": "5", "retention.bytes": "-1"}) == Keeping(5, -1)
    assert read_keeping({"cleanup.policy": "compact", "retention.ms": "5"}) == Keeping()
    assert read_keeping({"cleanup.policy": "compact,delete", "retention.ms": "5"}).ms == 5
    assert "cannot be read" in read_keeping({"retention.ms": "soon"}).problem


def part(number: int, **facts):
    known = {"backlog": 2, "in_flight": 1, "delayed": 0, "redeliveries": 3, "finished": 10, "retention": FOREVER}
    return PartitionFigures("g", "t", number, **{**known, **facts})


def test_a_topic_is_the_sum_of_its_partitions_and_the_worst_of_them():
    [topic] = of_topics(
        [part(0, oldest_age_s=4.0), part(1, oldest_age_s=9.0, retention_left_s=6.0, retention="by age")]
    )

    assert (topic.partitions, topic.backlog, topic.in_flight, topic.finished) == (2, 4, 2, 20)
    assert (topic.oldest_age_s, topic.retention_left_s, topic.retention) == (9.0, 6.0, "by age")


def test_a_sum_with_an_unknown_part_is_unknown():
    [topic] = of_topics([part(0), part(1, backlog=None, in_flight=None, finished=None, retention="not known")])

    assert (topic.backlog, topic.in_flight, topic.finished, topic.retention) == (None, None, None, "not known")
