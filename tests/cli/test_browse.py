"""`flowshare groups browse`, and the commands that act on what others hold, on a log in memory."""

from __future__ import annotations

import pytest

from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.producer.producer import Message, Producer
from flowshare.client.session.member import ShareMember
from flowshare.clock import LoopClock
from flowshare.share.types import AckRange
from tests.cli.test_commands import Shell
from tests.cli.test_cooperative_groups import worked

ACCEPT, RELEASE = b"\x01", b"\x02"
AT = ("--topic", "orders", "--partition", "0")


@pytest.fixture
def shell(capsys, monkeypatch):
    return Shell(capsys, monkeypatch)


async def handled(connect) -> None:
    """A group `g` of six records: two accepted of which one is first, one delayed by a minute, the rest given back."""
    admin = ShareAdmin(connect, clock=LoopClock())
    await admin.create_topic("orders", exist_ok=True)
    await admin.alter_group_configs("g", {"share.auto.offset.reset": "earliest"})
    producer = Producer(connect, clock=LoopClock())
    messages = [Message(b'{"n": %d}' % number, key=b"k%d" % (number % 2), partition=0) for number in range(6)]
    await producer.send_many("orders", messages)
    await producer.close()
    member = ShareMember(connect, group_id="g", topics=("orders",), clock=LoopClock())
    await member.start()
    (fetched,) = await member.fetch(records_max=100)
    acks = [AckRange(0, 0, ACCEPT), AckRange(3, 3, ACCEPT), AckRange(4, 4, RELEASE, 60_000)]
    await member.acknowledge({fetched.tp: acks}, generation=fetched.generation)
    await member.close()
    await admin.close()


def test_each_record_is_shown_with_its_state_and_when_it_is_due(shell):
    shell.beside(handled)
    (part,) = shell.json("groups", "browse", "g")

    assert (part["topic"], part["partition"], part["start_offset"], part["end_offset"]) == ("orders", 0, 1, 6)
    assert (part["kind"], part["loaded"], part["more"]) == ("share", False, False)
    assert [(row["first"], row["last"], row["state"], row["attempts"]) for row in part["rows"]] == [
        (1, 2, "available", 1),
        (3, 3, "acknowledged", 1),
        (4, 4, "delayed", 1),
        (5, 5, "available", 1),
    ]
    text = shell("groups", "browse", "g")
    assert "orders-0: window 1 to 6, log 0 to 6" in text
    assert "as stored" in text
    assert "delayed" in text


def test_lines_are_limited_and_go_on_from_an_offset(shell):
    shell.beside(handled)
    out = shell.both("groups", "browse", "g", *AT, "--limit", "2")

    assert "there is more; --limit shows more, --from goes on" in out
    (part,) = shell.json("groups", "browse", "g", *AT, "--from", "4", "--state", "available")
    assert [row["first"] for row in part["rows"]] == [5]


def test_records_are_shown_as_text_json_or_hex_and_found_by_key(shell):
    shell.beside(handled)
    (part,) = shell.json("groups", "browse", "g", "--values", "json", "--limit", "3")
    assert [(row["offset"], row["state"], row["key"], row["value"]) for row in part["rows"]] == [
        (1, "available", "k1", {"n": 1}),
        (2, "available", "k0", {"n": 2}),
        (3, "acknowledged", "k1", {"n": 3}),
    ]
    assert part["more"]
    (part,) = shell.json("groups", "browse", "g", "--values", "hex", "--state", "delayed")
    assert [row["value"] for row in part["rows"]] == [b'{"n": 4}'.hex()]
    (part,) = shell.json("groups", "browse", "g", "--key", "k1")
    assert [row["offset"] for row in part["rows"]] == [1, 3, 5]
    assert "value" not in part["rows"][0]
    assert '{"n": 2}' in shell("groups", "browse", "g", "--values", "text")
    (part,) = shell.json("groups", "browse", "g", "--at", "2000-01-01T00:00:00")
    assert len(part["rows"]) == 4
    (part,) = shell.json("groups", "browse", "g", "--at", "2999-01-01T00:00:00")
    assert part["rows"] == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("none",), 1, "groups ls"),
        (("g", "--topic", "none"), 1, "topics ls"),
        (("g", "--topic", "orders", "--partition", "7"), 1, "has no partition 7, it has 1"),
        (("g", *AT, "--from", "99"), 1, "orders-0 ends at offset 5"),
        (("g", "--partition", "0"), 2, "--partition needs --topic"),
        (("g", "--from", "1"), 2, "--from needs --topic and --partition"),
        (("g", "--at", "yesterday"), 2, "is no date and time"),
        (("g", "--state", "lost"), 2, "is not one of"),
    ],
)
def test_what_cannot_be_shown_says_what_to_do(shell, arguments, code, said):
    shell.beside(handled)

    assert said in " ".join(shell("groups", "browse", *arguments, code=code).split())


def test_what_was_never_handed_out_is_said(shell):
    shell.beside(handled)
    shell("topics", "create", "other")
    for _ in range(2):
        shell("send", "orders", "more")

    assert "other-0: group g has begun nothing here" in shell.both("groups", "browse", "g", "--topic", "other")
    err = shell("groups", "browse", "g", *AT, "--from", "7", code=1)
    assert "nothing of orders-0 was handed out from offset 6 on yet" in err


def test_a_cooperative_group_is_shown_in_the_same_form(shell):
    shell.beside(worked)
    (part,) = shell.json("groups", "browse", "g")

    assert (part["kind"], part["start_offset"]) == ("cooperative", 0)
    assert [(row["first"], row["last"], row["state"]) for row in part["rows"]] == [(0, 0, "free"), (1, 2, "committed")]


def test_records_are_rejected_and_delayed_ones_come_now_and_a_dry_run_only_says_so(shell):
    shell.beside(handled)
    out = shell.both("groups", "reject", "g", *AT, "--offset", "1", "--offset", "3-4", "--dry-run")
    assert "nothing was changed; leave out --dry-run to do it" in out
    rows = shell.json("groups", "reject", "g", *AT, "--offset", "1", "--offset", "3")
    assert [(row["first"], row["done"], row["gone"]) for row in rows] == [(1, 1, 0), (3, 0, 1)]
    (row,) = shell.json("groups", "now", "g", *AT, "--offset", "0-9")
    assert (row["done"], row["not_held"], row["gone"]) == (1, 6, 3)
    (part,) = shell.json("groups", "browse", "g")
    assert [(row["first"], row["last"], row["state"]) for row in part["rows"]] == [
        (2, 2, "available"),
        (3, 3, "acknowledged"),
        (4, 5, "available"),
    ]


@pytest.mark.parametrize("act", ["release", "reject", "dead-letter", "now"])
@pytest.mark.parametrize("options", [(), ("--json",), ("--dry-run",)])
def test_a_deed_that_nothing_was_done_by_ends_with_status_1_and_says_why(shell, act, options):
    shell.beside(handled)
    shell("groups", "config", "g", "errors.deadletterqueue.topic.name=g.dlq")
    err = shell("groups", act, "g", *AT, "--offset", "99999", *options, code=1)
    assert "nothing was done: 1 are in no state for that" in err or "nothing would be done: 1 are in no" in err


def test_a_dead_letter_needs_a_topic(shell):
    shell.beside(handled)
    err = shell("groups", "dead-letter", "g", *AT, "--offset", "2", code=1)
    assert "set errors.deadletterqueue.topic.name, or reject the records" in err

    shell("groups", "config", "g", "errors.deadletterqueue.topic.name=orders.dlq")
    (row,) = shell.json("groups", "dead-letter", "g", *AT, "--offset", "2")
    assert row["done"] == 1


@pytest.mark.parametrize("text", ["x", "4-2", "-1", "1-", "1,2"])
def test_a_range_that_is_none_is_refused(shell, text):
    assert "--offset" in shell("groups", "release", "g", *AT, "--offset", text, code=2)


def test_of_a_cooperative_group_nothing_can_be_taken_away(shell):
    shell.beside(worked)

    assert "g is a cooperative group" in shell("groups", "release", "g", *AT, "--offset", "0", code=1)
