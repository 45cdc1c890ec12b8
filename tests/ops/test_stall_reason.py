"""Why a group stands still, in one sentence: each reason from the facts that show it, and none when all is well."""

from __future__ import annotations

import pytest

from flowshare.ops.figures import BreakerFacts, GroupFigures, Holder, StuckKey, TopicFigures
from flowshare.ops.stall_reason import stall_reason


def row(**more):
    known = {"partitions": 2, "backlog": 100, "in_flight": 10, "oldest_age_s": 60.0, "arrival_rate": 5.0}
    return TopicFigures(**{"group": "g", "topic": "orders", **known, **more})


def group(*rows, **facts):
    return GroupFigures(name="g", seen_s=0.0, topics=rows, **facts)


def why(*rows, **facts):
    return stall_reason(group(*rows, **facts)) or ""


KEY = StuckKey(partition=3, offset=42, blocked=80, state="HELD", delivery_count=2, member_id="m1")
STUCK = {"blocked": 90, "stuck": (KEY, KEY._replace(offset=7, blocked=2))}


@pytest.mark.parametrize(
    ("rows", "facts", "words"),
    [
        ([], {"settings": {"share.paused": "true"}}, "it is paused; `flowshare groups resume g`"),
        ([row()], {"breaker": BreakerFacts(state="open", why="18 of 20 failed", left_s=12.0)}, ": 18 of 20 failed"),
        ([row()], {"breaker": BreakerFacts(state="open", left_s=12.0)}, "next try in 12.0 s"),
        ([row()], {"breaker": BreakerFacts(state="open")}, "next try soon"),
        ([row()], {"breaker": BreakerFacts(state="half-open")}, "lets one record through to try"),
        ([row()], {"members": 0}, "no members: nobody takes the 100 unfinished records"),
        ([row()], {"members": 2, "assigned": 0}, "none of its 2 members was given a partition"),
        ([row(delayed=100, in_flight=0)], {}, "all 100 unfinished records wait for the end of a delay"),
        ([row(in_flight=60, delayed=40)], {}, "60 records, and 40 wait for the end of a delay"),
        ([row()], {"settings": {"share.max.in.flight": "10"}}, "share.max.in.flight=10 allows no more"),
        ([row(**STUCK)], {}, "80 of them behind orders-3@42, which m1 holds (attempt 2)"),
        ([row(**STUCK)], {}, "90 of 100 unfinished records wait behind a record of their key for 1 m 0 s"),
        ([row(blocked=90, stuck=(KEY._replace(state="DELAYED"),))], {}, "which waits for its next attempt"),
        ([row(blocked=90, stuck=(KEY._replace(state="AVAILABLE"),))], {}, "which nobody has fetched yet"),
        ([row(in_flight=100, **STUCK)], {}, "80 of them behind orders-3@42, which m1 holds (attempt 2)"),
        ([row(in_flight=100, blocked=9, stuck=(KEY._replace(blocked=9),))], {}, "all that can be is in flight: 100"),
        ([row(in_flight=0, parked=2)], {}, "nobody takes them; 2 keys are parked, their records become dead letters"),
        ([row(rate=9.0, parked=1)], {}, "1 key is parked, its records become dead letters, unrun: `flowshare dlq"),
        ([row(backlog=0, parked=1)], {}, "1 key is parked"),
        ([row(parked=1)], {"settings": {"share.paused": "true"}}, "`flowshare groups resume g` lets it go on; 1 key"),
        ([row()], {"settings": {"share.max.rate": "10/m"}}, "share.max.rate=10/m hands out no more"),
        ([row()], {}, "10 of 100 unfinished records are in flight, and a partition's limit"),
        ([row(in_flight=0)], {}, "100 records are free, and nobody takes them"),
        ([row()], {"error": "ValueError: no\nsuch order"}, "handlers raise ValueError: no such order"),
        ([row()], {"error": "ValueError: x", "error_s": 3_600.0}, "10 of 100 unfinished records are in flight"),
        ([row(delayed=100, in_flight=0)], {"error": "A: x", "error_s": 90.0}, "; handlers raised A: x, 1 m 30 s ago"),
        (
            [row(in_flight=None, delayed=None)],
            {"holders": [Holder(member="m1", records=4, oldest_s=3.0)]},
            "workers hold 4, all held by m1, the oldest for 3.0 s",
        ),
        ([row(in_flight=None, delayed=None)], {}, "it is not told here how many are in flight"),
        ([row(rate=2.0, redelivery_rate=30.0)], {}, "most of it fails: 30 deliveries a second come again, 2 records"),
        ([row(rate=2.0, retention_left_s=20.0)], {}, "in 20.0 s, and the backlog takes 50.0 s at this rate"),
        ([row(in_flight=0, retention_left_s=300.0)], {}, "nobody takes them; retention deletes the first unfinished"),
    ],
)
def test_each_reason_is_told_from_the_facts_that_show_it(rows, facts, words):
    assert words in why(*rows, **facts)


@pytest.mark.parametrize(
    "one",
    [
        row(backlog=0, in_flight=0, oldest_age_s=None),
        row(backlog=None),
        row(rate=3.0),
        row(rate=None),
        row(oldest_age_s=3.0),
        row(rate=10.0, retention_left_s=20.0),
        row(rate=10.0, redelivery_rate=12.0),
    ],
)
def test_a_group_that_goes_on_or_has_nothing_to_do_has_no_reason(one):
    assert stall_reason(group(one, members=1)) is None
    assert stall_reason(group()) is None
    assert stall_reason(GroupFigures(name="g")) is None


def test_who_has_had_records_longest_is_named():
    holders = [Holder(member="m1", records=4, oldest_s=3.0), Holder(member="m2", records=6, oldest_s=95.0)]

    assert "10 records, the oldest held by m2 for 1 m 35 s" in why(row(backlog=10), holders=holders)
    assert "4 records, all held by m1, the oldest for 3.0 s" in why(row(backlog=4, in_flight=4), holders=holders[:1])


def test_who_holds_is_named_beside_what_is_raised():
    holders = [Holder(member="m1", records=10, oldest_s=3.0)]

    text = why(row(), holders=holders, error="ValueError: x")
    assert "finished, 10 are in flight, all held by m1, the oldest for 3.0 s; handlers raise ValueError: x" in text


def test_one_of_several_holders_of_whom_not_all_are_known_does_not_hold_all():
    holders = [Holder(member="m1", records=4, oldest_s=3.0)]

    assert "10 records, the oldest held by m1 for 3.0 s" in why(row(backlog=10), holders=holders)


def test_one_topic_that_goes_on_is_enough():
    assert why(row(), row(topic="refunds", rate=1.0)) == ""
    assert "200 records are free" in why(row(in_flight=0), row(topic="refunds", in_flight=0))


def test_a_reason_is_one_line_of_bounded_length():
    error = "x" * 10_000 + "\n" * 50

    assert "\n" not in why(row(), error=error)
    assert len(why(row(), error=error)) < 300


def test_what_is_not_known_of_one_topic_is_not_summed_up():
    total = group(row(), row(in_flight=None)).total

    assert total.in_flight is None
    assert total.backlog == 200


@pytest.mark.parametrize("state", ["open", "half-open"])
@pytest.mark.parametrize("why", ["20 of the last 20 outcomes failed", "most outcomes failed"])
def test_what_a_breaker_does_fits_into_a_terminal_of_80_columns(state: str, why: str) -> None:
    facts = group(breaker=BreakerFacts(state=state, why=why, left_s=28.1 if state == "open" else None))

    assert len(f"   {stall_reason(facts)}") <= 80
