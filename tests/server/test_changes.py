"""Tests of the changes of all share-partitions, told to watchers: a watcher that asks seldom learns all of them."""

from __future__ import annotations

import asyncio
import random
import uuid
from types import SimpleNamespace

import pytest

from flowshare.client.admin.watching import ShareWatch
from flowshare.log.base import LogOffsets, StorageError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    AlterShareGroupOffsetsRequest,
    DeleteGroupsRequest,
    DeleteTopicRequest,
    DescribeShareGroupOffsetsRequest,
    TopicPartition,
)
from flowshare.protocol.messages.browse import ShareChangesRequest
from flowshare.server.runtime.state import SNAPSHOT, ShareKey
from flowshare.server.share import changes as changes_module
from flowshare.server.share.changes import ENDS_S, Changes
from flowshare.share.records import encode_state
from flowshare.share.types import PartitionState
from flowshare.testing.clock import ManualClock, settle
from tests.server.world import EARLIEST, accept, batch, reject, release, world

pytestmark = pytest.mark.asyncio
GROUPS, TOPICS = ("g", "h"), ("t", "u")


async def ask(w, server="", since=0):
    answer = await w.admin.send(ShareChangesRequest(server=server, since=since))
    assert answer.error is ErrorCode.NONE
    return answer


def watcher(w):
    return ShareWatch(lambda request: w.admin.send(request))


async def described(w):
    """The same by DescribeShareGroupOffsets."""
    found = {}
    for group in GROUPS:
        answer = await w.admin.send(DescribeShareGroupOffsetsRequest(group_id=group, topics=None))
        if answer.error is not ErrorCode.NONE:
            continue
        for one in answer.partitions:
            found[group, one.topic, one.partition] = (
                one.start_offset, one.lag, one.in_flight, one.delayed, one.blocked, one.archiving, one.parked,
                one.oldest_ms,
            )  # fmt: skip
    return found


def told(rows):
    return {
        where: (row.start_offset, row.lag, row.in_flight, row.delayed, row.blocked, row.archiving, row.parked,
                row.oldest_ms)
        for where, row in rows.items()
    }  # fmt: skip


async def quiet(w):
    """Wait until nothing is under way, and the ends of logs are looked at again."""
    await settle()
    await w.clock.advance(changes_module.ENDS_S + 1)
    await settle()


async def test_the_first_answer_is_whole_and_a_later_one_has_what_changed():
    async with world() as w:
        at, m1 = await w.held(10)
        first = await ask(w)
        assert (first.whole, [row.in_flight for row in first.rows]) == (True, [10])
        await w.clock.advance(1.0)
        second = await ask(w, first.server, first.version)
        assert (second.whole, second.rows, second.gone) == (False, (), ())
        await m1.acknowledge({at: [accept(0, 3)]})
        await w.clock.advance(1.0)
        third = await ask(w, first.server, first.version)
        assert [(row.start_offset, row.in_flight, row.lag) for row in third.rows] == [(4, 6, 6)]
        assert third.version > second.version


async def test_however_many_ask_it_is_looked_once_in_half_a_second(monkeypatch):
    async with world() as w:
        await w.held(3)
        first = await ask(w)
        await w.produce(5)
        again = await ask(w, first.server, first.version)
        assert again.version == first.version
        await w.clock.advance(changes_module.FRESH_S)
        assert (await ask(w, first.server, first.version)).rows[0].log_end == 8


@pytest.mark.parametrize(("server", "since"), [("", 7), ("another", 1), ("mine", 10**9), ("mine", -1)])
async def test_who_asks_another_server_or_from_a_version_that_cannot_be_is_told_all(server, since):
    async with world() as w:
        await w.held(3)
        mine = (await ask(w)).server
        answer = await ask(w, mine if server == "mine" else server, since)
        assert (answer.whole, len(answer.rows)) == (True, 1)


async def test_a_server_that_was_started_anew_tells_all():
    async with world() as w:
        at, m1 = await w.held(10, joined=True)
        await m1.acknowledge({at: [accept(0, 3)]})
        watch = watcher(w)
        await watch.look()
        await w.restart()
        await w.clock.advance(1.0)

        assert {where: (row.start_offset, row.lag) for where, row in (await watch.look()).items()} == {
            ("g", "t", 0): (4, 6)
        }


async def test_what_is_not_loaded_is_told_as_it_is_stored_and_stays_unloaded():
    async with world() as w:
        at, m1 = await w.held(10, joined=True)
        await m1.acknowledge({at: [accept(0, 3), release(5, delay_ms=60_000)]})
        await w.die()
        watch = watcher(w)

        (row,) = (await watch.look()).values()

        assert (row.start_offset, row.lag, row.log_end) == (4, 6, 10)
        assert w.server.share.partitions.owners() == []
        await w.produce(7)
        await quiet(w)
        (row,) = (await watch.look()).values()
        assert (row.lag, row.log_end) == (13, 17)
        assert w.server.share.partitions.owners() == []


async def test_what_is_not_loaded_is_told_with_the_age_of_its_first_record_and_what_is_delayed():
    async with world() as w:
        at, m1 = await w.held(10, joined=True)
        await m1.acknowledge({at: [accept(0, 3), release(5, delay_ms=60_000)]})
        await w.die()
        watch = watcher(w)
        await watch.look()
        await quiet(w)

        assert told(await watch.look()) == await described(w)


async def test_a_group_that_is_deleted_and_a_topic_that_is_are_gone():
    async with world() as w:
        _at, _m1 = await w.held(10, joined=True)
        watch = watcher(w)
        assert await watch.look()
        await w.admin.send(DeleteTopicRequest(name="t"))
        await quiet(w)

        assert await watch.look() == {}


async def test_a_topic_that_is_made_anew_under_its_name_is_told_by_its_name():
    async with world() as w:
        await w.held(10, joined=True)
        watch, seldom = watcher(w), watcher(w)
        await watch.look()
        await seldom.look()
        await w.admin.send(DeleteTopicRequest(name="t"))
        (at,) = await w.logs(4)
        m2 = w.member("m2")
        await m2.heartbeat("t")
        await m2.fetch(at)
        for _ in range(3):
            await w.clock.advance(1.0)
            assert {where: row.lag for where, row in (await watch.look()).items()} == {("g", "t", 0): 4}
        assert await seldom.look() == await watch.look()


async def test_names_of_gone_ones_are_bounded_and_who_missed_them_is_told_all(monkeypatch):
    monkeypatch.setattr(changes_module, "GONE_MAX", 2)
    async with world() as w:
        at = await w.logs(*[1] * 6)
        m1 = w.member("m1")
        await m1.heartbeat("t")
        await m1.fetch(*at)
        first = await ask(w)
        assert len(first.rows) == 6
        await w.admin.send(DeleteTopicRequest(name="t"))
        await quiet(w)
        answer = await ask(w, first.server, first.version)
        assert (answer.whole, answer.rows) == (True, ())
        later = await ask(w, answer.server, answer.version)
        assert (later.whole, later.gone) == (False, ())


class Stand:
    """Stands for what a server leads: names and ids of topics, all of one partition, with state that is stored."""

    def __init__(self, clock):
        self.topics, self.ends = {}, {}
        self.failing = False
        self.changes = Changes(self, self, self, clock)

    def all_known(self):
        return [ShareKey("g", one, 0) for one in self.topics]

    def take_renewed(self):
        return set()

    def get(self, _key):
        return None

    def by_id(self, topic_id):
        return SimpleNamespace(name=self.topics[topic_id]) if topic_id in self.topics else None

    async def scan(self, prefix):
        return [(prefix + SNAPSHOT, encode_state(PartitionState(start_offset=0)))]

    def offsets(self, name, _partition):
        return LogOffsets(log_start=0, high_watermark=self.ends.get(name, 5), last_stable=5)

    async def bounds(self, name, partition):
        return self.offsets(name, partition)

    async def read(self, *_, **__):
        if self.failing:
            raise StorageError("the disk is slow")
        return SimpleNamespace(records=batch(5, timestamp_ms=7_000))


OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)


async def test_of_two_by_one_name_the_newest_counts_and_the_end_of_the_other_takes_nothing_away():
    clock = ManualClock()
    stand = Stand(clock)
    stand.topics = {OLD: "t"}
    seldom = ShareWatch(lambda request: stand.changes.since(request.server, request.since))
    await seldom.look()
    stand.topics = {OLD: "t", NEW: "t"}
    stand.ends["t"] = 9
    await clock.advance(ENDS_S)
    # The old one's topic is not known any more, but what is stored of it is not forgotten yet.
    stand.by_id = lambda topic_id: SimpleNamespace(name="t") if topic_id == NEW else None

    async def seen(watch):
        return {where: row.log_end for where, row in (await watch.look()).items()}

    watch = ShareWatch(lambda request: stand.changes.since(request.server, request.since))
    assert await seen(watch) == {("g", "t", 0): 9}
    assert await seen(seldom) == {("g", "t", 0): 9}
    stand.topics = {NEW: "t"}
    await clock.advance(1.0)
    assert await seen(watch) == {("g", "t", 0): 9}
    assert await seen(seldom) == {("g", "t", 0): 9}


async def test_an_age_that_could_not_be_read_is_read_with_the_next_ends():
    clock = ManualClock()
    stand = Stand(clock)
    stand.topics, stand.failing = {OLD: "t"}, True
    watch = ShareWatch(lambda request: stand.changes.since(request.server, request.since))
    assert [row.oldest_ms for row in (await watch.look()).values()] == [-1]
    stand.failing = False
    await clock.advance(1.0)
    assert [row.oldest_ms for row in (await watch.look()).values()] == [-1]
    await clock.advance(ENDS_S)
    assert [row.oldest_ms for row in (await watch.look()).values()] == [7_000]


async def test_ages_of_very_many_are_read_in_turns(monkeypatch):
    monkeypatch.setattr(changes_module, "AGES_MAX", 3)
    clock = ManualClock()
    stand = Stand(clock)
    stand.topics = {uuid.UUID(int=number): f"t{number}" for number in range(8)}
    watch = ShareWatch(lambda request: stand.changes.since(request.server, request.since))
    known = []
    for _ in range(3):
        known.append(sum(row.oldest_ms == 7_000 for row in (await watch.look()).values()))
        await clock.advance(ENDS_S)
    assert known == [3, 6, 8]


async def test_who_asks_together_waits_for_one_look_and_a_look_that_fails_is_made_again():
    clock = ManualClock()
    stand = Stand(clock)
    stand.topics = {OLD: "t"}
    looks = []

    def known():
        looks.append(1)
        if len(looks) == 1:
            raise RuntimeError("as asked")
        return [ShareKey("g", OLD, 0)]

    stand.all_known = known
    first = await asyncio.gather(*(stand.changes.since("", 0) for _ in range(5)), return_exceptions=True)
    assert {type(one) for one in first} == {RuntimeError}
    answers = await asyncio.gather(*(stand.changes.since("", 0) for _ in range(5)))
    assert (len(looks), {len(one.rows) for one in answers}) == (2, {1})


class Model:
    """Random traffic on two groups and two topics, and watchers that look more or less often."""

    def __init__(self, w, rng):
        self.w, self.rng = w, rng
        self.members = {}
        self.watchers = [(watcher(w), often) for often in (1.0, 0.3, 0.05)]

    async def topic(self):
        name = self.rng.choice(TOPICS)
        if self.w.server.share.topics.by_name(name) is None:
            await self.w.topic(name, partitions=2)
        return name

    async def produce(self):
        await self.w.produce(self.rng.randrange(1, 9), topic=await self.topic(), partition=self.rng.randrange(2))

    async def fetch(self):
        name, group = await self.topic(), self.rng.choice(GROUPS)
        found = self.w.server.share.topics.by_name(name)
        at = TopicPartition(found.topic_id, self.rng.randrange(2))
        member = self.w.member(f"m{self.rng.getrandbits(60)}", group)
        await member.heartbeat(*TOPICS)
        answer = await member.fetch(at, max_records=self.rng.randrange(1, 20))
        for part in getattr(answer, "partitions", ()):
            for one in part.acquired:
                self.members.setdefault(member, []).append((at, one[0], one[1]))

    async def acknowledge(self):
        if not self.members:
            return
        member = self.rng.choice(list(self.members))
        held = self.members[member]
        at, first, last = held.pop(self.rng.randrange(len(held)))
        if not held:
            del self.members[member]
        offset = self.rng.randrange(first, last + 1)
        kind = self.rng.choice((accept, accept, reject, release))
        more = {"delay_ms": self.rng.choice((0, 3_000, 90_000))} if kind is release else {}
        await member.acknowledge({at: [kind(first, offset, **more)]})
        if offset < last and self.rng.random() < 0.5 and held is not None:
            self.members.setdefault(member, []).append((at, offset + 1, last))

    async def time(self):
        await self.w.clock.advance(self.rng.choice((0.1, 0.6, 6.0, 40.0)))

    async def leave(self):
        if self.members:
            member = self.rng.choice(list(self.members))
            del self.members[member]
            await member.connection.close()

    async def unload(self):
        self.w.server.share.partitions.drop_idle(self.rng.choice(GROUPS))

    async def restart(self):
        self.members.clear()
        await (self.w.restart() if self.rng.random() < 0.5 else self.w.die())

    async def delete(self):
        await self.w.admin.send(DeleteTopicRequest(name=self.rng.choice(TOPICS)))

    async def delete_group(self):
        await self.w.admin.send(DeleteGroupsRequest(group_ids=(self.rng.choice(GROUPS),)))

    async def reset(self):
        name = await self.topic()
        await self.w.admin.send(
            AlterShareGroupOffsetsRequest(group_id=self.rng.choice(GROUPS), offsets={(name, 0): self.rng.randrange(5)})
        )

    async def look(self):
        for watch, often in self.watchers:
            if self.rng.random() < often:
                await watch.look()

    async def step(self):
        steps = (
            *[self.produce] * 4, *[self.fetch] * 5, *[self.acknowledge] * 6, *[self.time] * 4, self.leave, self.unload,
            self.unload,
            *([self.restart, self.delete, self.delete_group, self.reset] if self.rng.random() < 0.4 else []),
        )  # fmt: skip
        chosen = self.rng.choice(steps)
        await chosen()
        return chosen.__name__


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
async def test_all_who_watch_know_what_is_so_whatever_happened(seed):
    rng, steps = random.Random(seed), []
    async with world() as w:
        await w.configure(EARLIEST, "h")
        model = Model(w, rng)
        for _ in range(120):
            steps.append(await model.step())
            await model.look()
            if rng.random() < 0.1:
                whole = await watcher(w).look()  # of the same look, as time stands still
                assert await model.watchers[0][0].look() == whole, (seed, steps[-20:])
        await quiet(w)
        for watch, _ in model.watchers:
            await watch.look()
        await quiet(w)
        whole = await watcher(w).look()
        for watch, _ in model.watchers:
            assert await watch.look() == whole, (seed, steps[-20:])
        assert told(whole) == await described(w), (seed, steps[-20:])
