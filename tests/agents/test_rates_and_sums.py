"""Rates and sums of share-partitions are what their plain formulas say, whatever is seen."""

from __future__ import annotations

import random

import pytest

from flowshare.agents.scale import lag
from flowshare.agents.scale.lag import _SUMS, STUCK_MAX, by_topic
from flowshare.agents.scale.rates import LOOKS_MAX, Rates, TopicRates
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
    seen = [(at_s, rows) for at_s, rows in kept if any((row["group"], row["topic"]) == where for row in rows)]
    if len(seen) < 2 or seen[-1][0] <= seen[0][0]:
        return TopicRates(None, None, None)
    (begun_s, before), (end_s, after) = seen[0], seen[-1]
    found = []
    for counter in COUNTERS:
        then = {row["partition"]: row[counter] for row in before if (row["group"], row["topic"]) == where}
        grown = [
            max(0, row[counter] - then[row["partition"]])
            for row in after
            if (row["group"], row["topic"]) == where
            and row[counter] is not None
            and then.get(row["partition"]) is not None
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
            {"group": group, "topic": topic, "partition": partition,
             **{name: rng.choice((None, 0, 5, rng.randrange(100))) for name in COUNTERS}}
            for group in "gh" for topic in "tu" for partition in range(3) if rng.random() < 0.7
        ]  # fmt: skip
        if looks and rng.random() < 0.3:
            rows = looks[-1][1]  # nothing has changed
        looks.append((now_s, rows))
        rates.look(rows, now_s)
        for where in (("g", "t"), ("h", "u"), ("no", "t")):
            assert rates.of(*where) == formula(looks, where, 15.0), (seed, where)
            assert rates.of(*where) == rates.of(*where)


def summed(rows):
    """By topic, the sums and the rest."""
    found = {}
    for row in rows:
        found.setdefault((row["group"], row["topic"]), []).append(row)
    made = {}
    for where, parts in found.items():
        sums = {}
        for name in _SUMS:
            values = [row[name] for row in parts]
            known = all(one is not None and one >= 0 for one in values) if len(parts) > 1 else True
            sums[name] = sum(values) if known and len(parts) > 1 else values[0] if known else None
            if sums[name] is None and name == "backlog" and len(parts) > 1:
                sums[name] = -1
        ages = [row["oldest_age_s"] for row in parts if row["oldest_age_s"] is not None]
        sums["oldest_age_s"] = max(ages, default=None)
        sums["partitions"] = len(parts)
        sums["stuck"] = sorted((key["blocked"] for row in parts for key in row["stuck"]), reverse=True)
        made[where] = sums
    return made


def test_a_new_partition_with_nothing_in_it_hides_no_backlog_of_its_topic():
    begun = SharePartitionOffsets(topic="t", topic_id=None, partition=0, start_offset=2, lag=8)
    new = SharePartitionOffsets(topic="t", topic_id=None, partition=1, start_offset=-1, lag=-1)

    rows = [lag.row("g", begun, 0, log_end=10), lag.row("g", new, 0, log_end=0)]
    (of_topic,) = lag.by_topic(rows)
    (not_known,) = lag.by_topic([rows[0], lag.row("g", new, 0, log_end=5)])

    assert (of_topic["backlog"], of_topic["finished"]) == (8, 2)
    assert not_known["backlog"] == -1


@pytest.mark.parametrize("seed", range(20))
def test_topics_are_the_sums_of_their_partitions(seed):
    rng = random.Random(seed)
    rows = [
        {"group": rng.choice("gh"), "topic": rng.choice("tu"), "partition": number,
         **{name: rng.choice((None, -1, 0, 3, 9)) for name in _SUMS},
         "backlog": rng.choice((-1, 0, 7)),
         "oldest_age_s": rng.choice((None, 0.0, 5.5)),
         "stuck": [{"blocked": rng.randrange(9)} for _ in range(rng.choice((0, 0, 1, 3)))],
         "retention_left_s": rng.choice((None, 5.0)), "retention": "x"}
        for number in range(rng.randrange(20))
    ]  # fmt: skip

    made = {(one["group"], one["topic"]): one for one in by_topic(rows)}

    for where, wanted in summed(rows).items():
        one = made[where]
        blocked = [key["blocked"] for key in one["stuck"]]
        if one["partitions"] > 1 and len(wanted["stuck"]) > STUCK_MAX:
            wanted["stuck"] = wanted["stuck"][:STUCK_MAX]
        assert sorted(blocked, reverse=True) == wanted.pop("stuck"), (seed, where)
        assert {name: one[name] for name in wanted} == wanted, (seed, where)
