"""The logic of a fleet on Spark without Spark: jobs are futures, workers are what the test says."""

from __future__ import annotations

import asyncio
import logging
import pickle
import signal
import sys
import zipfile
from contextlib import asynccontextmanager

import pytest
from click.testing import CliRunner

import flowshare as fs
from flowshare.agents.feed.members import ID_MAX, member_ids, retry_member_id
from flowshare.agents.host.host import Host, HostSettings
from flowshare.backend import open_backend
from flowshare.backend.url import parse_broker
from flowshare.backoff import Backoff
from flowshare.cli.worker import worker
from flowshare.client.admin.admin import ShareAdmin
from flowshare.clock import LoopClock
from flowshare.spark.errors import SparkGone
from flowshare.spark.workers import run as command_run
from flowshare.spark.workers import supervisor as supervising
from flowshare.spark.workers import task as tasks
from flowshare.spark.workers.control import Who
from flowshare.spark.workers.jobs import BadMaster, Master, NotShipped, Size, ended_by, ship
from flowshare.spark.workers.metrics import BUCKETS, COUNTERS, GAUGES, WorkerFigures
from flowshare.spark.workers.run import MemberRemoval, environment, run_tag
from flowshare.spark.workers.supervisor import SparkSupervisor
from flowshare.spark.workers.task import TaskEnd, WorkerTask

LIMIT_S = 60.0


class WorkerConnection:
    """A worker's connection, as the fleet sees one."""

    def __init__(self, task, attempt=0, pid=1):
        self.who = Who(number=task.number, run=task.run, attempt=attempt, pid=pid, host="there")
        self.orders = []
        self.told = asyncio.Event()
        self.closed = False

    def send(self, order):
        self.orders.append(order)
        self.told.set()

    def close(self):
        self.closed = True

    async def order(self, what):
        """Wait for this order."""
        async with asyncio.timeout(LIMIT_S):
            while not any(order.get("do") == what for order in self.orders):
                self.told.clear()
                await self.told.wait()


class Jobs:
    """Spark, as the fleet sees it."""

    def __init__(self):
        self.begun = asyncio.Queue()
        self.ends = {}
        self.cancelled = []
        self.why_gone = None

    async def run(self, task):
        self.ends[task.run] = asyncio.get_running_loop().create_future()
        self.begun.put_nowait(task)
        return await self.ends[task.run]

    async def cancel(self, task):
        self.cancelled.append(task.number)
        self.end(task, TaskEnd(code=None, why="its job was cancelled"))

    def end(self, task, how):
        future = self.ends[task.run]
        if not future.done():
            future.set_exception(how) if isinstance(how, Exception) else future.set_result(how)

    async def gone(self):
        return self.why_gone

    async def next(self):
        return await asyncio.wait_for(self.begun.get(), LIMIT_S)


class Kit:
    """A fleet that runs, and what it does to others."""

    def __init__(self, drain_timeout_s=5.0):
        self.jobs = Jobs()
        self.left = []
        self.leaves = asyncio.Queue()
        self.fleet = SparkSupervisor(
            self.jobs, self._task, self._leave, agents=("work",), drain_timeout_s=drain_timeout_s
        )
        self.calls = self.fleet

    def _task(self, number, run):
        return WorkerTask(
            app_path="app:app",
            number=number,
            run=run,
            member_id=f"shop-{number}",
            driver=("127.0.0.1", 1),
            token=b"",
            environment={},
        )

    async def _leave(self, prefix):
        self.left.append(prefix)
        self.leaves.put_nowait(prefix)

    async def ready(self):
        """The next job's worker, which has called and says that it is ready."""
        task = await self.jobs.next()
        peer = WorkerConnection(task)
        assert self.calls.opened(peer)
        self.calls.heard(peer, {"say": "ready"})
        return task, peer

    def drained(self, task, peer, code=0):
        """The worker ends in order."""
        self.calls.heard(peer, {"say": "bye", "code": code, "why": "told to drain"})
        self.calls.closed(peer, False)
        self.jobs.end(task, TaskEnd(code=code, why="told to drain"))

    def died(self, task, peer):
        """The worker's process is killed."""
        self.calls.closed(peer, False)
        self.jobs.end(task, TaskEnd(code=None, why="its Python process ended"))


@asynccontextmanager
async def running(workers=1, **options):
    kit = Kit(**options)
    kit.code = asyncio.ensure_future(kit.fleet.run(workers))
    try:
        yield kit
    finally:
        kit.code.cancel()
        await asyncio.gather(kit.code, return_exceptions=True)


async def code_of(kit):
    return await asyncio.wait_for(kit.code, LIMIT_S)


@pytest.fixture
def hasty(monkeypatch):
    """Pauses of no length to speak of."""
    monkeypatch.setattr(supervising, "PAUSES", Backoff(0.001, 30.0))
    monkeypatch.setattr(supervising, "AWAY_S", 0.01)


# --- starting, ending, coming back --------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_fleet_that_is_stopped_drains_its_workers_and_ends_with_0():
    async with running(2) as kit:
        workers = [await kit.ready(), await kit.ready()]
        kit.fleet.stop()
        for task, peer in workers:
            await peer.order("drain")
            kit.drained(task, peer)

        assert await code_of(kit) == 0
        assert peer.orders[-1] == {"do": "drain", "timeout_s": 5.0}
        assert kit.left == []


@pytest.mark.asyncio
async def test_a_worker_that_died_is_started_again_in_its_slot(hasty):
    async with running() as kit:
        task, peer = await kit.ready()
        kit.died(task, peer)
        again, _ = await kit.ready()

        assert (again.number, again.member_id) == (task.number, task.member_id)
        assert again.run != task.run
        assert kit.fleet.rows()[0]["ended_before"] == "its Python process ended"


@pytest.mark.asyncio
async def test_a_dead_workers_members_leave_before_its_next_run_and_the_others_look_for_its_partitions(hasty):
    async with running(2) as kit:
        task, peer = await kit.ready()
        _, other = await kit.ready()
        kit.died(task, peer)
        await other.order("heartbeat")
        await kit.jobs.next()

        assert kit.left == ["shop-1"]


@pytest.mark.asyncio
async def test_a_worker_whose_connection_ends_is_given_up_before_spark_notices(hasty):
    async with running(2) as kit:
        _, peer = await kit.ready()
        _, other = await kit.ready()
        kit.calls.closed(peer, False)

        assert await asyncio.wait_for(kit.leaves.get(), LIMIT_S) == "shop-1"
        await other.order("heartbeat")


@pytest.mark.asyncio
async def test_a_worker_that_calls_again_at_once_is_not_given_up(monkeypatch):
    monkeypatch.setattr(supervising, "AWAY_S", LIMIT_S)
    async with running(2) as kit:
        task, peer = await kit.ready()
        other_task, other = await kit.ready()
        kit.calls.closed(peer, False)
        again = WorkerConnection(task)
        assert kit.calls.opened(again)
        kit.fleet.stop()
        for one, connection in ((task, again), (other_task, other)):
            await connection.order("drain")
            kit.drained(one, connection)

        assert await code_of(kit) == 0
        assert kit.left == []


@pytest.mark.asyncio
async def test_a_worker_that_says_again_that_it_is_ready_has_been_so_since_the_first_time(caplog):
    async with running() as kit:
        task, _ = await kit.ready()
        kept = kit.fleet._places[1]
        ready_s, since_s = kept.ready_s, kept.since_s
        again = WorkerConnection(task)
        kit.calls.opened(again)

        with caplog.at_level(logging.INFO, "flowshare.spark"):
            kit.calls.heard(again, {"say": "ready"})

        assert (kept.ready_s, kept.since_s) == (ready_s, since_s)
        assert not caplog.text


@pytest.mark.asyncio
async def test_a_task_that_spark_started_anew_is_ready_when_it_says_so():
    async with running() as kit:
        task, _ = await kit.ready()
        newer = WorkerConnection(task, attempt=1, pid=2)
        kit.calls.opened(newer)
        assert kit.fleet.rows()[0]["state"] == "starting"

        kit.calls.heard(newer, {"say": "ready"})

        assert kit.fleet.rows()[0]["state"] == "ready"


@pytest.mark.asyncio
async def test_a_silent_worker_is_given_up_later_than_one_whose_connection_ended(monkeypatch):
    monkeypatch.setattr(supervising, "AWAY_S", LIMIT_S)
    monkeypatch.setattr(supervising, "STILL_S", 0.01)
    async with running() as kit:
        _, peer = await kit.ready()
        kit.calls.closed(peer, True)

        assert kit.fleet.rows()[0]["state"] == "silent"
        assert await asyncio.wait_for(kit.leaves.get(), LIMIT_S) == "shop-1"


@pytest.mark.asyncio
async def test_a_worker_of_an_earlier_run_is_told_to_end(hasty):
    async with running() as kit:
        task, peer = await kit.ready()
        kit.died(task, peer)
        await kit.ready()

        assert not kit.calls.opened(WorkerConnection(task))


@pytest.mark.asyncio
async def test_a_task_that_spark_started_anew_takes_the_place_of_the_old_one():
    async with running() as kit:
        task, peer = await kit.ready()
        newer = WorkerConnection(task, attempt=1, pid=2)

        assert kit.calls.opened(newer)
        assert peer.orders == [{"do": "end"}]
        assert peer.closed
        assert kit.fleet.rows()[0]["state"] == "starting"
        assert not kit.calls.opened(peer)


@pytest.mark.asyncio
async def test_an_app_that_is_refused_at_the_start_ends_the_fleet_with_its_reason(caplog):
    async with running(2) as kit:
        task = await kit.jobs.next()
        other = await kit.jobs.next()
        kit.jobs.end(task, TaskEnd(code=1, why="there is no module shop", refused=True))

        assert await code_of(kit) == 1
        assert "there is no module shop" in caplog.text
        assert kit.jobs.cancelled == [other.number]


@pytest.mark.asyncio
async def test_an_app_that_is_refused_later_is_tried_again(hasty):
    async with running() as kit:
        task, peer = await kit.ready()
        kit.died(task, peer)
        task = await kit.jobs.next()
        kit.jobs.end(task, TaskEnd(code=1, why="the topic is gone", refused=True))

        assert (await kit.jobs.next()).number == 1


@pytest.mark.asyncio
async def test_a_worker_that_keeps_ending_is_an_error_and_is_tried_on(hasty, monkeypatch, caplog):
    monkeypatch.setattr(supervising, "PAUSES", Backoff(0.5, 0.001))
    async with running() as kit:
        for _ in range(supervising.OFTEN):
            kit.died(*await kit.ready())
        await kit.jobs.next()

        assert f"keeps ending, {supervising.OFTEN} times in a row" in caplog.text
        assert [record.levelname for record in caplog.records if "keeps ending" in record.message] == ["ERROR"]


@pytest.mark.asyncio
async def test_a_fleet_whose_spark_is_gone_ends_with_1(caplog):
    async with running() as kit:
        task, _ = await kit.ready()
        kit.jobs.end(task, SparkGone("Spark has ended: killed"))

        assert await code_of(kit) == 1
        assert "Spark has ended: killed" in caplog.text


@pytest.mark.asyncio
async def test_a_fleet_without_workers_notices_that_spark_is_gone(monkeypatch, caplog):
    monkeypatch.setattr(supervising, "LOOK_S", 0.001)
    async with running() as kit:
        task, peer = await kit.ready()
        drained = asyncio.ensure_future(kit.fleet.drain())
        await peer.order("drain")
        kit.drained(task, peer)
        assert await drained
        kit.fleet.resize(2)
        assert kit.fleet.size == 0
        kit.jobs.why_gone = "Spark has ended: its JVM is gone"

        assert await code_of(kit) == 1
        assert "its JVM is gone" in caplog.text


# --- draining -----------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_worker_that_has_not_begun_is_cancelled_and_not_cut_off():
    async with running() as kit:
        await kit.jobs.next()
        kit.fleet.stop()

        assert await code_of(kit) == 0
        assert kit.jobs.cancelled == [1]


@pytest.mark.asyncio
async def test_a_worker_that_never_fetched_is_not_cut_off_when_spark_ends_it(monkeypatch):
    monkeypatch.setattr(supervising, "KILL_AFTER_S", 0.0)
    async with running(drain_timeout_s=0.01) as kit:
        assert kit.calls.opened(WorkerConnection(await kit.jobs.next()))
        kit.fleet.stop()

        assert await code_of(kit) == 0
        assert kit.jobs.cancelled == [1]


@pytest.mark.asyncio
async def test_a_worker_that_does_not_drain_in_time_is_ended_by_spark(monkeypatch):
    monkeypatch.setattr(supervising, "KILL_AFTER_S", 0.0)
    async with running(drain_timeout_s=0.01) as kit:
        await kit.ready()
        kit.fleet.stop()

        assert await code_of(kit) == 3
        assert kit.jobs.cancelled == [1]


@pytest.mark.asyncio
async def test_handlers_that_were_cut_off_make_it_3():
    async with running() as kit:
        task, peer = await kit.ready()
        kit.fleet.stop()
        await peer.order("drain")
        kit.drained(task, peer, code=3)

        assert await code_of(kit) == 3


@pytest.mark.asyncio
async def test_a_worker_whose_handler_loop_is_blocked_is_ended_by_spark_when_it_says_so():
    async with running() as kit:
        _, peer = await kit.ready()
        kit.fleet.stop()
        await peer.order("drain")
        for _ in range(2):  # the connection that took it may have ended
            kit.calls.heard(peer, {"say": "bye", "code": 3, "why": "its handler loop is blocked", "stuck": True})

        assert await code_of(kit) == 3
        assert kit.jobs.cancelled == [1]


@pytest.mark.asyncio
async def test_a_second_ctrl_c_ends_all_workers_at_once():
    async with running() as kit:
        await kit.ready()
        kit.fleet.stop(signal.SIGINT)
        kit.fleet.stop(signal.SIGINT)

        assert await code_of(kit) == 130


@pytest.mark.asyncio
async def test_a_worker_that_calls_while_its_fleet_drains_is_told_so():
    async with running() as kit:
        task, peer = await kit.ready()
        kit.calls.closed(peer, False)
        kit.fleet.stop()
        again = WorkerConnection(task)
        for _ in range(10):
            await asyncio.sleep(0)

        assert kit.calls.opened(again)
        assert again.orders == [{"do": "drain", "timeout_s": 5.0}]


# --- another size -------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_larger_fleet_starts_the_lowest_free_slots():
    async with running(1) as kit:
        await kit.ready()
        kit.fleet.resize(3)

        assert [(await kit.jobs.next()).number, (await kit.jobs.next()).number] == [2, 3]
        assert kit.fleet.size == 3


@pytest.mark.asyncio
async def test_a_smaller_fleet_drains_the_highest_slots_and_does_not_start_them_again():
    async with running(2) as kit:
        _, stays = await kit.ready()
        task, peer = await kit.ready()
        kit.fleet.resize(1)
        await peer.order("drain")
        kit.drained(task, peer)
        await stays.order("heartbeat")

        assert kit.fleet.size == 1
        assert [row["worker"] for row in kit.fleet.rows()] == [1]
        assert kit.jobs.begun.empty()


# --- members of the dead ------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_dead_workers_members_leave_by_their_ids_and_a_living_one_comes_back():
    app = fs.App("left", broker="memory://")

    @app.share_agent("orders")
    async def work(value: bytes) -> None: ...

    backend = open_backend("memory://")
    await backend.start()
    admin = ShareAdmin(lambda: backend.connect("test"), clock=LoopClock())
    leaving = MemberRemoval(lambda: backend.connect("test"), {"work": "left.work"}, clock=LoopClock())
    host = Host(app, backend=backend, settings=HostSettings(member_id="shop-1", threads=False))

    async def members():
        return [member.member_id for member in (await admin.describe_group("left.work")).members]

    await host.start()
    assert await members() == ["shop-1-0"]

    await leaving.leave("shop-1")
    assert await members() == []

    host.runtimes["work"].heartbeat()
    async with asyncio.timeout(LIMIT_S):
        while await members() != ["shop-1-0"]:  # noqa: ASYNC110 - the group says no word of it
            await asyncio.sleep(0)

    await host.drain()
    await host.stop()
    await leaving.close()
    await admin.close()
    await backend.close()


# --- what is asked ------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_what_is_in_flight_is_asked_of_all_workers_and_sorted_by_age():
    async with running(2) as kit:
        peers = [(await kit.ready())[1], (await kit.ready())[1]]
        asked = asyncio.ensure_future(kit.fleet.in_flight())
        for peer, age_s in zip(peers, (1.0, 2.0), strict=True):
            await peer.order("in flight")
            rows = [{"agent": "work", "age_s": age_s}]
            kit.calls.heard(peer, {"say": "in flight", "number": peer.orders[-1]["number"], "rows": rows})

        assert [(row["worker"], row["age_s"]) for row in await asked] == [(2, 2.0), (1, 1.0)]


@pytest.mark.asyncio
async def test_a_fleet_is_well_while_one_worker_is_ready():
    async with running(2) as kit:
        assert kit.fleet.problems()[0] == "no worker is ready"

        await kit.ready()

        assert kit.fleet.problems() == ()
        assert list(kit.fleet.ready) == [1]


def said(received, running=0.0):
    stats = dict.fromkeys((*COUNTERS, *GAUGES), 0.0) | {"received": received, "running": running}
    return {
        "work": {
            "stats": stats,
            "times": [received] * BUCKETS,
            "seconds": received / 10,
            "look": {"busy_s": received / 10, "settled": received, "again": 0.0},
        }
    }


def test_figures_of_slots_are_summed():
    figures = WorkerFigures(["work"])
    figures.take(1, "a", said(3.0, running=1.0))
    figures.take(2, "b", said(4.0, running=1.0))

    assert figures.stats("work")["received"] == 7.0
    assert figures.stats("work")["running"] == 2.0
    assert figures.times("work").cumulative()[-1] == ("+Inf", 7.0)
    assert figures.look("work", 5.0).settled == 7.0


def test_counters_of_a_fleet_do_not_fall_when_a_worker_starts_again():
    figures = WorkerFigures(["work"])
    figures.take(1, "a", said(3.0, running=2.0))
    figures.ended(1)
    figures.take(1, "b", said(1.0))
    figures.take(1, "b", said(2.0))

    assert figures.of(1, "work")["received"] == 5.0
    assert figures.of(1, "work")["running"] == 0.0


@pytest.mark.parametrize("agents", [None, {"work": {}}, {"work": {**said(1.0)["work"], "seconds": "x"}}])
def test_figures_that_cannot_be_read_are_left_out(agents):
    figures = WorkerFigures(["work"])

    figures.take(1, "a", agents)

    assert figures.stats("work")["received"] == 0.0


# --- masters, sizes, reasons --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "spark", "local", "slots"),
    [
        ("local", "local[1]", True, 1),
        ("local[3]", "local[3]", True, 3),
        ("local[3,4]", "local[3]", True, 3),
        ("local-cluster[2,2,1024]", "local-cluster[2,2,1024]", True, 4),
        ("spark://a:7077", "spark://a:7077", False, None),
        ("yarn", "yarn", False, None),
        ("k8s://https://a:443", "k8s://https://a:443", False, None),
        ("submit", None, False, None),
    ],
)
def test_a_master_is_read(text, spark, local, slots):
    assert Master.read(text) == Master(shown=text, spark=spark, local=local, cores=slots)


@pytest.mark.parametrize("text", ["", "mesos://a", "local[0x2]", "here"])
def test_what_is_no_master_is_refused_with_the_forms_there_are(text):
    with pytest.raises(BadMaster, match="spark://host:7077"):
        Master.read(text)


def test_the_number_of_workers_is_that_of_the_slots_unless_it_is_said():
    assert Size.read(None, Master.read("local[3]")) == Size(fewest=3, most=3)
    assert Size.read("1:4", Master.read("yarn")) == Size(fewest=1, most=4)


@pytest.mark.parametrize(
    ("text", "master", "hint"),
    [
        ("3", "local[2]", r"write --workers 2, or --on local\[3\]"),
        ("1:5", "local-cluster[2,2,1024]", r"local-cluster\[3,2,1024\]"),
        ("0", "local[2]", "a number up to"),
        ("4:2", "yarn", "MIN:MAX"),
        (None, "yarn", "say how many workers"),
    ],
)
def test_a_number_of_workers_that_cannot_be_is_refused(text, master, hint):
    with pytest.raises(BadMaster, match=hint):
        Size.read(text, Master.read(master))


@pytest.mark.parametrize(
    ("text", "why", "refused"),
    [
        (
            "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
            ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, "
            "most recent failure: Lost task 0.0 in stage 0.0 (TID 0) (10.0.0.1 executor driver): "
            "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
            '  File "/x/worker.py", line 1, in main\n    func = read()\n'
            "ModuleNotFoundError: No module named 'flowshare'\n\n\tat org.apache.spark.api.python.X(Y.scala:1)\n",
            "ModuleNotFoundError: No module named 'flowshare'",
            True,
        ),
        (
            "Lost task 0.0 in stage 1.0 (TID 1) (h executor driver): org.apache.spark.SparkException: "
            "Python worker exited unexpectedly (crashed)\n\tat x",
            "its Python process ended",
            False,
        ),
        (
            "most recent failure: Lost task 0.0 in stage 1.0 (TID 1) (10.0.0.1 executor 0): ExecutorLostFailure "
            "(executor 0 exited caused by one of the running tasks) Reason: Command exited with code 137\nDriver:",
            "ExecutorLostFailure (executor 0 exited caused by one of the running tasks) Reason: Command exited with "
            "code 137",
            False,
        ),
        ("Job 3 cancelled part of cancelled job group flowshare-1-x", "its job was cancelled", False),
        ("", "no message", False),
    ],
)
def test_the_reason_of_a_failed_job_is_one_line(text, why, refused):
    assert ended_by(text) == TaskEnd(code=None, why=why, refused=refused)


# --- what workers are told ----------------------------------------------------------------------------------------


def test_workers_get_the_drivers_variables_and_not_what_is_about_its_own_process(monkeypatch):
    monkeypatch.setenv("FLOWSHARE_SASL_PASSWORD", "secret")
    monkeypatch.setenv("FLOWSHARE_LISTEN", "0.0.0.0:9095")
    monkeypatch.setenv("FLOWSHARE_READY_FD", "7")

    found = environment(parse_broker("kafka://me:geheim@a:1?share=workers&listen=0.0.0.0:9&state_dir=/x"))

    assert found["FLOWSHARE_SASL_PASSWORD"] == "secret"
    assert not found.keys() & {"FLOWSHARE_LISTEN", "FLOWSHARE_READY_FD"}
    assert found["FLOWSHARE_BROKER"] == "kafka://me:geheim@a:1?share=workers"


def test_a_password_file_of_the_driver_reaches_workers_as_the_password(tmp_path):
    (tmp_path / "password").write_text("geheim\n")

    found = environment(parse_broker(f"kafka://me@a:1?password_file={tmp_path}/password"))

    assert found["FLOWSHARE_BROKER"] == "kafka://me:geheim@a:1"


def test_a_task_travels_and_shows_no_secret():
    task = WorkerTask(
        app_path="app:app",
        number=1,
        run="r",
        member_id="shop-1",
        driver=("h", 1),
        token=b"geheim-token",
        environment={"FLOWSHARE_BROKER": "kafka://me:geheim@a:1"},
    )

    assert pickle.loads(pickle.dumps(task)) == task
    assert "geheim" not in repr(task)


def test_member_ids_of_the_largest_fleet_are_within_kafkas_limit():
    tag = run_tag("a name that is much longer than any member's id may ever be", "application_1_0001")
    ids = member_ids(f"{tag}-999", [f"agent{number}" for number in range(200)])

    assert max(len(retry_member_id(one)) for one in ids.values()) <= ID_MAX
    assert len(set(ids.values())) == 200


# --- the command --------------------------------------------------------------------------------------------------


SETS_LOGGING_UP = """
import logging, logging.config
import flowshare as fs

logging.getLogger("flowshare.worker")
logging.config.dictConfig({"version": 1})
app = fs.App("logs", broker="kafka://127.0.0.1:1")


@app.share_agent("t")
async def work(value: bytes):
    pass
"""


class NoDriver:
    """Takes the place of the control channel."""

    def __init__(self, *_: object, **_more: object) -> None:
        pass

    def connect(self) -> None:
        pass

    def close(self, _end: object) -> None:
        pass


def test_an_application_that_sets_logging_up_mutes_no_worker_on_spark(tmp_path, monkeypatch):
    (tmp_path / "sets_logging_up.py").write_text(SETS_LOGGING_UP)
    monkeypatch.syspath_prepend(tmp_path)
    muted = logging.getLogger("flowshare.worker")
    root, level, last = logging.getLogger(), logging.getLogger().level, logging.lastResort
    given, seen = [], []
    monkeypatch.setattr(command_run, "run_workers", lambda _app, settings: given.append(settings) or 0)
    monkeypatch.setattr(tasks, "ControlClient", NoDriver)
    monkeypatch.setattr(
        tasks._TaskWorker, "_run_app", lambda *_: seen.append(muted.disabled) or tasks.TaskEnd(code=0, why="done")
    )
    handlers = root.handlers[:]
    try:
        CliRunner().invoke(worker, ["sets_logging_up:app", "--on", "local[2]"], catch_exceptions=False)
        (settings,) = given
        sys.modules.pop("sets_logging_up")  # a process of its own imports it anew
        task = WorkerTask(
            app_path=settings.app_path,
            number=1,
            run="r",
            member_id="logs-1",
            driver=("h", 1),
            token=b"",
            environment={},
            prepare=settings.prepare,
            loaded=settings.loaded,
            started=settings.started,
        )
        assert tasks.run_worker(pickle.loads(pickle.dumps(task))).code == 0
        assert seen == [False]
        assert root.handlers == []
        logging.basicConfig(filename=tmp_path / "log", format="%(message)s")  # in `on_start`
        settings.started()
        muted.warning("ready")
        assert (tmp_path / "log").read_text() == "ready\n"
    finally:
        for handler in set(root.handlers) - set(handlers):
            handler.close()
        root.handlers[:], logging.lastResort = handlers, last
        root.setLevel(level)
        logging.captureWarnings(capture=False)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--on", "local[2]", "--procs", "2"], "leave --procs and --reload out"),
        (["--on", "local[2]", "--reload"], "leave --procs and --reload out"),
        (["--workers", "2"], "on this machine write --procs N"),
        (["--on", "here"], "is no Spark master"),
        (["--on", "local[2]", "--workers", "3"], "each worker keeps one core"),
        (["--on", "spark://a:7077", "--workers", "2"], "use kafka://host:port as the broker, or --on local[N]"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments, hint, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FLOWSHARE_BROKER", f"embedded://{tmp_path}/path")
    (tmp_path / "refusedapp.py").write_text(
        "import flowshare as fs\n"
        "app = fs.App('refused', broker='memory://')\n"
        "@app.share_agent('t')\nasync def work(value: bytes) -> None: ...\n"
    )

    done = CliRunner().invoke(worker, ["refusedapp:app", *arguments])

    sys.modules.pop("refusedapp", None)
    assert done.exit_code == 2
    assert hint in " ".join(done.output.split())


# --- shipping -----------------------------------------------------------------------------------------------------


@pytest.fixture
def application(tmp_path, monkeypatch):
    """A package and a module beside it, imported."""
    root = tmp_path / "root"
    (root / "shipped" / "deep").mkdir(parents=True)
    (root / "shipped" / "__init__.py").write_text("")
    (root / "shipped" / "workers.py").write_text("import shipped_models\n")
    (root / "shipped" / "deep" / "table.txt").write_text("1")
    (root / "shipped_models.py").write_text("")
    (root / "other.py").write_text("")
    monkeypatch.syspath_prepend(str(root))
    __import__("shipped.workers")
    yield "shipped.workers"
    for name in ("shipped", "shipped.workers", "shipped_models"):
        sys.modules.pop(name, None)


def test_an_application_is_shipped_with_what_it_imported_from_its_folder(application, tmp_path):
    archive = ship(application, tmp_path)

    assert sorted(zipfile.ZipFile(archive).namelist()) == [
        "shipped/__init__.py",
        "shipped/deep/table.txt",
        "shipped/workers.py",
        "shipped_models.py",
    ]


def test_the_same_files_make_the_same_archive(application, tmp_path):
    first = ship(application, tmp_path)

    assert ship(application, tmp_path) == first


def test_what_is_installed_is_not_shipped(tmp_path):
    assert ship("pytest", tmp_path) is None


def test_an_application_that_is_too_large_is_refused(application, tmp_path, monkeypatch):
    monkeypatch.setattr("flowshare.spark.workers.jobs.SIZE_MAX", 1)

    with pytest.raises(NotShipped, match="keep data out"):
        ship(application, tmp_path)
