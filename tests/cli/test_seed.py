"""`groups seed` and `groups move` as a user runs them, on a log in memory."""

from __future__ import annotations

from flowshare.protocol.messages import OffsetCommitRequest, OffsetToCommit
from tests.cli.test_commands import shell

__all__ = ["shell"]


def committed(shell, **offsets):
    """Let the consumer group `etl` have committed offsets, by topic, in partition 0."""

    async def commit(connect):
        connection = await connect()
        wanted = tuple(OffsetToCommit(topic, 0, offset) for topic, offset in offsets.items())
        await connection.send(OffsetCommitRequest(group_id="etl", offsets=wanted))
        await connection.close()

    shell.beside(commit)


def test_a_share_group_is_seeded_only_when_it_is_asked_for(shell):
    for number in range(3):
        shell("send", "orders", str(number))
    committed(shell, orders=2)

    dry = shell("groups", "seed", "jobs", "--from-consumer-group", "etl")
    assert dry.split() == ["TOPIC", "PARTITION", "COMMITTED", "TO", "orders", "0", "2", "2"]
    assert shell.json("groups", "ls") == []

    shell("groups", "seed", "jobs", "--from-consumer-group", "etl", "--execute")
    (offsets,) = shell.json("groups", "describe", "jobs")["offsets"]
    assert (offsets["topic"], offsets["start_offset"], offsets["backlog"]) == ("orders", 2, 1)


def test_what_is_moved_to_an_end_of_the_log_is_said_in_a_line_each(shell):
    shell("send", "orders", "x")
    committed(shell, orders=9)

    (row,) = shell.json("groups", "seed", "jobs", "--from-consumer-group", "etl", "--topic", "orders")
    assert (row["committed"], row["to"]) == (9, 1)
    assert row["note"] == "9 is behind the log's end: begins there, at 1"


def test_what_cannot_be_seeded_is_refused_with_a_reason(shell):
    assert "has committed nothing" in shell("groups", "seed", "jobs", "--from-consumer-group", "none", code=1)
    assert "name of its own" in shell("groups", "seed", "etl", "--from-consumer-group", "etl", code=1)
    both = ["groups", "seed", "jobs", "--from-consumer-group", "etl", "--dry-run", "--execute"]
    assert "not both" in shell(*both, code=2)


def test_a_group_is_moved_on_a_kafka_cluster_only(shell):
    err = shell("groups", "move", "jobs", "--to", "workers", "--broker", "memory://", code=1)

    assert "memory has one place only" in err
