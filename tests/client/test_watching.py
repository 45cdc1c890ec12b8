"""Who watches all share-partitions of a fleet: each worker is asked for what changed, and one of them may be gone."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.client.admin.watching import NODE_S, WHOLE_EVERY, ShareWatch
from flowshare.client.errors import ConnectionLost, ServerError, Unsupported
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.browse import ShareChangesResponse, Standing
from flowshare.testing.virtual import run


class Fleet:
    """Workers that answer by what they lead: rows by node."""

    def __init__(self, **rows):
        self.rows = {int(node[1:]): dict(told) for node, told in rows.items()}
        self.version = dict.fromkeys(self.rows, 1)
        self.asked = []
        self.away = {}

    async def ask(self, request):
        self.asked.append((request.node, request.server, request.since))
        node = min(self.rows) if request.node < 0 else request.node
        error = self.away.get(node)
        if error == "never":
            await asyncio.Event().wait()
        if error is not None:
            raise error
        whole = request.server != f"s{node}"
        rows = tuple(Standing("g", name, 0, start_offset=start, lag=1) for name, start in self.rows[node].items())
        return ShareChangesResponse(
            server=f"s{node}", version=self.version[node], whole=whole, rows=rows, node=node, nodes=tuple(self.rows)
        )

    def watch(self):
        return ShareWatch(self.ask)


async def seen(watch):
    return {where[1]: row.start_offset for where, row in (await watch.look()).items()}


def test_all_workers_are_asked_and_each_goes_on_from_its_last_answer():
    async def scenario():
        fleet = Fleet(n1={"a": 1}, n2={"b": 2}, n3={})
        watch = fleet.watch()
        assert await seen(watch) == {"a": 1, "b": 2}
        first, fleet.asked = fleet.asked, []
        assert await seen(watch) == {"a": 1, "b": 2}
        assert watch.led() == {1: 1, 2: 1, 3: 0}
        return first, fleet.asked

    first, second = run(scenario())
    assert first == [(-1, "", 0), (2, "", 0), (3, "", 0)]
    assert second == [(1, "s1", 1), (2, "s2", 1), (3, "s3", 1)]


@pytest.mark.parametrize(
    "error", ["never", ConnectionLost("gone"), OSError("refused")], ids=["hangs", "lost", "refused"]
)
def test_those_of_a_worker_that_does_not_answer_are_told_as_they_were_and_hold_up_nobody(error):
    async def scenario():
        fleet = Fleet(n1={"a": 1}, n2={"b": 2}, n3={"c": 3})
        watch = fleet.watch()
        await watch.look()
        fleet.away[2] = error
        fleet.rows[1]["a"], fleet.rows[3]["c"] = 10, 30
        begun_s = asyncio.get_running_loop().time()
        found = await seen(watch)
        took_s = asyncio.get_running_loop().time() - begun_s
        fleet.away.clear()
        fleet.rows[2]["b"] = 20
        return found, took_s, await seen(watch)

    found, took_s, later = run(scenario())
    assert found == {"a": 10, "b": 2, "c": 30}
    assert took_s == (NODE_S if error == "never" else 0)
    assert later == {"a": 10, "b": 20, "c": 30}


def test_many_that_hang_take_no_longer_than_one():
    async def scenario():
        fleet = Fleet(**{f"n{number}": {f"t{number}": number} for number in range(1, 20)})
        watch = fleet.watch()
        await watch.look()
        fleet.away = dict.fromkeys(range(2, 20), "never")
        begun_s = asyncio.get_running_loop().time()
        assert len(await watch.look()) == 19
        return asyncio.get_running_loop().time() - begun_s

    assert run(scenario()) == NODE_S


def test_where_nobody_answers_that_is_an_error_and_whoever_there_is_now_is_asked_next():
    async def scenario():
        fleet = Fleet(n1={"a": 1}, n2={"b": 2})
        watch = fleet.watch()
        await watch.look()
        fleet.away = {1: "never", 2: ConnectionLost("gone")}
        with pytest.raises((TimeoutError, ConnectionLost)):
            await watch.look()
        fleet.rows, fleet.version, fleet.away, fleet.asked = {7: {"c": 3}, 8: {}}, {7: 1, 8: 1}, {}, []
        return await seen(watch), fleet.asked

    found, asked = run(scenario())
    assert found == {"c": 3}
    assert asked == [(-1, "", 0), (8, "", 0)]


@pytest.mark.parametrize("error", [Unsupported("no such call"), ServerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)])
def test_what_the_server_refuses_is_told(error):
    async def scenario():
        fleet = Fleet(n1={})
        fleet.away[1] = error
        with pytest.raises(type(error)):
            await fleet.watch().look()

    run(scenario())


def test_workers_that_have_left_the_fleet_take_their_share_partitions_with_them():
    async def scenario():
        fleet = Fleet(n1={"a": 1}, n2={"b": 2})
        watch = fleet.watch()
        await watch.look()
        del fleet.rows[2]
        fleet.rows[3] = {"b": 5}
        fleet.version[3] = 1
        fleet.away[2] = ConnectionLost("gone")
        return await seen(watch), watch.led()

    assert run(scenario()) == ({"a": 1, "b": 5}, {1: 1, 3: 1})


def test_of_two_that_tell_of_one_the_one_that_has_got_on_further_is_right():
    async def scenario():
        fleet = Fleet(n1={"a": 5}, n2={"a": 9})
        return await seen(fleet.watch())

    assert run(scenario()) == {"a": 9}


def test_rights_that_change_show_within_a_minute_of_looks():
    async def scenario():
        fleet = Fleet(n1={"a": 1, "b": 2})
        watch = fleet.watch()
        await watch.look()
        del fleet.rows[1]["a"]  # it may not be described any more, and has not changed
        fleet.rows[1]["c"] = 3
        return [await seen(watch) for _ in range(WHOLE_EVERY)][-1], fleet.asked

    found, asked = run(scenario())
    assert found == {"b": 2, "c": 3}
    assert [server for _, server, _ in asked].count("") == 2
