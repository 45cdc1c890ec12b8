"""kafka-share-groups, kafka-groups, kafka-configs on groups, kafka-console-share-consumer."""

from __future__ import annotations

import pytest
from confluent_kafka import ShareConsumer

from tests.interop.servers import CALL_LIMIT_S
from tests.interop.test_confluent_share import member, take
from tests.waiting import blocking_until

pytestmark = pytest.mark.java


@pytest.fixture
def topic(server, unique):
    return server.topic(unique("orders"), partitions=2)


@pytest.fixture
def group(server, unique):
    return server.share_group(unique("group"))


@pytest.fixture
def used(server, group, topic):
    """The group has consumed ten records of partition 0 and none of partition 1, and is empty."""
    server.produce(topic, *(str(number) for number in range(10)))
    with member(server, group, topic) as consumer:
        assert len(take(consumer, 10)) == 10
        consumer.commit_sync(CALL_LIMIT_S)
    return group


def offsets(run, group, topic):
    """Partition -> (start offset, lag) as kafka-share-groups tells them; "-" for unknown."""
    told = run("kafka-share-groups", "--describe", "--group", group, "--offsets")
    return {int(row[2]): (row[3], row[4]) for row in told.rows if row[:2] == [group, topic]}


def test_groups_are_listed_with_their_state(server, run, used):
    names = run("kafka-share-groups", "--list").out.split()
    rows = run("kafka-share-groups", "--list", "--state").rows
    empty = run("kafka-share-groups", "--list", "--state", "Empty").rows
    stable = run("kafka-share-groups", "--list", "--state", "Stable").rows

    assert used in names
    assert [used, "Empty"] in rows
    assert [used, "Empty"] in empty
    assert used not in [row[0] for row in stable]


def test_kafka_groups_lists_them_by_type(run, used):
    rows = run("kafka-groups", "--list", "--share").rows
    consumers = run("kafka-groups", "--list", "--consumer").rows

    assert [used, "Share", "share"] in rows
    assert used not in [row[0] for row in consumers if row]


def test_offsets_show_what_is_left_to_do(server, run, used, topic):
    server.produce(topic, "eleventh")

    found = blocking_until(lambda: offsets(run, used, topic), good=lambda found: found.get(0, ("", ""))[1] == "1")

    assert found[0][1] == "1"


def test_members_and_state_of_a_group_that_is_in_use(server, run, group, topic):
    server.produce(topic, "one")

    with member(server, group, topic, client_id="warehouse") as consumer:
        take(consumer, 1)
        members = run("kafka-share-groups", "--describe", "--group", group, "--members", "--verbose")
        state = run("kafka-share-groups", "--describe", "--group", group, "--state", "--verbose")

    (row,) = [row for row in members.rows if row[0] == group]
    assert "warehouse" in row
    assert f"{topic}:0,1" in members.out
    (row,) = [row for row in state.rows if row[0] == group]
    assert "Stable" in row
    assert row[-1] == "1"
    assert any(address in state.out for address in server.bootstrap.split(","))


def test_a_dry_run_shows_the_new_offsets_and_changes_nothing(run, used, topic):
    told = run("kafka-share-groups", "--reset-offsets", "--group", used, "--topic", topic, "--to-earliest", "--dry-run")

    assert [used, topic, "0", "0"] in told.rows
    assert offsets(run, used, topic)[0][1] == "0"


def test_a_reset_brings_the_records_again(server, run, used, topic):
    told = run(
        "kafka-share-groups", "--reset-offsets", "--group", used, "--topic", f"{topic}:0", "--to-earliest", "--execute"
    )

    assert [used, topic, "0", "0"] in told.rows
    with member(server, used, topic) as consumer:
        assert len(take(consumer, 10)) == 10


def test_a_reset_to_latest_skips_what_was_there(server, run, used, topic):
    server.produce(topic, "skipped")
    run("kafka-share-groups", "--reset-offsets", "--group", used, "--topic", topic, "--to-latest", "--execute")
    server.produce(topic, "seen")

    with member(server, used, topic) as consumer:
        taken = take(consumer, 1)

    assert [message.value() for message in taken] == [b"seen"]


def test_a_reset_to_a_time_goes_to_the_first_record_at_or_after_it(run, used, topic):
    reset = ("kafka-share-groups", "--reset-offsets", "--group", used, "--topic", topic, "--dry-run", "--to-datetime")

    long_ago = run(*reset, "2020-01-01T00:00:00.000")

    assert [used, topic, "0", "0"] in long_ago.rows


def test_a_group_that_is_not_there_is_an_error(run, unique):
    told = run("kafka-share-groups", "--describe", "--group", unique("nobody"), code=None)

    assert "GroupIdNotFoundException" in told.out + told.err


def test_a_group_with_members_is_neither_reset_nor_deleted(server, run, used, topic):
    with member(server, used, topic) as consumer:
        assert take(consumer, 1, limit_s=1) == []
        state = lambda: run("kafka-share-groups", "--describe", "--group", used, "--state").out  # noqa: E731
        assert "Stable" in blocking_until(state, good=lambda told: "Stable" in told)
        reset = run(
            "kafka-share-groups",
            "--reset-offsets",
            "--group",
            used,
            "--topic",
            topic,
            "--to-earliest",
            "--execute",
            code=1,
        )
        delete = run("kafka-share-groups", "--delete", "--group", used, code=None)

    assert "not empty" in (reset.out + reset.err).lower() or "active" in (reset.out + reset.err).lower()
    assert "could not be deleted" in delete.out + delete.err or "not empty" in (delete.out + delete.err).lower()


def test_offsets_of_a_topic_are_deleted(server, run, used, topic):
    run("kafka-share-groups", "--delete-offsets", "--group", used, "--topic", topic)

    assert topic not in run("kafka-share-groups", "--describe", "--group", used, "--offsets").out


def test_a_deleted_group_is_gone(run, used):
    told = run("kafka-share-groups", "--delete", "--group", used)

    assert "successful" in told.out
    assert used not in run("kafka-share-groups", "--list").out.split()


def test_settings_of_a_group_are_set_shown_and_taken_back(run, unique):
    entity = ("--entity-type", "groups", "--entity-name", unique("group"))

    run(
        "kafka-configs",
        "--alter",
        *entity,
        "--add-config",
        "share.auto.offset.reset=earliest,share.delivery.count.limit=3",
    )
    set_ = run("kafka-configs", "--describe", *entity).out
    run("kafka-configs", "--alter", *entity, "--delete-config", "share.delivery.count.limit")
    unset = run("kafka-configs", "--describe", *entity).out

    assert "share.auto.offset.reset=earliest" in set_
    assert "share.delivery.count.limit=3" in set_
    assert "share.auto.offset.reset=earliest" in unset
    assert "share.delivery.count.limit=3" not in unset


def test_a_setting_beyond_the_servers_bounds_is_refused(run, unique):
    entity = ("--entity-type", "groups", "--entity-name", unique("group"))

    told = run("kafka-configs", "--alter", *entity, "--add-config", "share.record.lock.duration.ms=100", code=1)

    assert "share.record.lock.duration.ms" in told.out + told.err


def test_the_console_share_consumer_prints_records(server, run, group, topic):
    server.produce(topic, "one", "two", "three")

    told = run(
        "kafka-console-share-consumer",
        "--topic",
        topic,
        "--group",
        group,
        "--max-messages",
        "3",
        "--timeout-ms",
        "15000",
    )

    assert told.out.split() == ["one", "two", "three"]


def test_the_console_share_consumer_can_reject(server, run, group, topic):
    server.produce(topic, "one")

    run(
        "kafka-console-share-consumer",
        "--topic",
        topic,
        "--group",
        group,
        "--max-messages",
        "1",
        "--timeout-ms",
        "15000",
        "--reject",
    )

    with member(server, group, topic) as consumer:
        assert isinstance(consumer, ShareConsumer)
        assert take(consumer, 1, limit_s=1.5) == []


def test_settings_of_all_brokers_are_set_shown_and_taken_back(server, run):
    entity = ("--entity-type", "brokers", "--entity-default")

    if server.name == "flowshare":  # one server: it is told at its start
        told = run("kafka-configs", "--alter", *entity, "--add-config", "max.connections=1500", code=1)
        assert "start it with the new ones" in told.out + told.err
        return

    def shown(wanted):  # a broker takes in what the controller has said yes to when it has heard of it
        return blocking_until(
            lambda: run("kafka-configs", "--describe", *entity).out, good=wanted, limit_s=CALL_LIMIT_S
        )

    run("kafka-configs", "--alter", *entity, "--add-config", "max.connections=1500,max.connections.per.ip=1200")
    shown(lambda told: "max.connections=1500" in told and "max.connections.per.ip=1200" in told)
    run("kafka-configs", "--alter", *entity, "--delete-config", "max.connections,max.connections.per.ip")
    shown(lambda told: "max.connections" not in told)
    refused = run("kafka-configs", "--alter", *entity, "--add-config", "max.connections=none", code=1)

    assert "max.connections" in refused.out + refused.err
