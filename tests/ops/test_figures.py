"""Rates and sums of share-partitions are what their plain formulas say, whatever is seen."""

from __future__ import annotations

import random

import pytest

from flowshare.ops.figures import _SUMS, STUCK_MAX, PartitionFigures, StuckKey, of_group, of_topics
from flowshare.ops.rates import LOOKS_MAX, Rates, TopicRates
from flowshare.ops.reading import of_share
from flowshare.protocol.messages import SharePartitionOffsets

COUNTERS = ("log_end", "finished", "redeliveries")


def formula(looks, where, window_s):
    """Each counter's growth over partitions that both the first and the last look of the window know."""
    kept = []
    for look in looks:  # as `Rates` keeps them
        if kept and len(kept) == LOOKS_MAX and look[0] - kept[0][0] < window_s:
            kept.pop()
        kept = [*kept, look][-LOOKS_MAX:]
        while len(kept) > 2 and kept[1][0] <= look[0] - window_s:
            kept.pop(0)
    seen = [(at_s, rows) for at_s, rows in kept if any((row.group, row.topic) == where for row in rows)]
    if len(seen) < 2 or seen[-1][0] <= seen[0][0]:
        return TopicRates(None, None, None)
    (begun_s, before), (end_s, after) = seen[0], seen[-1]
    found = []
    for counter in COUNTERS:
        then = {row.partition: getattr(row, counter) for row in before if (row.group, row.topic) == where}
        grown = [
            max(0, now - then[row.partition])
            for row in after
            if (row.group, row.topic) == where
            and (now := getattr(row, counter)) is not None
            and then.get(row.partition) is not None
        ]
        found.append(sum(grown) / (end_s - begun_s) if grown else None)
    return TopicRates(*found)


@pytest.mark.parametrize("seed", range(20))
def test_rates_are_those_of_the_formula(seed):
    rng = random.Random(seed)
    rates, looks, now_s = Rates(), [], 0.0
    for _ in range(60):
        now_s += rng.choice((0.0, 0.3, 1.0, 5.0, 40.0))
        rows = [
            PartitionFigures(group, topic, partition,
                             **{name: rng.choice((None, 0, 5, rng.randrange(100))) for name in COUNTERS})
            for group in "gh" for topic in "tu" for partition in range(3) if rng.random() < 0.7
        ]  # fmt: skip
        if looks and rng.random() < 0.3:
            rows = looks[-1][1]  # nothing has changed
        looks.append((now_s, rows))
        rates.look(rows, now_s)
        for where in (("g", "t"), ("h", "u"), ("no", "t")):
            assert rates.of(*where) == formula(looks, where, 15.0), (seed, where)
            assert rates.of(*where) == rates.of(*where)


def test_a_partition_has_a_rate_of_its_own():
    rates = Rates()
    for second, finished in ((0.0, (0, 5)), (2.0, (10, 5))):
        rates.look([PartitionFigures("g", "t", at, finished=count) for at, count in enumerate(finished)], second)

    assert [rates.of_partition("g", "t", at).finished for at in range(3)] == [5.0, 0.0, None]
    assert rates.of("g", "t").finished == 5.0


def test_a_new_partition_with_nothing_in_it_hides_no_backlog_of_its_topic():
    begun = SharePartitionOffsets(topic="t", topic_id=None, partition=0, start_offset=2, lag=8)
    new = SharePartitionOffsets(topic="t", topic_id=None, partition=1, start_offset=-1, lag=-1)

    rows = [of_share("g", begun, 0, log_end=10), of_share("g", new, 0, log_end=0)]
    (of_topic,) = of_topics(rows)
    (not_known,) = of_topics([rows[0], of_share("g", new, 0, log_end=5)])

    assert (of_topic.backlog, of_topic.finished) == (8, 2)
    assert not_known.backlog is None


def summed(name, rows):
    """The sum of a column; None as soon as one of its parts is."""
    values = [getattr(row, name) for row in rows]
    return None if None in values else sum(values)


@pytest.mark.parametrize("seed", range(20))
def test_topics_are_the_sums_of_their_partitions_and_groups_those_of_their_topics(seed):
    rng = random.Random(seed)
    rows = [
        PartitionFigures(
            rng.choice("gh"), rng.choice("tu"), number, **{name: rng.choice((None, 0, 3, 9)) for name in _SUMS},
            oldest_age_s=rng.choice((None, 0.0, 5.5)), retention_left_s=rng.choice((None, 5.0)), retention="x",
            stuck=tuple(StuckKey(number, 0, rng.randrange(9), "HELD", 1) for _ in range(rng.choice((0, 0, 1, 3)))),
        )
        for number in range(rng.randrange(20))
    ]  # fmt: skip

    topics = of_topics(rows)
    groups = [(name, of_group(name, [one for one in topics if one.group == name])) for name in "gh"]

    whole = [(one, [row for row in rows if (row.group, row.topic) == (one.group, one.topic)]) for one in topics]
    assert sum(len(parts) for _, parts in whole) == len(rows)
    for one, parts in [*whole, *((one, [row for row in rows if row.group == name]) for name, one in groups)]:
        assert {name: getattr(one, name) for name in _SUMS} == {name: summed(name, parts) for name in _SUMS}
        assert one.partitions == len(parts)
        ages = [row.oldest_age_s for row in parts if row.oldest_age_s is not None]
        assert one.oldest_age_s == max(ages, default=None)
        times = [row.retention_left_s for row in parts if row.retention_left_s is not None]
        assert one.retention_left_s == min(times, default=None)
        blocked = sorted((key.blocked for row in parts for key in row.stuck), reverse=True)
        assert sorted((key.blocked for key in one.stuck), reverse=True) == blocked[: max(STUCK_MAX, len(one.stuck))]


def test_a_group_without_topics_has_nothing_left_and_nothing_to_tell_of_its_age():
    assert of_group("g", ())[2:] == (0, 0, 0, 0, 0, 0, 0, 0, None, None, "", (), 0, 0, 0)
