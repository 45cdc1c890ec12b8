"""kafka-topics, kafka-configs on topics, kafka-get-offsets, kafka-delete-records, kafka-acls, the console clients."""

from __future__ import annotations

import json
import re

import pytest

pytestmark = pytest.mark.java


def test_topics_are_created_listed_described_altered_and_deleted(run, unique):
    topic = unique("orders")

    run("kafka-topics", "--create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=3600000")
    assert topic in run("kafka-topics", "--list").out.split()
    described = run("kafka-topics", "--describe", "--topic", topic).out
    run("kafka-topics", "--alter", "--topic", topic, "--partitions", "5")
    altered = run("kafka-topics", "--describe", "--topic", topic).out
    run("kafka-topics", "--delete", "--topic", topic)

    assert "PartitionCount: 3" in described
    assert "retention.ms=3600000" in described
    assert re.findall(r"Partition: (\d)", described) == ["0", "1", "2"]
    assert "PartitionCount: 5" in altered
    assert topic not in run("kafka-topics", "--list").out.split()


def test_a_topic_is_not_made_twice(run, unique):
    topic = unique("orders")
    run("kafka-topics", "--create", "--topic", topic)

    again = run("kafka-topics", "--create", "--topic", topic, code=1)
    fine = run("kafka-topics", "--create", "--topic", topic, "--if-not-exists")

    assert "TopicExistsException" in again.out + again.err
    assert fine.code == 0


def test_partitions_cannot_be_taken_away(run, unique):
    topic = unique("orders")
    run("kafka-topics", "--create", "--topic", topic, "--partitions", "3")

    told = run("kafka-topics", "--alter", "--topic", topic, "--partitions", "2", code=1)

    assert "3 partition" in told.out + told.err


def test_settings_of_a_topic_are_set_shown_and_taken_back(run, unique):
    topic = unique("orders")
    entity = ("--entity-type", "topics", "--entity-name", topic)
    run("kafka-topics", "--create", "--topic", topic)

    run("kafka-configs", "--alter", *entity, "--add-config", "retention.ms=7200000,max.message.bytes=2000000")
    set_ = run("kafka-configs", "--describe", *entity).out
    run("kafka-configs", "--alter", *entity, "--delete-config", "retention.ms")
    unset = run("kafka-configs", "--describe", *entity).out

    assert "retention.ms=7200000" in set_
    assert "max.message.bytes=2000000" in set_
    assert "retention.ms=7200000" not in unset
    assert "max.message.bytes=2000000" in unset


def test_an_unknown_setting_of_a_topic_is_refused(run, unique):
    topic = unique("orders")
    run("kafka-topics", "--create", "--topic", topic)

    told = run(
        "kafka-configs",
        "--alter",
        "--entity-type",
        "topics",
        "--entity-name",
        topic,
        "--add-config",
        "no.such=1",
        code=1,
    )

    assert "no.such" in told.out + told.err


def test_the_console_producers_records_reach_the_console_consumer(run, unique):
    topic = unique("orders")
    run("kafka-topics", "--create", "--topic", topic)

    run(
        "kafka-console-producer", "--topic", topic, "--reader-property", "parse.key=true",
        "--reader-property", "key.separator=:", stdin="a:one\nb:two\nc:three\n",
    )  # fmt: skip
    told = run(
        "kafka-console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "3", "--timeout-ms", "15000",
        "--formatter-property", "print.key=true", "--formatter-property", "print.offset=true",
    )  # fmt: skip

    assert told.out.splitlines() == ["Offset:0\ta\tone", "Offset:1\tb\ttwo", "Offset:2\tc\tthree"]


def test_offsets_are_told_by_place_and_time(server, run, unique):
    topic = server.topic(unique("orders"), partitions=2)
    server.produce(topic, "a", "b", "c")

    latest = run("kafka-get-offsets", "--topic", topic).out.split()
    earliest = run("kafka-get-offsets", "--topic", topic, "--time", "earliest").out.split()
    newest = run("kafka-get-offsets", "--topic", topic, "--time", "max-timestamp").out.split()
    by_time = run("kafka-get-offsets", "--topic", topic, "--time", "1000").out.split()

    assert latest == [f"{topic}:0:3", f"{topic}:1:0"]
    assert earliest == [f"{topic}:0:0", f"{topic}:1:0"]
    assert newest[0].startswith(f"{topic}:0:")
    assert f"{topic}:0:0" in by_time


def test_records_are_deleted_up_to_an_offset(server, run, unique, tmp_path):
    topic = server.topic(unique("orders"))
    server.produce(topic, "a", "b", "c")
    file = tmp_path / "delete.json"
    file.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 2}], "version": 1}))

    told = run("kafka-delete-records", "--offset-json-file", str(file))

    assert "low_watermark: 2" in told.out
    assert run("kafka-get-offsets", "--topic", topic, "--time", "earliest").out.split() == [f"{topic}:0:2"]


def test_acls_are_added_listed_and_removed(run, unique):
    resource = ("--topic", unique("orders"))

    run("kafka-acls", "--add", "--allow-principal", "User:alice", "--operation", "Read", *resource)
    listed = run("kafka-acls", "--list", *resource).out
    run("kafka-acls", "--remove", "--allow-principal", "User:alice", "--operation", "Read", "--force", *resource)
    after = run("kafka-acls", "--list", *resource).out

    assert "principal=User:alice" in listed
    assert "operation=READ" in listed
    assert "User:alice" not in after


def test_the_versions_of_all_apis_can_be_asked_for(server, run):
    versions = run("kafka-broker-api-versions")

    assert server.bootstrap in versions.out
    assert "ShareFetch(78): 1 to 2" in versions.out
