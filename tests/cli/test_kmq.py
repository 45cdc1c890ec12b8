"""`flowshare kmq` as a user runs it, on a log in memory."""

from __future__ import annotations

from flowshare.client.producer.producer import Message, Producer
from flowshare.clock import LoopClock
from flowshare.kmq.markers import END, encode_key, encode_start
from tests.cli.test_commands import shell
from tests.cli.test_seed import committed

__all__ = ["shell"]
MOVE = ("kmq", "move", "--queue", "q", "--markers", "m", "--consumer-group", "etl", "--to", "jobs")


def queue(shell, *, ended):
    """Five messages of which the first three are begun, and these of them ended."""
    for topic in ("q", "m"):
        shell("topics", "create", topic)

    async def fill(connect):
        producer = Producer(connect, clock=LoopClock())
        await producer.send_many("q", [b"%d" % number for number in range(5)])
        markers = [Message(encode_start(1_000), encode_key(0, offset)) for offset in range(3)]
        markers += [Message(END, encode_key(0, offset)) for offset in ended]
        await producer.send_many("m", markers)
        await producer.close()

    shell.beside(fill)
    committed(shell, q=3)


def test_a_queue_of_which_all_is_ended_goes_on_at_what_is_committed(shell):
    queue(shell, ended=(0, 1, 2))

    [row] = shell.json(*MOVE)
    assert (row["committed"], row["open"], row["to"], row["finished"]) == (3, 0, 3, 0)
    assert shell.json("groups", "ls") == []
    shell(*MOVE, "--execute")
    [offsets] = shell.json("groups", "describe", "jobs")["offsets"]
    assert (offsets["start_offset"], offsets["backlog"]) == (3, 2)


def test_open_messages_are_settled_first_or_run_again_if_that_is_said(shell):
    queue(shell, ended=(0, 2))

    assert "1 messages of q are begun and not ended" in shell(*MOVE, "--execute", code=1)
    shell(*MOVE, "--again", "--execute")
    [offsets] = shell.json("groups", "describe", "jobs")["offsets"]
    assert (offsets["start_offset"], offsets["backlog"]) == (1, 3)


def test_the_share_group_has_a_name_of_its_own(shell):
    assert "name of its own" in shell(*MOVE[:-1], "etl", code=1)


def test_a_tracker_needs_three_topics_and_markers_that_fit(shell):
    tracker = ("kmq", "tracker", "--queue", "q", "--markers")
    assert "three topics" in shell(*tracker, "q", code=1)
    shell("topics", "create", "q", "--partitions", "2")
    assert "topic m" in shell(*tracker, "m", code=1)
    shell("topics", "create", "m")
    assert "Give m 2 partitions, too" in shell(*tracker, "m", code=1)
