"""Java's own KafkaShareConsumer (see java/ShareClient.java for what it does with which value)."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.java


@pytest.fixture
def topic(server, unique):
    return server.topic(unique("orders"))


def test_implicit_acknowledgement_accepts_what_was_polled(server, run, unique, topic):
    group = server.share_group(unique("group"))
    server.produce(topic, *(str(number) for number in range(100)))

    first = run("share-client", f"topic={topic}", f"group={group}", "count=100")
    second = run("share-client", f"topic={topic}", f"group={group}", "count=1", "seconds=2")

    assert [one["offset"] for one in first.records] == list(range(100))
    assert {one["delivery"] for one in first.records} == {1}
    assert second.records == []


def test_explicit_types_do_what_they_say(server, run, unique, topic):
    group = server.share_group(unique("group"))
    server.produce(topic, "accept", "release", "reject")

    told = run("share-client", f"topic={topic}", f"group={group}", "mode=explicit", "count=4")
    again = run("share-client", f"topic={topic}", f"group={group}", "count=1", "seconds=2")

    assert [(one["value"], one["delivery"], one["done"]) for one in told.records] == [
        ("accept", 1, "accept"),
        ("release", 1, "release"),
        ("reject", 1, "reject"),
        ("release", 2, "accept"),
    ]
    assert '"errors":[]' in told.out
    assert again.records == []


def test_closing_frees_what_was_not_acknowledged(server, run, unique, topic):
    group = server.share_group(unique("group"), share_record_lock_duration_ms="60000")
    server.produce(topic, "leave it", "accept it")

    first = run("share-client", f"topic={topic}", f"group={group}", "mode=explicit", "count=2")
    second = run("share-client", f"topic={topic}", f"group={group}", "count=1")

    assert [one["done"] for one in first.records] == ["leave", "accept"]
    assert [(one["value"], one["delivery"]) for one in second.records] == [("leave it", 2)]


def test_a_renewed_record_stays_with_its_member_past_its_lock(server, run, unique, topic):
    group = server.share_group(unique("group"), share_record_lock_duration_ms="1500")
    server.produce(topic, "long")

    told = run(
        "share-client", f"topic={topic}", f"group={group}", "mode=explicit", "renews=4", "every_ms=700", "count=1"
    )
    again = run("share-client", f"topic={topic}", f"group={group}", "count=1", "seconds=3")

    assert [one["done"] for one in told.records] == ["renew"] * 4 + ["accept"]
    assert {one["delivery"] for one in told.records} == {1}
    assert [line for line in told.out.splitlines() if '"errors":[]' not in line] == []
    assert again.records == []


def test_record_limit_brings_no_more_than_asked_for_though_the_batch_is_larger(server, run, unique, topic):
    group = server.share_group(unique("group"))
    server.produce(topic, *(str(number) for number in range(50)))

    told = run("share-client", f"topic={topic}", f"group={group}", "acquire=record_limit", "max=7", "count=50")

    polls = [line.count('"offset"') for line in told.out.splitlines()]
    assert max(polls) <= 7
    assert [one["offset"] for one in told.records] == list(range(50))
    assert {one["delivery"] for one in told.records} == {1}


def test_several_partitions_are_read_by_one_member(server, run, unique):
    topic, group = server.topic(unique("orders"), partitions=4), server.share_group(unique("group"))
    for partition in range(4):
        server.produce(topic, *(str(number) for number in range(25)), partition=partition)

    told = run("share-client", f"topic={topic}", f"group={group}", "count=100")

    assert sorted((one["partition"], one["offset"]) for one in told.records) == [
        (partition, offset) for partition in range(4) for offset in range(25)
    ]
