"""The sweep that removes expired offsets, in slices, while groups go on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

from flowshare.groups.expiry import expired
from flowshare.groups.offsets import Committed, OffsetChange, OffsetPartition
from flowshare.server.groups import sweep
from flowshare.server.groups.store import GROUPS
from flowshare.server.runtime.turns import TURN
from tests.server.classic_world import NONE, R_S, refuse, world

pytestmark = pytest.mark.asyncio


async def test_scenario_02_expired_offsets_go_at_a_sweep_and_the_group_with_them() -> None:
    async with world() as w:
        one = await w.stable()
        await w.commit(member_id=one, generation=1)
        await w.leave(one)
        await w.clock.advance(R_S - 1.5)
        assert await w.committed() == {("t", 0): 5}
        await w.clock.advance(3.0)
        assert await w.committed() == {}
        assert await w.groups() == {}
        assert not await w.storage.scan(GROUPS)


async def test_scenario_17_a_restart_does_not_start_the_time_of_an_empty_group_anew() -> None:
    async with world() as w:
        one = await w.stable()
        await w.commit(member_id=one, generation=1)
        await w.clock.advance(5.0)
        await w.leave(one)
        await w.clock.advance(R_S / 2)
        await w.restart()
        await w.clock.advance(R_S / 2 - 1.5)
        assert await w.committed() == {("t", 0): 5}
        await w.clock.advance(3.0)
        assert await w.committed() == {}


async def test_a_sweep_that_cannot_write_is_done_again() -> None:
    async with world() as w:
        await w.commit()
        w.storage.before_write = refuse
        await w.clock.advance(R_S + 2)
        assert await w.committed() == {("t", 0): 5}
        w.storage.before_write = None
        await w.clock.advance(2.0)
        assert await w.committed() == {}


async def test_a_sweep_that_fails_at_one_group_goes_on_with_the_others(monkeypatch, caplog) -> None:
    def failing(group, offsets, partitions, **more):
        if group.group_id == "g":
            raise RuntimeError("injected")
        return expired(group, offsets, partitions, **more)

    monkeypatch.setattr("flowshare.server.groups.sweep.expired", failing)
    async with world() as w:
        await w.commit()
        await w.commit(group="h")
        await w.clock.advance(R_S + 2)
        assert await w.committed("h") == {}
        monkeypatch.undo()
        await w.clock.advance(2.0)
        assert await w.committed() == {}
        assert "RuntimeError: injected" in caplog.text


def fill(w, group, count, *, age_s=R_S):
    """A group with so many offsets, committed so long ago."""
    entry = w.server.classic.ensure(group)
    topic_id = w.server.topics.by_name("t").topic_id
    value = Committed(offset=5, commit_ms=w.clock.now_ms() - round(age_s * 1000), topic_id=topic_id)
    entry.offsets.apply(OffsetChange(OffsetPartition("t", number), value) for number in range(count))
    return entry.offsets


async def steps_while(task, look):
    """Return the decreases of `look`'s value, one for each turn that other tasks get, until the task is done."""
    seen = [look()]
    while not task.done():
        await asyncio.sleep(0)
        seen.append(look())
    return [before - after for before, after in pairwise(seen)]


async def begun(offsets):
    """A sweep has removed some."""
    while len(offsets.committed) == 4 * TURN:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)


async def test_a_sweep_lets_others_run_after_every_few_of_a_groups_offsets() -> None:
    async with world() as w:
        offsets = fill(w, "g", 4 * TURN)

        steps = await steps_while(asyncio.ensure_future(sweep.once(w.server.classic)), lambda: len(offsets.committed))

        assert sum(steps) == 4 * TURN
        assert max(steps) <= TURN
        assert await w.groups() == {}


async def test_a_sweep_lets_others_run_after_every_few_groups() -> None:
    async with world() as w:
        for number in range(3 * TURN):
            fill(w, f"g{number}", 1, age_s=0)

        rounds = await steps_while(asyncio.ensure_future(sweep.once(w.server.classic)), lambda: 0)

        assert len(rounds) > 3
        assert len(await w.groups()) == 3 * TURN


async def test_what_is_committed_while_a_sweep_is_under_way_stays() -> None:
    async with world() as w:
        offsets = fill(w, "g", 4 * TURN)
        sweeping = asyncio.ensure_future(sweep.once(w.server.classic))
        await begun(offsets)

        assert await w.commit(7, partition=1) is NONE
        entry = w.server.classic.find("g")
        kept = replace(offsets.committed[OffsetPartition("t", 4 * TURN - 1)], offset=7, commit_ms=w.clock.now_ms())
        entry.offsets.apply([OffsetChange(OffsetPartition("t", 4 * TURN - 1), kept)])
        await sweeping

        assert await w.committed() == {("t", 1): 7, ("t", 4 * TURN - 1): 7}


async def test_a_group_made_again_while_a_sweep_is_under_way_keeps_its_offsets() -> None:
    async with world() as w:
        offsets = fill(w, "g", 4 * TURN)
        sweeping = asyncio.ensure_future(sweep.once(w.server.classic))
        await begun(offsets)

        assert await w.delete() is NONE
        assert await w.commit(7, partition=1) is NONE
        await sweeping

        assert await w.committed() == {("t", 1): 7}
