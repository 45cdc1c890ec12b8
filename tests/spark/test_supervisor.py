"""Tests of the figures that the supervisor of pipelines takes over from the progress of their queries."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from flowshare.client.errors import ServerError
from flowshare.clock import LoopClock
from flowshare.protocol.errors import ErrorCode
from flowshare.spark.pipeline.supervisor import (
    LEFT_S,
    ONCE_TRIES,
    WELL_S,
    PipelineFigures,
    PipelineSupervisor,
    _Running,
)
from flowshare.spark.sessions import kill_after
from flowshare.spark.source.ranges import Offset
from flowshare.testing import ManualClock


@pytest.fixture
def running():
    return _Running(pipeline=SimpleNamespace(), figures=PipelineFigures(name="etl", group="g"))


@pytest.fixture
def note(running):
    supervisor = PipelineSupervisor.__new__(PipelineSupervisor)

    def note(run, *said):
        supervisor._note_troubles(running, run, [{"latestOffset": one} for one in said])

    return note


def test_what_a_source_lost_is_in_the_figures_and_in_the_log_once(note, running, caplog):
    with caplog.at_level(logging.ERROR, "flowshare.pipeline"):
        for lost in (0, 5, 5, 7):
            note("run", json.dumps({"records_lost": lost, "locks_lost": 0}))

    assert running.figures.records_lost == 7
    assert [record.args[2] for record in caplog.records] == [5, 2]


def test_a_source_that_was_started_again_counts_from_zero(note, running):
    note("one", {"locks_lost": 3})
    note("two", {"locks_lost": 2})

    assert running.figures.locks_lost == 5


@pytest.mark.parametrize("said", [None, "", "no json", "[]", '{"records_lost": "many"}', {"other": 1}])
def test_sources_of_others_report_no_troubles(note, running, said):
    note("run", said)

    assert running.figures.records_lost == 0


class Group:
    """The group's members, one list a look."""

    def __init__(self, *looks):
        self.looks = list(looks)
        self.count = 0

    async def describe_group(self, _):
        self.count += 1
        members = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if isinstance(members, Exception):
            raise members
        return SimpleNamespace(members=[SimpleNamespace(member_id=one) for one in members])


class Clock:
    """Time passes while one sleeps, and the checkpoint is read in a thread."""

    now_s = 0.0
    until_s = math.inf

    async def sleep(self, seconds):
        self.now_s += seconds
        if self.now_s >= self.until_s:
            raise TimeoutError

    async def wait_for(self, awaitable, timeout_s):
        self.until_s = self.now_s + timeout_s
        return await awaitable


def see_left(group, folder):
    """How long the supervisor waits for the query whose checkpoint is there."""
    supervisor = PipelineSupervisor.__new__(PipelineSupervisor)
    running = _Running(pipeline=SimpleNamespace(), figures=PipelineFigures(name="etl", group="g"))
    running.place = f"file:{folder}"

    supervisor._clock = clock = Clock()
    asyncio.run(supervisor._see_left(running, group))
    return clock.now_s


@pytest.fixture
def checkpoint(tmp_path):
    """Of a query whose source is member `mine`."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text("v1\n{}\n" + json.dumps(Offset(number=4, member="mine").to_json()))
    return tmp_path


def test_the_process_waits_until_its_sources_have_left(checkpoint):
    group = Group(["mine", "others"], ["mine", "others"], ["others"])

    assert see_left(group, checkpoint) < 1
    assert group.count == 3


def test_a_source_that_never_leaves_is_waited_for_for_a_while_and_told_of(checkpoint, caplog):
    with caplog.at_level(logging.WARNING, "flowshare.pipeline"):
        assert see_left(Group(["mine"]), checkpoint) == pytest.approx(LEFT_S, abs=0.1)

    assert "has not left group g" in caplog.text


@pytest.mark.parametrize("error", [ConnectionError("away"), ServerError(ErrorCode.GROUP_ID_NOT_FOUND)])
def test_nobody_is_waited_for_in_a_group_that_cannot_be_asked(checkpoint, error):
    assert see_left(Group(error), checkpoint) == 0


def test_a_query_that_never_ran_is_not_waited_for(tmp_path):
    assert see_left(Group(["others"]), tmp_path) == 0


@pytest.fixture
def tell(running):
    """Function that logs the state of a pipeline whose group answers with `group_offsets`."""

    def tell(group_offsets):
        supervisor = PipelineSupervisor.__new__(PipelineSupervisor)
        running.pipeline.topics = ("orders",)
        supervisor._running, supervisor._clock = [running], LoopClock()
        asyncio.run(supervisor._tell(SimpleNamespace(group_offsets=group_offsets)))

    return tell


def test_a_group_that_does_not_say_its_backlog_is_not_waited_for(caplog, tell, running, monkeypatch):
    """Else a broker that stands still would hold up a stop for as long as it does."""
    monkeypatch.setattr("flowshare.spark.pipeline.supervisor.BACKLOG_S", 0.0)
    running.figures.backlog = 7
    with caplog.at_level(logging.INFO, "flowshare.pipeline"):
        tell(lambda _: asyncio.Event().wait())

    assert "backlog unknown" in caplog.text


@pytest.mark.parametrize(
    ("lags", "told"), [([], "unknown"), ([-1], "unknown"), ([0, -1], "backlog 0"), ([7, 5], "backlog 12")]
)
def test_a_backlog_that_nobody_knows_yet_is_not_told_as_none(caplog, tell, lags, told):
    async def group_offsets(_):
        return [SimpleNamespace(topic="orders", lag=lag) for lag in lags]

    with caplog.at_level(logging.INFO, "flowshare.pipeline"):
        tell(group_offsets)

    assert told in caplog.text


class Failing:
    """A query that runs at the first look, and has failed at the second."""

    def __init__(self):
        self.looks = 0
        self.recentProgress = ()

    @property
    def isActive(self):  # noqa: N802 - Spark's name
        self.looks += 1
        return self.looks == 1

    def exception(self):
        return RuntimeError("the sink is full")


@pytest.mark.asyncio
@pytest.mark.parametrize(("once", "begun"), [(True, ONCE_TRIES), (False, 5)])
async def test_a_run_of_the_present_records_is_given_up_after_its_tries_however_long_each_lasts(
    running, monkeypatch, once, begun
):
    supervisor, clock, queries = PipelineSupervisor.__new__(PipelineSupervisor), ManualClock(), []
    supervisor._clock, supervisor._once = clock, once

    def start(_one):
        queries.append(Failing())
        return queries[-1]

    monkeypatch.setattr(supervisor, "_start", start)
    for _ in range(3 * 5):  # it begins, runs, and has failed
        await supervisor._look_after(running)
        await clock.advance(WELL_S)

    assert len(queries) == begun
    assert (running.figures.state == "failed") is once
    assert running.in_a_row <= 1


def timed_out():
    raise RuntimeError("Stream Execution thread for stream did not stop within 60000 milliseconds")


class Lost:
    """A query whose JVM is killed while it is asked."""

    @property
    def isActive(self):  # noqa: N802 - Spark's name
        raise ConnectionError("Error while sending or receiving")


@pytest.mark.parametrize("query", [SimpleNamespace(isActive=True, status={}, stop=timed_out), Lost()])
def test_a_query_that_does_not_end_is_told_and_holds_up_no_stop(running, caplog, query):
    supervisor = PipelineSupervisor.__new__(PipelineSupervisor)
    scala = SimpleNamespace(isStopped=lambda: False)
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: scala))
    supervisor._spark, supervisor._clock = SimpleNamespace(sparkContext=context), ManualClock()
    running.query = query

    supervisor._end(running)

    assert running.figures.state == "stopped"
    assert "pipeline=etl: its query does not end" in caplog.text


def test_a_spark_that_does_not_end_is_killed_with_a_word(caplog):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as jvm:
        spark = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=jvm)))
        kill_after(spark, 0.0).join()
        code = jvm.wait()

    assert code == -signal.SIGKILL
    assert "Spark has not ended within 0 s and is killed" in caplog.text


def test_a_spark_that_ended_in_time_or_that_others_started_is_not_killed(caplog):
    with subprocess.Popen([sys.executable, "-c", ""]) as jvm:
        jvm.wait()
        for gateway in (SimpleNamespace(proc=jvm), SimpleNamespace()):
            kill_after(SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway)), 0.0).join()

    assert not caplog.text
