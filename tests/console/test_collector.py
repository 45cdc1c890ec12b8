"""The looks at all groups: how often, what is kept when the log is away, and one session for all who ask."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from flowshare.client.errors import ClientError, ConnectionLost, ServerError
from flowshare.console import collector as collector_module
from flowshare.console import source as source_module
from flowshare.console.collector import AWAY_S, LOOK_S, Collector, figures_of
from flowshare.console.source import NotAnswering, Source
from flowshare.console.store import GROUPS, Figures
from flowshare.log.base import StorageHeld
from flowshare.ops import Failure, reading, stall_reason
from flowshare.ops.figures import GroupFigures, TopicFigures
from flowshare.ops.watcher import Snapshot
from flowshare.protocol.errors import ErrorCode
from flowshare.testing.clock import LoopTimeClock, settle
from flowshare.testing.virtual import run
from tests.console.world import Console, pages

ROW = TopicFigures("g", "t", backlog=5, in_flight=1, oldest_age_s=2.4, rate=1.234)


class Kept:
    """A store that remembers what it is given."""

    def __init__(self):
        self.looks = []

    def keep(self, kind, at_s, figures):
        assert kind is GROUPS
        self.looks.append((at_s, dict(figures)))


class Asked(Source):
    """A source whose answers are looks, or errors, each after some seconds."""

    def __init__(self, clock, *answers):
        super().__init__("memory://")
        self.clock, self.answers, self.begun = clock, list(answers), []

    async def ask(self, question, *, limit_s=3.0):
        self.begun.append(self.clock.monotonic())
        took_s, answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        await asyncio.sleep(min(took_s, limit_s))
        if took_s > limit_s:
            raise NotAnswering("the log has not answered")
        if isinstance(answer, Exception):
            raise answer
        return Snapshot(at_ms=self.clock.now_ms(), took_s=took_s, groups=answer, leads=answer is LED)


LED: dict[str, GroupFigures] = {}
G = {"g": GroupFigures(name="g", state="Stable", seen_s=0.0, topics=(ROW,))}


def looked(*answers, seconds=60.0):
    """Run a collector on virtual time, and return the collector, its source and its store."""

    async def scenario(clock):
        source, store = Asked(clock, *answers), Kept()
        made = Collector(source, store, clock)
        made.start()
        await asyncio.sleep(seconds)
        await made.close()
        return made, source, store

    return virtually(scenario)


def virtually(scenario):
    return run(scenario(LoopTimeClock()))


def gaps(source):
    return [round(b - a, 6) for a, b in zip(source.begun, source.begun[1:], strict=False)]


@pytest.mark.parametrize(
    ("took_s", "gap_s"), [(0.0, LOOK_S), (0.1, LOOK_S), (0.5, 2.5), (1.0, 5.0), (2.0, 2 + AWAY_S), (20.0, 20 + AWAY_S)]
)
def test_a_look_that_takes_long_makes_the_next_one_later(took_s, gap_s):
    _, source, _ = looked((took_s, G))

    assert set(gaps(source)) == {gap_s}


def test_who_leads_meanwhile_looks_every_few_seconds():
    _, source, _ = looked((0.1, LED))

    assert set(gaps(source)) == {0.1 + AWAY_S}


@pytest.mark.parametrize(
    "error",
    [
        NotAnswering("the log does not answer"),
        Failure("nothing is stored at /x yet"),
        ServerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        OSError("no route"),
        KeyError("a row without a group"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_fails_is_told_with_the_last_look_and_looked_at_again(error):
    made, source, store = looked((0.0, G), (0.0, error), seconds=30.0)

    assert made.trouble
    assert str(error).strip("'") in made.trouble
    assert made.look.groups == G
    assert len(source.begun) > 4
    assert set(gaps(source)[1:]) == {AWAY_S}
    assert len(store.looks) == 1


def test_what_failed_once_is_told_no_more_after_the_next_look():
    made, _, _ = looked((0.0, NotAnswering("away")), (0.0, G), seconds=20.0)

    assert made.trouble is None
    assert made.look.groups == G


def test_a_log_that_never_answers_is_asked_within_bounds():
    made, source, _ = looked((1e9, G), seconds=200.0)

    assert made.trouble == "the log has not answered"
    assert set(gaps(source)) == {collector_module.LOOK_LIMIT_S + AWAY_S}


def test_what_was_changed_is_looked_at_at_once():
    async def scenario(clock):
        source = Asked(clock, (0.0, LED))
        made = Collector(source, Kept(), clock)
        made.start()
        await asyncio.sleep(1.0)
        made.hurry()
        await asyncio.sleep(0.1)
        await made.close()
        return source.begun

    begun = virtually(scenario)
    assert begun[1] - begun[0] == 1.0


def test_figures_are_sums_over_topics_and_unknown_where_one_is():
    other = ROW._replace(topic="u", backlog=7, in_flight=None, oldest_age_s=None)
    group = GroupFigures(name="g", seen_s=0.0, topics=(ROW, other))

    assert figures_of(group) == Figures(
        backlog=12, delayed=0, blocked=0, oldest_s=2, arriving=0.0, finished=2.47, redelivered=0.0
    )
    assert figures_of(GroupFigures(name="g", seen_s=0.0)).backlog == 0
    assert figures_of(GroupFigures(name="g")) == Figures()


# --- on a log in memory ----------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def unserved(tmp_path, **more):
    made = Console(tmp_path / "c", **more)
    await made.store.open()
    try:
        yield made
    finally:
        await made.close()
        await settle()


@pytest.mark.asyncio
async def test_all_groups_are_seen_with_what_they_do(tmp_path):
    async with unserved(tmp_path) as console:
        await console.topic()
        await console.held()
        await console.ask(lambda admin: admin.alter_group_configs("empty", {"share.max.in.flight": "5"}))
        await console.look()

        line = console.collector.look.groups["g"]
        assert (line.kind, line.state, line.members, line.assigned) == ("share", "Stable", 1, 1)
        assert (line.total.backlog, line.total.in_flight, line.total.delayed) == (4, 3, 1)
        assert not line.paused
        ((_, kept),) = await console.store.figures(GROUPS, "g", 0)
        assert kept.backlog == 4


@pytest.mark.asyncio
async def test_a_group_that_vanishes_is_gone_with_the_next_look(tmp_path):
    async with unserved(tmp_path) as console:
        await console.topic()
        member = await console.group()
        await console.look()
        assert "g" in console.collector.look.groups
        await member.close(timeout_s=0.1)
        await console.ask(lambda admin: admin.delete_group("g"))
        await console.look()

        assert "g" not in console.collector.look.groups


@pytest.mark.asyncio
async def test_what_is_watched_is_what_each_group_says_when_it_is_asked(tmp_path):
    async with unserved(tmp_path) as console:
        await console.topic(partitions=2)
        await console.topic("bills", values=3)
        await console.held()
        await console.held("h", "orders")
        member = await console.group("i", "bills")
        await member.fetch(records_max=2)
        now_ms = console.clock.now_ms() + 10_000

        watched = await console.ask(lambda admin: reading.watched(admin.watch(), now_ms))
        asked = await console.ask(lambda admin: reading.partitions(admin, dict.fromkeys("ghi", "share"), now_ms))

        def named(rows):
            return {(row.group, row.topic, row.partition): row for row in rows}

        assert named(watched) == named(asked)
        assert len(watched) >= 3


@pytest.mark.asyncio
async def test_members_are_asked_for_at_once_when_the_groups_state_has_changed(tmp_path):
    async with unserved(tmp_path) as console:
        await console.topic()
        member = await console.group()
        await console.collector._one()
        assert console.collector.look.groups["g"].members == 1
        await member.close(timeout_s=0.1)
        await console.collector._one()

        line = console.collector.look.groups["g"]
        assert (line.state, line.members) == ("Empty", 0)


IN_HAND = {
    "agent": "bill",
    "group": "g",
    "held": 3,
    "oldest_s": 41.0,
    "exception": "ValueError",
    "message": "iban DE12",
    "raised_s": 2.0,
}


@pytest.mark.parametrize(("masks", "raised"), [((), "ValueError: iban DE12"), (("iban",), "ValueError")])
@pytest.mark.asyncio
async def test_why_a_group_stands_still_names_who_holds_and_what_was_raised(tmp_path, monkeypatch, masks, raised):
    monkeypatch.setattr(stall_reason, "QUIET_S", 0.0)
    async with (
        pages(agents=(200, json.dumps([IN_HAND]).encode())) as worker,
        unserved(tmp_path, addresses=(worker.address,), masks=masks) as console,
    ):
        await console.topic()
        await console.held()
        await console.agents.look()
        await console.look()
        await console.look()
        assert "/agents" not in worker.asked, "nobody is asked before something stands still"
        await console.agents.look()
        assert "/agents" in worker.asked
        await console.look()

        why = console.collector.look.groups["g"].stall
        assert f"in flight: 3 records, all held by worker {worker.address}, the oldest for 41.0 s" in why
        assert console.agents.in_hand["g"].error == raised
        await console.ask(lambda admin: admin.pause_group("g"))
        await console.look()
        await console.agents.look()
        assert console.agents.in_hand == {}


@pytest.mark.asyncio
async def test_letters_of_a_group_are_counted(tmp_path):
    async with unserved(tmp_path) as console:
        await console.topic()
        await console.group()
        await console.topic("g.dlq", values=3)
        await console.look()

        assert console.collector.look.groups["g"].letters == 3


# --- the session -----------------------------------------------------------------------------------------------------


class Session:
    def __init__(self, number, leads):
        self.number, self.leads, self.closed = number, leads, False


class Sessions:
    """Stands for `open_session`: counts what is opened, and what is closed again."""

    def __init__(self, monkeypatch, *, leads=False):
        self.leads, self.made, self.error, self.turn = leads, [], None, None
        monkeypatch.setattr(source_module, "open_session", self)

    @contextlib.asynccontextmanager
    async def __call__(self, _url, *, groups):
        assert groups
        if self.turn is not None:
            await self.turn.wait()
        if self.error is not None:
            raise self.error
        session = Session(len(self.made), self.leads)
        self.made.append(session)
        try:
            yield session
        finally:
            session.closed = True


async def number(session):
    return session.number


@pytest.mark.asyncio
async def test_one_session_serves_all_who_ask(monkeypatch):
    sessions, source = Sessions(monkeypatch), Source("memory://")

    assert await asyncio.gather(*(source.ask(number) for _ in range(20))) == [0] * 20
    assert await source.ask(number) == 0
    await source.close()
    assert [one.closed for one in sessions.made] == [True]


@pytest.mark.asyncio
async def test_one_that_leads_is_let_go_of_as_soon_as_nobody_asks(monkeypatch):
    sessions, source = Sessions(monkeypatch, leads=True), Source("memory://")
    go = asyncio.Event()

    async def waits(session):
        await go.wait()
        return session.closed

    first = asyncio.ensure_future(source.ask(waits))
    await settle()
    await source.ask(number)
    assert not sessions.made[0].closed
    go.set()
    assert not await first
    assert sessions.made[0].closed
    assert await source.ask(number) == 1


@pytest.mark.asyncio
async def test_a_lost_session_is_opened_anew_and_not_closed_a_second_time_by_who_asked_the_old_one(monkeypatch):
    sessions, source = Sessions(monkeypatch), Source("memory://")
    go = asyncio.Event()

    async def fails(_session):
        raise ConnectionLost("gone")

    async def fails_late(_session):
        await go.wait()
        raise ConnectionLost("gone, too")

    late = asyncio.ensure_future(source.ask(fails_late))
    await settle()
    with pytest.raises(NotAnswering, match="does not answer: gone"):
        await source.ask(fails)
    assert await source.ask(number) == 1
    go.set()
    with pytest.raises(NotAnswering):
        await late

    assert await source.ask(number) == 1
    assert [one.closed for one in sessions.made] == [True, False]
    await source.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [ServerError(ErrorCode.GROUP_ID_NOT_FOUND), Failure("it cannot")])
async def test_what_the_log_refuses_is_told_and_closes_nothing(monkeypatch, error):
    sessions, source = Sessions(monkeypatch), Source("memory://")

    async def refused(_session):
        raise error

    with pytest.raises(type(error)):
        await source.ask(refused)
    assert not sessions.made[0].closed
    await source.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [OSError("refused"), ClientError("no"), StorageHeld("held")])
async def test_a_log_that_cannot_be_opened_is_tried_again_with_the_next_question(monkeypatch, error):
    sessions, source = Sessions(monkeypatch), Source("memory://")
    sessions.error = error

    with pytest.raises(NotAnswering):
        await source.ask(number)
    sessions.error = None
    assert await source.ask(number) == 0
    await source.close()


def test_a_broker_that_accepts_and_never_answers_costs_a_page_its_limit_and_no_more(monkeypatch):
    sessions = Sessions(monkeypatch)

    async def scenario(clock):
        sessions.turn = asyncio.Event()
        source = Source("memory://")
        waits = []
        for limit_s in (3.0, 30.0, 3.0):
            begun_s = clock.monotonic()
            with pytest.raises(NotAnswering, match=f"within {limit_s:g} s"):
                await source.ask(number, limit_s=limit_s)
            waits.append(clock.monotonic() - begun_s)
        await asyncio.sleep(source_module.OPEN_S)  # it is given up, and the next question tries again
        sessions.turn.set()
        assert await source.ask(number) == 0
        await source.close()
        return waits

    assert virtually(scenario) == [3.0, 30.0, 3.0]


def test_a_session_that_takes_longer_to_open_than_a_page_waits_is_there_for_the_next_one(monkeypatch):
    sessions = Sessions(monkeypatch)

    async def scenario(_clock):
        sessions.turn = asyncio.Event()
        source = Source("memory://")
        with pytest.raises(NotAnswering):
            await source.ask(number)
        sessions.turn.set()
        await asyncio.sleep(0.1)
        opened = [one.closed for one in sessions.made]
        await source.close()
        return opened

    assert virtually(scenario) == [False]


def test_one_that_leads_and_comes_too_late_is_let_go_of(monkeypatch):
    sessions = Sessions(monkeypatch, leads=True)

    async def scenario(_clock):
        sessions.turn = asyncio.Event()
        source = Source("memory://")
        with pytest.raises(NotAnswering):
            await source.ask(number)
        sessions.turn.set()
        await asyncio.sleep(0.1)
        return [one.closed for one in sessions.made]

    assert virtually(scenario) == [True]


def test_what_is_being_opened_when_the_console_ends_is_given_up(monkeypatch):
    sessions = Sessions(monkeypatch)

    async def scenario(_clock):
        sessions.turn = asyncio.Event()
        source = Source("memory://")
        asking = asyncio.ensure_future(source.ask(number))
        await asyncio.sleep(0.1)
        await source.close()
        await asyncio.gather(asking, return_exceptions=True)
        return asking.cancelled() or isinstance(asking.exception(), NotAnswering), sessions.made

    assert virtually(scenario) == (True, [])
