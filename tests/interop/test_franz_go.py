"""franz-go, Go's client: its share consumer, producer, consumer groups and transactions (go/main.go)."""

from __future__ import annotations

import pytest

from tests.interop import golang

pytestmark = pytest.mark.real


@pytest.fixture(scope="session")
def program():
    return golang.program()


@pytest.fixture
def franz(program, server):
    return lambda do, *words: golang.run(program, server.bootstrap, do, *words)


@pytest.fixture
def topic(server, unique):
    return server.topic(unique("orders"))


def values(told):
    return [one["value"] for one in told.records]


def test_a_group_of_the_protocol_of_today_goes_on_where_it_committed(server, franz, unique):
    topic, group = server.topic(unique("orders"), partitions=3), unique("group")
    for partition in range(3):
        server.produce(topic, *(str(number) for number in range(100)), partition=partition)
    member = ("group", f"topic=^{topic}$", "pattern=yes", f"group={group}", "protocol=consumer")

    first = franz(*member, "count=300")
    kinds = {one.group_id: one.type.name for one in server.admin.list_consumer_groups().result(20).valid}
    server.produce(topic, "later")
    second = franz(*member, "count=1")

    assert len({(one["partition"], one["offset"]) for one in first.records}) == len(first.records) == 300
    assert kinds[group] == "CONSUMER"
    assert values(second) == ["later"]


def test_every_record_of_every_partition_comes_once_and_stays_accepted(server, franz, unique):
    topic, group = server.topic(unique("orders"), partitions=3), server.share_group(unique("group"))
    for partition in range(3):
        server.produce(topic, *(str(number) for number in range(200)), partition=partition)

    first = franz("share", f"topic={topic}", f"group={group}", "count=600")
    second = franz("share", f"topic={topic}", f"group={group}", "count=1", "seconds=2")

    assert sorted((one["partition"], one["offset"]) for one in first.records) == [
        (partition, offset) for partition in range(3) for offset in range(200)
    ]
    assert {one["delivery"] for one in first.records} == {1}
    assert second.records == []


def test_a_released_record_comes_again_and_a_rejected_or_accepted_one_does_not(server, franz, unique, topic):
    group = server.share_group(unique("group"))
    server.produce(topic, "accept", "release", "reject")

    told = franz("share", f"topic={topic}", f"group={group}", "count=4")
    again = franz("share", f"topic={topic}", f"group={group}", "count=1", "seconds=2")

    assert [(one["value"], one["delivery"], one["done"]) for one in told.records] == [
        ("accept", 1, "accept"),
        ("release", 1, "release"),
        ("reject", 1, "reject"),
        ("release", 2, "accept"),
    ]
    assert [line for line in told.out.splitlines() if '"errors":[]' not in line] == []
    assert again.records == []


def test_closing_frees_what_was_not_acknowledged(server, franz, unique, topic):
    group = server.share_group(unique("group"), share_record_lock_duration_ms="60000")
    server.produce(topic, "leave it", "accept it")

    first = franz("share", f"topic={topic}", f"group={group}", "count=2")
    second = franz("share", f"topic={topic}", f"group={group}", "count=1", "seconds=5")

    assert [one["done"] for one in first.records] == ["leave", "accept"]
    assert [(one["value"], one["delivery"]) for one in second.records] == [("leave it", 2)]


def test_a_renewed_record_stays_with_its_member_past_its_lock(server, franz, unique, topic):
    group = server.share_group(unique("group"), share_record_lock_duration_ms="1500")
    server.produce(topic, "long")

    told = franz("share", f"topic={topic}", f"group={group}", "renews=4", "every_ms=700", "count=1")
    again = franz("share", f"topic={topic}", f"group={group}", "count=1", "seconds=3")

    assert [(one["value"], one["delivery"], one["done"]) for one in told.records] == [("long", 1, "accept")]
    assert '"errors":[]' in told.out
    assert again.records == []


def test_a_strict_limit_brings_no_more_than_asked_for_though_the_batch_is_larger(server, franz, unique, topic):
    group = server.share_group(unique("group"))
    server.produce(topic, *(str(number) for number in range(50)))

    told = franz("share", f"topic={topic}", f"group={group}", "max=7", "strict=yes", "count=50")

    assert max(line.count('"offset"') for line in told.out.splitlines()) <= 7
    assert [one["offset"] for one in told.records] == list(range(50))
    assert {one["delivery"] for one in told.records} == {1}


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_it_produces_a_consumer_group_reads_once(franz, unique, topic, compression):
    group = unique("group")
    sent = franz("produce", f"topic={topic}", "count=500", f"compression={compression}")

    first = franz("group", f"topic={topic}", f"group={group}", "count=500")
    franz("produce", f"topic={topic}", "count=1", f"compression={compression}")
    second = franz("group", f"topic={topic}", f"group={group}", "count=1")

    assert [one["offset"] for one in sent.records] == list(range(500))
    assert values(first) == [str(number) for number in range(500)]
    assert [one["offset"] for one in second.records] == [500]


def test_an_aborted_transaction_is_not_read(franz, unique, topic):
    franz("transact", f"topic={topic}", f"id={unique('txn')}", "values=one,!two,three")

    told = franz("group", f"topic={topic}", f"group={unique('group')}", "count=2")

    assert values(told) == ["one", "three"]


def test_records_are_copied_with_their_offsets_in_the_same_transactions(server, franz, unique, topic):
    target, group = server.topic(unique("copies")), unique("group")
    server.produce(topic, *(str(number) for number in range(100)))
    words = f"topic={topic}", f"to={target}", f"group={group}"

    franz("copy", *words, f"id={unique('txn')}", "count=100")
    server.produce(topic, "last")
    franz("copy", *words, f"id={unique('txn')}", "count=1")
    told = franz("group", f"topic={target}", f"group={unique('reader')}", "count=101")

    assert values(told) == [*(str(number) for number in range(100)), "last"]
