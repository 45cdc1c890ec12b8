"""Parked keys as a user sees to them: told, replayed whole and in order, let go on; and what of their letters is not
sent."""

import asyncio

import pytest

import flowshare as fs
from flowshare.agents.host.host import Host, HostSettings
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.producer.producer import Message, Producer
from flowshare.clock import LoopClock
from tests.agents.agents_kit import one_agent
from tests.cli.test_commands import Shell
from tests.waiting import until


@pytest.fixture
def shell(capsys, monkeypatch):
    return Shell(capsys, monkeypatch)


def sent(shell, *values):
    """Records of the keys a (even values) and b."""
    for value in values:
        shell("send", "in", str(value), "--key", "ab"[value % 2])


def handled(shell, *, poison=(), after="park", records):
    """Values in the order in which the agent accepted them, when so many records are finished."""
    done = []

    async def handler(value: int) -> None:
        if value in poison:
            raise fs.Reject("poison")
        done.append(value)

    async def call():
        backend = shell.backend()
        await backend.start()
        app = one_agent(handler, order="key", after_dead_letter=after)
        host = Host(app, backend=backend, clock=LoopClock(), settings=HostSettings(threads=False, linger=0))
        await host.start()
        try:
            await until(lambda: finished(host), f"{records} records", good=lambda count: count >= records, limit_s=20)
        finally:
            await host.stop()
            await backend.close()

    async def finished(host):
        (part,) = await host.admin.group_offsets("t.agent")
        return part.start_offset

    asyncio.run(call())
    return done


def test_a_parked_key_is_told_and_replayed_whole_and_in_order(shell):
    shell("topics", "create", "in")
    sent(shell, *range(6))
    assert handled(shell, poison={2}, records=6) == [0, 1, 3, 5]

    [key] = shell.json("dlq", "parked", "t.agent")
    assert (key["key"], key["since"], key["last"], key["replayed"]) == ("a", 2, 4, False)
    assert shell("dlq", "replay", "t.agent.dlq", "--dry-run") == "2 would be replayed to in\n"
    assert shell("dlq", "replay", "t.agent.dlq") == "2 replayed to in\n"
    sent(shell, 6)
    assert handled(shell, records=9) == [2, 4, 6]
    assert shell.json("dlq", "parked", "t.agent") == []


def test_letters_from_before_their_key_was_parked_are_left_out_and_told(shell):
    shell("topics", "create", "in")
    sent(shell, 0, 2)
    assert handled(shell, poison={0}, after="continue", records=2) == [2]
    sent(shell, 4)
    assert handled(shell, poison={4}, records=3) == []

    told = shell.both("dlq", "replay", "t.agent.dlq")
    assert "1 of parked keys are from before these were parked" in told
    assert told.endswith("1 replayed to in\n")


def test_letters_that_are_gone_are_told(shell):
    shell("topics", "create", "in")
    sent(shell, 0, 2)
    assert handled(shell, poison={0}, records=2) == []
    shell.beside(lambda connect: ShareAdmin(connect, clock=LoopClock()).delete_records("t.agent.dlq", 0, 1))

    assert "those of the offsets 0 are not in t.agent.dlq any more" in shell.both("dlq", "replay", "t.agent.dlq")
    assert handled(shell, records=3) == [2]
    assert shell.json("dlq", "parked", "t.agent") == []


def test_an_unparked_key_goes_on_without_its_letters(shell):
    shell("topics", "create", "in")
    sent(shell, 0, 2)
    assert handled(shell, poison={0}, records=2) == []

    assert shell("dlq", "unpark", "t.agent", "a") == "a goes on in in-0\n"
    sent(shell, 4)
    assert handled(shell, records=3) == [4]


def test_a_key_with_a_letter_without_its_record_is_not_replayed_and_others_are(shell):
    async def bare(connect):
        facts = {
            "reason": "poison",
            "topic": "in",
            "partition": "0",
            "offset": "0",
            "group": "t.agent",
            "left_out": "x",
        }
        headers = tuple((f"flowshare.dlq.{name}", text.encode()) for name, text in facts.items())
        producer = Producer(connect, clock=LoopClock())
        await producer.send_many("t.agent.dlq", [Message(None, b"a", headers)])
        await producer.close()

    shell("topics", "create", "in")
    sent(shell, 0, 1)
    assert handled(shell, poison={0, 1}, records=2) == []
    shell.beside(bare)

    told = shell("dlq", "replay", "t.agent.dlq", code=1)
    assert "parked keys (1), as that of t.agent.dlq-0@2, cannot be replayed whole" in told
    assert handled(shell, records=3) == [1]
    assert [key["key"] for key in shell.json("dlq", "parked", "t.agent")] == ["a"]


def test_many_parked_keys_are_replayed_a_part_at_a_time(shell, monkeypatch):
    monkeypatch.setattr("flowshare.cli.replay.KEYS_AT_ONCE", 1)
    shell("topics", "create", "in")
    sent(shell, 0, 1, 2, 3)
    assert handled(shell, poison={0, 1}, records=4) == []

    assert shell("dlq", "replay", "t.agent.dlq") == "4 replayed to in\n"
    done = handled(shell, records=8)
    assert [value for value in done if value % 2 == 0] == [0, 2]
    assert [value for value in done if value % 2] == [1, 3]


def test_parked_keys_are_shown_with_the_backlog(shell):
    shell("topics", "create", "in")
    sent(shell, 0, 1, 2)
    handled(shell, poison={0}, records=3)

    [row] = shell.json("lag", "--group", "t.agent")
    assert row["parked"] == 1
    assert "1 keys of in are parked" in shell.both("lag", "--group", "t.agent")


def test_new_positions_forget_no_parked_keys_unless_told_to(shell):
    shell("topics", "create", "in")
    sent(shell, 0, 2)
    handled(shell, poison={0}, records=2)

    for command in (("--to-latest",), ("--to-latest", "--execute")):
        assert "group t.agent has 1 parked keys" in shell("groups", "reset-offsets", "t.agent", *command, code=1)
    assert len(shell.json("dlq", "parked", "t.agent")) == 1
    shell("groups", "reset-offsets", "t.agent", "--to-latest", "--execute", "--forget-parked")
    assert shell.json("dlq", "parked", "t.agent") == []


def test_a_limit_counts_a_parked_key_as_one(shell):
    shell("topics", "create", "in")
    sent(shell, 0, 1, 2, 3)
    handled(shell, poison={0, 1}, records=4)

    assert shell("dlq", "replay", "t.agent.dlq", "--limit", "1") == "2 replayed to in\n"
    assert handled(shell, records=6) == [0, 2]
    assert [key["key"] for key in shell.json("dlq", "parked", "t.agent")] == ["b"]


def test_letters_are_sent_to_no_topic_that_is_not_there(shell):
    shell("topics", "create", "in")
    sent(shell, 0)
    handled(shell, poison={0}, after="continue", records=1)

    assert "ni" in shell("dlq", "replay", "t.agent.dlq", "--to", "ni", code=1)
    assert [topic["topic"] for topic in shell.json("topics", "ls")] == ["in", "t.agent.dlq"]


def test_keys_that_are_no_text_are_named_by_their_bytes(shell):
    async def seed(connect):
        producer = Producer(connect, clock=LoopClock())
        await producer.send_many("in", [Message(b"0", key) for key in (b"\xff", b"\\xff", b"\x00\n", b"-x")])
        await producer.close()

    shell("topics", "create", "in")
    shell.beside(seed)
    handled(shell, poison={0}, records=4)

    def parked():
        return sorted(key["key_hex"] for key in shell.json("dlq", "parked", "t.agent"))

    assert parked() == ["000a", "2d78", "5c786666", "ff"]
    assert shell("dlq", "unpark", "t.agent", "\\xff").startswith("\\xff goes on")
    assert parked() == ["000a", "2d78", "ff"]
    assert "--hex ff" in shell("dlq", "unpark", "t.agent", "\\xff", code=1)
    assert "--hex 000a" in shell("dlq", "unpark", "t.agent", "\\x00\\n", code=1)
    shell("dlq", "unpark", "t.agent", "--hex", "ff")
    shell("dlq", "unpark", "t.agent", "--hex", "000a")
    shell("dlq", "unpark", "t.agent", "--", "-x")
    assert parked() == []
    shell("dlq", "unpark", "t.agent", code=2)
    shell("dlq", "unpark", "t.agent", "--hex", "xy", code=2)


def test_an_agent_that_parks_no_more_tells_of_the_keys_that_are_parked(shell, caplog):
    shell("topics", "create", "in")
    sent(shell, 0, 1)
    handled(shell, poison={0}, records=2)
    handled(shell, after="continue", records=2)

    assert any("parks no more keys, and 1 are parked" in record.message for record in caplog.records)
