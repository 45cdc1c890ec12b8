"""Parked keys as a user sees to them: told, replayed whole and in order, let go on; and what of their letters is not
sent."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

import flowshare as fs
from flowshare.agents.host.host import Host, HostSettings
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.errors import RecordTooLarge
from flowshare.client.producer.producer import Message, Producer
from flowshare.clock import LoopClock
from flowshare.ops.replay import KeyAt, Replay, Replayed
from flowshare.protocol.key_hash import key_name
from flowshare.protocol.messages import OffsetToCommit
from flowshare.share.parking import ParkedKey
from tests.agents.agents_kit import one_agent
from tests.cli.test_commands import Shell
from tests.waiting import until


@pytest.fixture
def shell(capsys, monkeypatch):
    return Shell(capsys, monkeypatch)


def sent(shell, *values, pad=0):
    """Records of the keys a (even values) and b, longer by `pad` bytes."""
    for value in values:
        shell("send", "in", f"{value}{' ' * pad}", "--key", "ab"[value % 2])


def narrow(shell, topic, size):
    """A topic that takes `size` bytes."""
    configs = {"max.message.bytes": str(size)}
    shell.beside(
        lambda connect: ShareAdmin(connect, clock=LoopClock()).create_topic(topic, partitions=1, configs=configs)
    )


def handled(shell, *, poison=(), after="park", declares=True, records):
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
        app.conf.topic_allow_declare = declares
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


@pytest.mark.parametrize("long", [0, 2])
def test_a_letter_without_its_record_is_replayed_with_its_key_from_where_the_record_is(shell, long):
    narrow(shell, "t.agent.dlq", 1_000)
    shell("topics", "create", "in")
    for value in (0, 2, 4):
        sent(shell, value, pad=900 if value == long else 0)
    sent(shell, 1)
    assert handled(shell, poison={0}, declares=False, records=4) == [1]
    assert [letter["value"] for letter in shell.json("dlq", "show", "t.agent.dlq")].count(None) == 1

    assert shell("dlq", "replay", "t.agent.dlq") == "3 replayed to in\n"
    assert handled(shell, declares=False, records=7) == [0, 2, 4]
    assert shell.json("dlq", "parked", "t.agent") == []


def test_a_letter_without_its_record_which_is_gone_is_told(shell):
    narrow(shell, "t.agent.dlq", 1_000)
    shell("topics", "create", "in")
    sent(shell, 0, pad=900)
    sent(shell, 2)
    assert handled(shell, poison={0}, declares=False, records=2) == []
    shell.beside(lambda connect: ShareAdmin(connect, clock=LoopClock()).delete_records("in", 0, 1))

    told = shell.both("dlq", "replay", "t.agent.dlq")
    assert "1 letter has no record, and it is in its topic no more" in told
    assert handled(shell, declares=False, records=3) == [2]


def test_a_letter_that_names_its_key_is_not_sent_without_its_record(shell):
    async def bare(connect):
        facts = {"topic": "in", "partition": "0", "offset": "2", "group": "t.agent", "left_out": "x"}
        headers = tuple((f"flowshare.dlq.{name}", text.encode()) for name, text in facts.items())
        producer = Producer(connect, clock=LoopClock())
        await producer.send_many("t.agent.dlq", [Message(None, b"a", headers)])
        await producer.close()

    shell("topics", "create", "in")
    sent(shell, 0, 1, 2)
    assert handled(shell, poison={0}, records=3) == [1]
    shell.beside(bare)
    shell.beside(lambda connect: ShareAdmin(connect, clock=LoopClock()).delete_records("in", 0, 3))

    assert "1 letter has no record" in shell.both("dlq", "replay", "t.agent.dlq")
    assert handled(shell, records=5) == [0, 2]


def test_a_replay_of_which_a_record_cannot_be_sent_leaves_the_key_parked_and_is_done_anew(shell):
    narrow(shell, "in", 340)
    shell("topics", "create", "t.agent.dlq")
    sent(shell, 0, pad=200)
    sent(shell, 2, 1)
    assert handled(shell, poison={0, 1}, declares=False, records=3) == []

    assert "MESSAGE_TOO_LARGE" in shell("dlq", "replay", "t.agent.dlq", code=1)
    assert handled(shell, declares=False, records=5) == [1]
    assert [key["key"] for key in shell.json("dlq", "parked", "t.agent")] == ["a"]

    wide = {"max.message.bytes": "1000"}
    shell.beside(lambda connect: ShareAdmin(connect, clock=LoopClock()).alter_topic_configs("in", wide))
    assert shell("dlq", "replay", "t.agent.dlq").startswith("2 replayed to in")
    assert handled(shell, declares=False, records=7) == [0, 2]
    assert shell.json("dlq", "parked", "t.agent") == []


def test_a_parked_key_that_cannot_be_sent_whole_is_told_and_the_keys_behind_it_are_replayed(shell, monkeypatch):
    monkeypatch.setattr("flowshare.ops.replay.KEYS_AT_ONCE", 1)
    narrow(shell, "in", 340)
    shell("topics", "create", "t.agent.dlq")
    sent(shell, 0, pad=200)
    sent(shell, 1)
    assert handled(shell, poison={0, 1}, declares=False, records=2) == []

    said = shell("dlq", "replay", "t.agent.dlq", code=1)
    assert "1 cannot be sent: the parked key a of group t.agent in in-0, where it stays parked (" in said
    assert "MESSAGE_TOO_LARGE" in said
    assert handled(shell, declares=False, records=3) == [1]
    assert [key["key"] for key in shell.json("dlq", "parked", "t.agent")] == ["a"]


@pytest.mark.asyncio
async def test_a_key_that_stays_parked_in_one_topic_is_told_as_replayed_in_another(monkeypatch):
    async def send_many(topic, messages, *, return_exceptions):
        return [RecordTooLarge("too large") if topic == "a" else None for _ in messages]

    async def add(self, places):
        remembered.extend(places)

    remembered = []
    monkeypatch.setattr(Replayed, "add", add)
    session = SimpleNamespace(admin=None, producer=SimpleNamespace(send_many=send_many))
    replay = Replay(session, "g.dlq", None, dry_run=False, again=False)
    keys = [KeyAt("g", topic, 0, b"k") for topic in "ab"]
    for at in keys:
        replay._note_parked(at, SimpleNamespace(parked=ParkedKey(first=3, done=2, last=3)), [{"offset": 3}])

    await replay._send_letters({at: [Message(b"")] for at in keys}, {at: [(0, n)] for n, at in enumerate(keys)})

    assert [one.at.topic for one in replay.parked] == ["b"]
    assert remembered == [(0, 1)]
    assert "the parked key k of group g in a-0, where it stays parked" in replay.why_refused()


def test_a_key_that_is_parked_while_a_replay_runs_is_replayed_whole(shell, monkeypatch):
    shell("topics", "create", "in")
    sent(shell, 0)
    assert handled(shell, poison={0}, records=1) == []
    sent(shell, 1, 3)
    assert handled(shell, poison={1}, records=3) == []
    parked_keys, asked = ShareAdmin.parked_keys, []

    async def before_b(admin, group):
        told = await parked_keys(admin, group)
        asked.append(group)
        return told if len(asked) > 1 else replace(told, keys=tuple(one for one in told.keys if one.key != b"b"))

    monkeypatch.setattr(ShareAdmin, "parked_keys", before_b)
    assert shell("dlq", "replay", "t.agent.dlq") == "3 replayed to in\n"
    assert sorted(handled(shell, records=6)) == [0, 1, 3]
    assert shell.json("dlq", "parked", "t.agent") == []


def test_letters_of_a_topic_that_was_deleted_are_not_of_a_key_that_is_parked_in_the_next_one_of_its_name(shell):
    shell("topics", "create", "in")
    sent(shell, 0, 2, 4)
    assert handled(shell, poison={0}, records=3) == []
    shell("topics", "delete", "in", "--yes")
    shell("topics", "create", "in")
    sent(shell, 100, 1, 102)
    assert handled(shell, poison={100}, records=3) == [1]

    shell("dlq", "replay", "t.agent.dlq")
    assert handled(shell, records=8) == [100, 102]
    shell("dlq", "replay", "t.agent.dlq")
    assert handled(shell, records=11) == [0, 2, 4]


def test_an_unparked_key_goes_on_without_its_letters(shell):
    shell("topics", "create", "in")
    sent(shell, 0, 2)
    assert handled(shell, poison={0}, records=2) == []

    assert shell("dlq", "unpark", "t.agent", "a") == "a goes on in in-0\n"
    for place in ((), ("--topic", "in", "--partition", "0")):
        assert "has no parked key 'a'" in shell("dlq", "unpark", "t.agent", "a", *place, code=1)
    sent(shell, 4)
    assert handled(shell, records=3) == [4]


def test_many_parked_keys_are_replayed_a_part_at_a_time(shell, monkeypatch):
    monkeypatch.setattr("flowshare.ops.replay.KEYS_AT_ONCE", 1)
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
    assert "1 key of in is parked" in shell.both("lag", "--group", "t.agent")


def test_new_positions_forget_no_parked_keys_unless_told_to(shell):
    shell("topics", "create", "in")
    sent(shell, 0, 2)
    handled(shell, poison={0}, records=2)

    for command in (("--to-latest",), ("--to-latest", "--execute")):
        assert "group t.agent has 1 parked key " in shell("groups", "reset-offsets", "t.agent", *command, code=1)
    assert len(shell.json("dlq", "parked", "t.agent")) == 1
    shell("groups", "reset-offsets", "t.agent", "--to-latest", "--execute", "--forget-parked")
    assert shell.json("dlq", "parked", "t.agent") == []


def test_positions_that_are_deleted_or_taken_from_a_consumer_group_forget_no_parked_keys_unless_told_to(shell):
    async def commit(connect):
        await ShareAdmin(connect, clock=LoopClock()).commit_offsets("old", [OffsetToCommit("in", 0, 1, -1, "")])

    shell("topics", "create", "in")
    shell("topics", "create", "else")
    sent(shell, 0, 2)
    handled(shell, poison={0}, records=2)
    shell.beside(commit)

    for command in (
        ("delete-offsets", "t.agent", "--topic", "in"),
        ("seed", "t.agent", "--from-consumer-group", "old"),
        ("seed", "t.agent", "--from-consumer-group", "old", "--execute"),
    ):
        assert "group t.agent has 1 parked key " in shell("groups", *command, code=1)
    assert len(shell.json("dlq", "parked", "t.agent")) == 1
    shell("groups", "seed", "t.agent", "--from-consumer-group", "old", "--execute", "--forget-parked")
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


def test_a_long_key_is_known_by_a_short_name(shell):
    keys = [f"{'k' * 2_000}{end}" for end in "abc"]
    shell("topics", "create", "in")
    for value, key in enumerate((*keys, *keys)):
        shell("send", "in", str(value), "--key", key)
    handled(shell, poison={0, 1, 2}, records=6)

    names = [key["key_hex"] for key in shell.json("dlq", "parked", "t.agent")]
    assert [len(name) // 2 for name in names] == [513] * 3
    shell("dlq", "unpark", "t.agent", keys[0])
    named = key_name(keys[1].encode()).hex()
    shell("dlq", "unpark", "t.agent", "--hex", named)
    assert [key["key_hex"] for key in shell.json("dlq", "parked", "t.agent")] == [
        name for name in names if name == key_name(keys[2].encode()).hex()
    ]
    assert "the parked key " in shell.both("dlq", "replay", "t.agent.dlq", "--at", "0@2")
    assert handled(shell, records=8) == [2, 5]
    assert shell.json("dlq", "parked", "t.agent") == []


def test_an_agent_that_parks_no_more_tells_of_the_keys_that_are_parked(shell, caplog):
    shell("topics", "create", "in")
    sent(shell, 0, 1)
    handled(shell, poison={0}, records=2)
    handled(shell, after="continue", records=2)

    assert any("parks no more keys, and 1 are parked" in record.message for record in caplog.records)
