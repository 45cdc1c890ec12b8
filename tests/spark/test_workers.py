"""A fleet on Spark, as a user runs it and judged by what its handlers wrote, kill -9 included."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from flowshare.agents.pages import own_user
from flowshare.backend import open_backend
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.producer.producer import Producer
from flowshare.clock import LoopClock
from flowshare.dev.processes import process
from flowshare.spark.workers.control import ControlServer, new_token
from flowshare.spark.workers.jobs import SparkJobs
from flowshare.spark.workers.run import MemberRemoval
from flowshare.spark.workers.supervisor import SparkSupervisor
from flowshare.spark.workers.task import WorkerTask
from tests.jvm import QUICK_DRIVER
from tests.waiting import blocking_until, until

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
LIMIT_S = 240.0
SECRET = "a-password-that-stands-in-no-file"
DRIVER = f"--driver-memory 512m --conf spark.ui.enabled=false --conf '{QUICK_DRIVER}'"
NOT_COMPRESSED = "--conf spark.eventLog.compress=false"

APP = """
import asyncio, os
import flowshare as fs
from flowshare.agents.host.host import Host

JOURNAL = os.open(os.environ["FLOWSHARE_TEST_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
app = fs.App(os.environ["FLOWSHARE_TEST_APP"], broker="memory://")

def note(word, record):
    os.write(JOURNAL, f"{word} {record.partition}-{record.offset} {os.getpid()}\\n".encode())

Host.__init__.__kwdefaults__["observer"] = lambda settled: note(settled.outcome, settled)

@app.share_agent(app.topic(os.environ["FLOWSHARE_TEST_APP"], value_type=bytes, partitions=4), concurrency=4,
                 start="earliest", drain_timeout=10)
async def work(value: bytes, delivery: fs.Delivery) -> None:
    note("start", delivery)
    await asyncio.sleep(0.01)
    note("end", delivery)
"""
"""The environment names the broker; the variables' names make them travel to the workers."""


class Journal:
    """The handlers' journal: lines of a word, a record and a process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def notes(self, word: str) -> list[tuple[str, int]]:
        lines = self.path.read_text().splitlines(keepends=True) if self.path.exists() else []
        parts = [line.split() for line in lines if line.endswith("\n")]
        return [(record, int(pid)) for said, record, pid in parts if said == word]

    @property
    def done(self) -> set[str]:
        """Records whose handler ended."""
        return {record for record, _ in self.notes("end")}

    @property
    def pids(self) -> list[int]:
        """Processes, in the order in which they began."""
        return list(dict.fromkeys(pid for _, pid in self.notes("start")))

    def check(self, killed: int) -> None:
        """Only what was in flight in the killed process ran again: begun there, its accept not confirmed."""
        begun = self.notes("start")
        again = {record for record, times in Counter(record for record, _ in begun).items() if times > 1}
        first = dict(reversed(begun))
        assert {first[record] for record in again} <= {killed}, (again, killed)
        assert not again & {record for record, pid in self.notes("accepted") if pid == killed}


class Place:
    """A folder with an app, and the fleet that runs it."""

    def __init__(self, folder: Path, name: str, url: str) -> None:
        self.folder, self.name, self.url = folder, name, url
        self.journal = Journal(folder / "journal")
        self.spark = ""
        self.log_file = folder / "log"
        self.driver: subprocess.Popen[bytes] | None = None
        self.module = f"fleetapp_{re.sub(r'[^a-z0-9]', '_', name)}"  # Spark keeps a file for as long as its session
        (folder / f"{self.module}.py").write_text(APP)
        (folder / "hypothesis.py").write_text("raise ModuleNotFoundError")  # as where workers run: kio takes 0.4 s less

    @property
    def environment(self) -> dict[str, str]:
        more = {
            "FLOWSHARE_BROKER": self.url,
            "FLOWSHARE_TEST_APP": self.name,
            "FLOWSHARE_TEST_JOURNAL": str(self.journal.path),
            "FLOWSHARE_SASL_PASSWORD": SECRET,
            "PYTHONPATH": os.pathsep.join([str(self.folder), str(ROOT)]),
            "PYSPARK_SUBMIT_ARGS": f"{DRIVER} {self.spark} pyspark-shell",
        }
        return {**os.environ, **more}

    def start(self, *arguments: str) -> None:
        with self.log_file.open("wb") as log:
            self.driver = subprocess.Popen(
                [sys.executable, "-m", "flowshare.cli", "worker", f"{self.module}:app", *arguments],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
            )

    def log(self) -> str:
        return self.log_file.read_text()

    def wait(self, ready, what: str, limit_s: float = LIMIT_S) -> None:
        def right() -> bool:
            assert self.driver is not None
            assert self.driver.poll() is None, f"the driver ended before {what}:\n{self.log()[-8000:]}"
            return ready()

        blocking_until(right, lambda: f"{what}\n{self.log()[-8000:]}", limit_s=limit_s)

    def wait_ready(self, times: int = 1) -> None:
        self.wait(lambda: self.log().count("workers are ready") >= times, f"all workers are ready, time {times}")

    def page(self, path: str):
        (address,) = re.findall(r"metrics at http://(\S+)", self.log())
        text = own_user.ask(address, path, timeout_s=10).body.decode()
        return text if path == "/metrics" else json.loads(text)

    def stop(self) -> int:
        assert self.driver is not None
        self.driver.send_signal(signal.SIGTERM)
        return self.driver.wait(60)

    def end(self) -> None:
        if self.driver is not None and self.driver.poll() is None:
            self.driver.kill()
            self.driver.wait(10)
        for found in self.executors():
            shutil.rmtree(found)

    def executors(self) -> list[Path]:
        """Where executors' logs are: with Spark's own files."""
        found = re.findall(r"executors' logs are below (\S+)", self.log()) if self.driver is not None else []
        return [Path(one) for one in found if Path(one).exists()]

    async def send(self, records: int) -> None:
        backend = open_backend(self.url, clock=LoopClock())
        await backend.start()
        try:
            await produce(backend, self.name, records)
        finally:
            await backend.close()


async def produce(backend, topic: str, records: int) -> None:
    producer = Producer(lambda: backend.connect("test"), clock=LoopClock())
    try:
        await asyncio.gather(*(producer.send(topic, b"%d" % one, partition=one % 4) for one in range(records)))
    finally:
        await producer.close()


@pytest.fixture
def place(tmp_path):
    made: list[Place] = []

    def make(url: str, name: str = "fleet") -> Place:
        made.append(Place(tmp_path, name, url))
        return made[-1]

    yield make
    for one in made:
        one.end()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def gone(pid: int) -> bool:
    return process(pid) is None


# --- a user's way -------------------------------------------------------------------------------------------------


def test_a_python_worker_that_is_killed_costs_what_it_had_in_hand_and_comes_back(place, tmp_path):
    fleet = place(f"embedded://{tmp_path}/path")
    fleet.start("--on", "local[2]", "--workers", "2")
    fleet.wait_ready()
    asyncio.run(fleet.send(1500))
    fleet.wait(lambda: len(fleet.journal.done) > 200 and len(fleet.journal.pids) == 2, "both workers work")
    killed = fleet.journal.pids[0]

    os.kill(killed, signal.SIGKILL)

    fleet.wait(lambda: len(fleet.journal.done) == 1500, "all records are handled")
    fleet.journal.check(killed)
    fleet.wait_ready(2)
    assert "its Python process ended" in fleet.log()
    assert sorted(row["runs"] for row in fleet.page("/workers")) == [1, 2]
    fleet.wait(lambda: 'flowshare_record_acknowledgements_total{agent="work"' in fleet.page("/metrics"), "metrics")
    assert 'flowshare_worker_runs_total{worker="1"}' in fleet.page("/metrics")
    assert fleet.page("/ready")["ok"]
    assert fleet.stop() == 0
    assert "stopped: all workers drained" in fleet.log()
    assert all(gone(pid) for pid in fleet.journal.pids)


def test_an_executor_that_is_killed_costs_what_it_had_in_hand_and_its_worker_comes_back(place, tmp_path):
    fleet = place(f"embedded://{tmp_path}/path")
    fleet.spark = f"--conf spark.eventLog.enabled=true --conf spark.eventLog.dir=file://{tmp_path} " + NOT_COMPRESSED
    fleet.start("--on", "local-cluster[2,1,1024]", "--workers", "2")
    fleet.wait_ready()
    asyncio.run(fleet.send(1500))
    fleet.wait(lambda: len(fleet.journal.done) > 200 and len(fleet.journal.pids) == 2, "both workers work")
    killed = fleet.journal.pids[0]

    os.kill(parent(parent(killed)), signal.SIGKILL)

    fleet.wait(lambda: len(fleet.journal.done) == 1500, "all records are handled")
    fleet.journal.check(killed)
    fleet.wait_ready(2)
    assert fleet.stop() == 0
    assert all(gone(pid) for pid in fleet.journal.pids)
    (executors,) = fleet.executors()
    written = [path for folder in (tmp_path, executors) for path in folder.rglob("*") if path.is_file()]
    assert {"events", "stderr"} <= {path.name.partition("_")[0] for path in written}
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]


def test_a_fleet_runs_on_a_standalone_cluster(place, standalone, kafka, unique):
    fleet = place(f"kafka://{kafka.bootstrap}?share=native", unique("fleet"))
    fleet.spark = "--conf spark.driver.host=127.0.0.1 --conf spark.executor.memory=512m"
    fleet.start("--on", standalone, "--workers", "2")
    fleet.wait_ready()
    asyncio.run(fleet.send(1000))
    fleet.wait(lambda: len(fleet.journal.done) == 1000, "all records are handled")

    assert len(fleet.journal.pids) == 2
    assert fleet.stop() == 0
    assert Counter(record for record, _ in fleet.journal.notes("start")).most_common(1)[0][1] == 1
    assert all(gone(pid) for pid in fleet.journal.pids)


# --- in the tests' own session, where Spark itself tries a task again ---------------------------------------------


class InProcess:
    """A fleet on the tests' session, led by the test; an asynchronous context, which stops it at the end."""

    def __init__(self, spark, here: Place) -> None:
        self.here = here
        self.context = spark.sparkContext
        self.token = new_token()
        self.driver = ("", 0)

    async def __aenter__(self):
        here, self.backend = self.here, open_backend(self.here.url, clock=LoopClock(), lead=True)
        await asyncio.to_thread(self.context.addPyFile, str(here.folder / f"{here.module}.py"))
        await self.backend.start()
        groups = {"work": f"{here.name}.work"}
        self.leaving = MemberRemoval(lambda: self.backend.connect("test"), groups, clock=LoopClock())
        self.fleet = SparkSupervisor(
            SparkJobs(self.context), self._task, self.leaving.leave, agents=("work",), drain_timeout_s=10.0
        )
        self.control = ControlServer(
            self.token, opened=self.fleet.opened, heard=self.fleet.heard, closed=self.fleet.closed
        )
        self.driver = await self.control.start("127.0.0.1")
        return self

    async def __aexit__(self, *_):
        self.code.cancel()
        await asyncio.gather(self.code, return_exceptions=True)
        await self.control.close()
        await self.leaving.close()
        await self.backend.close()

    async def run(self, workers: int) -> None:
        self.code = asyncio.ensure_future(self.fleet.run(workers))
        await self.until(lambda: len(self.fleet.ready) == workers)

    async def stop(self) -> int:
        self.fleet.stop()
        return await asyncio.wait_for(self.code, LIMIT_S)

    async def until(self, what) -> None:
        def right() -> bool:
            assert not self.code.done(), self.code
            return what()

        await until(right, limit_s=LIMIT_S)

    def _task(self, number: int, run: str) -> WorkerTask:
        more = self.here.environment
        return WorkerTask(
            app_path=f"{self.here.module}:app",
            number=number,
            run=run,
            member_id=f"test-{number}",
            driver=self.driver,
            token=self.token,
            environment={name: text for name, text in more.items() if name.startswith("FLOWSHARE_")},
        )


@pytest.mark.asyncio
async def test_a_fleet_grows_and_shrinks_while_records_flow_and_none_runs_twice(spark, place, tmp_path):
    here = place(f"embedded://{tmp_path}/path", "resized")
    async with InProcess(spark, here) as kit:
        await kit.run(1)
        kit.fleet.resize(2)
        sent = 0
        while len(here.journal.pids) < 2:  # records flow for as long as the second worker takes to come
            await produce(kit.backend, here.name, 400)
            sent += 400
            await kit.until(lambda sent=sent: len(here.journal.pids) == 2 or len(here.journal.done) > sent - 100)
        sending = asyncio.ensure_future(produce(kit.backend, here.name, 2000))
        kit.fleet.resize(1)
        await kit.until(lambda: len(kit.fleet.rows()) == 1)
        await sending
        await kit.until(lambda: len(here.journal.done) == sent + 2000)

        assert await kit.stop() == 0
        assert Counter(record for record, _ in here.journal.notes("start")).most_common(1)[0][1] == 1
        await until(lambda: all(gone(pid) for pid in here.journal.pids), "nothing is left of a worker", limit_s=LIMIT_S)


@pytest.mark.asyncio
async def test_on_kafkas_own_groups_a_killed_workers_partitions_go_to_the_others(spark, place, kafka, unique):
    here = place(f"kafka://{kafka.bootstrap}?share=native", unique("fleet"))
    async with InProcess(spark, here) as kit:
        await kit.run(2)
        sending = asyncio.ensure_future(produce(kit.backend, here.name, 1200))
        await kit.until(lambda: len(here.journal.pids) == 2 and len(here.journal.done) > 100)
        killed = here.journal.pids[0]

        os.kill(killed, signal.SIGKILL)

        await kit.until(lambda: len(here.journal.done) == 1200)
        await sending
        here.journal.check(killed)
        await kit.until(lambda: len(kit.fleet.ready) == 2)
        assert await kit.stop() == 0
        admin = ShareAdmin(lambda: kit.backend.connect("test"), clock=LoopClock())
        assert (await admin.describe_group(f"{here.name}.work")).members == ()
        await admin.close()
