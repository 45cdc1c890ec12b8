"""`flowshare groups` and `flowshare lag` on cooperative groups, on a log in memory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flowshare.cli.output import TERMINAL
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.cooperative.consumer import CooperativeConsumer
from flowshare.client.errors import ServerError
from flowshare.client.producer.producer import Message, Producer
from flowshare.clock import LoopClock
from flowshare.cooperative.types import HASHES
from flowshare.ops.groups import patiently
from flowshare.protocol.errors import ErrorCode
from flowshare.testing import virtual
from flowshare.testing.clock import LoopTimeClock
from tests.cli.test_commands import Shell


@pytest.fixture
def shell(capsys, monkeypatch):
    return Shell(capsys, monkeypatch)


async def worked(connect, *, stays: bool = False) -> CooperativeConsumer:
    """A group `g` that has finished two of three records, the first one not."""
    producer = Producer(connect, clock=LoopClock())
    await producer.send_many("orders", [Message(b"1", key=key, partition=0) for key in (b"a", b"b", b"c")])
    await producer.close()
    consumer = CooperativeConsumer(connect, group_id="g", clock=LoopClock())
    consumer.subscribe(["orders"])
    seen = 0
    while seen < 3:
        for record in await consumer.poll(5.0):
            seen += 1
            if record.offset:
                consumer.commit(record)
    await consumer.commit_sync()
    if not stays:
        await consumer.close()
    return consumer


def test_a_cooperative_group_is_listed_described_and_measured(shell):
    shell.beside(worked)

    assert shell.json("groups", "ls") == [{"group": "g", "kind": "cooperative", "state": "Empty"}]
    facts = shell.json("groups", "describe", "g")
    (row,) = facts["offsets"]
    assert facts["kind"] == "cooperative"
    assert facts["members"] == facts["claims"] == facts["waits"] == []
    found = {name: row[name] for name in ("start_offset", "backlog", "committed_ranges", "furthest", "holders")}
    assert found == {"start_offset": 0, "backlog": 1, "committed_ranges": 1, "furthest": 3, "holders": 0}
    assert "cooperative group g: Empty, 0 members" in shell("groups", "describe", "g")
    assert shell.json("groups", "members", "g") == []
    (lag,) = shell.json("lag", "--group", "g")
    assert (lag["topic"], lag["backlog"], lag["in_flight"]) == ("orders", 1, None)


def test_a_reset_and_deletions_work_on_a_cooperative_group_without_members(shell):
    shell.beside(worked)

    planned = shell.json("groups", "reset-offsets", "g", "--to-latest")
    assert planned == [{"topic": "orders", "partition": 0, "from": 0, "to": 3}]
    assert shell.json("lag")[0]["backlog"] == 1
    shell("groups", "reset-offsets", "g", "--to-latest", "--execute")
    assert shell.json("lag")[0]["backlog"] == 0
    shell("groups", "reset-offsets", "g", "--to-offset", "1", "--execute")
    (row,) = shell.json("groups", "describe", "g")["offsets"]
    assert (row["start_offset"], row["committed_ranges"], row["backlog"]) == (1, 0, 2)

    assert "nothing committed in others" in shell("groups", "delete-offsets", "g", "--topic", "others", code=1)
    assert "no position any more in orders" in shell("groups", "delete-offsets", "g", "--topic", "orders")
    assert shell.json("groups", "ls") == []

    shell.beside(worked)
    assert shell("groups", "delete", "g", "--yes") == "deleted cooperative group g\n"
    assert shell.json("groups", "ls") == shell.json("lag") == []


def test_what_does_not_fit_a_cooperative_group_says_so(shell):
    shell.beside(worked)

    for command in (("pause", "g"), ("resume", "g")):
        assert "g is a cooperative group: stop its workers, or call `agent.pause()`" in shell(
            "groups", *command, code=1
        )
    assert "g is a cooperative group: it has no settings" in shell("groups", "config", "g", code=1)


def test_a_reset_while_members_hold_keys_is_refused_with_what_to_do(shell):
    async def refused(connect):
        admin = ShareAdmin(connect, clock=LoopClock())
        consumer = await worked(connect, stays=True)
        try:
            (part,) = await admin.cooperative.offsets("g")
            assert [(one.first, one.end) for one in part.claims] == [(0, HASHES)]
            described = await admin.cooperative.describe("g")
            assert [one.assignment for one in described.members] == [{"orders": [0]}]
            with pytest.raises(Exception, match="stop the group's workers and try again") as reset:
                await admin.cooperative.reset("g", to="earliest")
            assert part.claims[0].member_id in str(reset.value)
            with pytest.raises(Exception, match="stop the group's workers and try again"):
                await admin.cooperative.delete("g")
        finally:
            await consumer.close()
            await admin.close()

    shell.beside(refused)


def test_partitions_are_not_added_to_a_topic_that_a_cooperative_group_reads_without_being_told_to(shell):
    shell.beside(worked)

    err = shell("topics", "grow", "orders", "-p", "2", code=1)
    assert "in the order of keys by g (share.key.order, or a cooperative group)" in err
    assert shell("topics", "grow", "orders", "-p", "2", "--breaks-order") == "topic orders has 2 partitions\n"


@pytest.mark.parametrize("leads", [True, False])
def test_a_command_that_leads_waits_for_the_leases_of_the_dead_and_another_one_says_so_at_once(leads, capsys):
    asked = 0

    async def call() -> str:
        nonlocal asked
        asked += 1
        if asked < 4:
            raise ServerError(ErrorCode.NON_EMPTY_GROUP, "stop the group's workers")
        return "done"

    async def main() -> str:
        return await patiently(SimpleNamespace(clock=LoopTimeClock(), leads=leads, reporter=TERMINAL), call)

    if leads:
        assert virtual.run(main()) == "done"
        assert capsys.readouterr().err.count("waiting until their leases end") == 1
    else:
        with pytest.raises(ServerError, match="stop the group's workers"):
            virtual.run(main())
        assert asked == 1
