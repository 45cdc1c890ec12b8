"""Kills of a pipeline's driver, JVM and Python workers, stops in order, slow and dead brokers, at random moments; a new
checkpoint, and a topic made anew under an old one. Judged by the rows that are there.

    python -m tests.chaos.spark [--seed N] [--kills 30] [--records 200000] [--only embedded:files,native:batches]

One run for each place of the share group and each sink: all records are produced, then `flowshare pipeline` runs over
them and meets faults again and again, each time started anew at once where it ended, whoever of its processes still
lives. Half-way it is stopped in order and goes on with a new checkpoint into a new folder. At last it runs to the end;
then the topic is deleted and made anew with as many other records, and it runs to the end again with the checkpoint of
before. Each record must be in the rows once, and the group must have finished all of them. The seed decides what is
done, not how fast this machine does it. Exit code 0: no violation, and enough kills met a batch under way.

| fault | |
|---|---|
| driver, jvm, all, broker | kill -9 of it |
| python | kill -9 of one of Spark's Python workers; the query goes on, or is started again by its driver |
| stop | SIGTERM, which must end it in order |
| slow | on Kafka: each piece of bytes is late for a while |
| stall | on Kafka: no byte passes for a while |
| throttle | on Kafka: a quota holds back what Spark's tasks read, for a while |
"""

from __future__ import annotations

import collections
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowshare.dev.processes import tail
from flowshare.spark.source.reading import READER
from tests.chaos.cluster import MortalKafka
from tests.chaos.command import finish, parser_of
from tests.chaos.proxy import Wires
from tests.interop.toolbox import Toolbox
from tests.jvm import QUICK_DRIVER
from tests.sim.seeds import drawn
from tests.spark.serving import Serving, serving
from tests.waiting import blocking_until

PLACES = ("embedded", "native", "workers")
SINKS = ("files", "batches")
KINDS = ("driver", "jvm", "all", "python", "stop")
KAFKA_KINDS = ("broker", "slow", "stall", "throttle")
CONF = (
    "spark.ui.enabled=false",
    "spark.sql.shuffle.partitions=2",
    "spark.driver.memory=1g",
    QUICK_DRIVER,
    "spark.sql.streaming.pollingDelay=10ms",
)
BATCHES_A_KILL = 8
PARTITIONS = 3
PRODUCED = 600
GOING_S = 240.0
QUIET_S = 20.0
"""How long no batch may be committed before one looks whether there is anything left."""
END_S = 600.0
ENDS = 3
"""How often a pipeline may run to its end: what a dead one had locked is given again when the lock is over."""
STOP_S = 240.0
SLOW_S = (0.05, 0.4)
"""How late each piece of bytes is."""
STALL_S = (1.0, 6.0)
THROTTLED_RATE = 1_000
"""Bytes a second; a batch has some ten thousand. Of the tasks only: brokers lose what a throttled ShareFetch got."""
AGAIN = 5
"""The part of the records, one in so many, that the topic gets when it is made anew."""
MET_PART = 0.2
"""The part of the kills that must have met a batch in the write-ahead log and not yet in the commit log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run. place: where the share group lives; sink: the pipeline of `spark_app`. faults: empty: by the dice."""

    place: str
    sink: str
    seed: int
    records: int = 200_000
    kills: int = 30
    faults: tuple[str, ...] = ()

    @property
    def all_records(self) -> int:
        """Those of the topic that was made anew included."""
        return self.records + self.records // AGAIN


@dataclass(slots=True)
class Met:
    """Counts of the kills and of the states that they hit."""

    kinds: collections.Counter[str] = field(default_factory=collections.Counter)
    killed: int = 0
    under_way: int = 0
    before: int = 0


class Query:
    """`flowshare pipeline` as processes: the driver, its JVM, its Python workers."""

    def __init__(self, plan: Plan, url: str, topic: str, folder: Path) -> None:
        self._plan = plan
        self._out = folder / "out"
        self._life = 0
        self._log = folder / "log"
        self._environment = {
            **os.environ,
            "FLOWSHARE_BROKER": url,
            "CHAOS_TOPIC": topic,
            "CHAOS_BATCH": str(max(100, plan.records // (plan.kills * BATCHES_A_KILL))),
        }
        self._groups: list[int] = []
        self._logged = 0
        """Bytes in the log before the newest process."""
        self.process: subprocess.Popen[bytes]

    @property
    def _folder(self) -> Path:
        """Of checkpoint and rows; with a new checkpoint another one."""
        return self._out / str(self._life)

    def begin_anew(self) -> None:
        """Forget the checkpoint, and write to another folder from now on."""
        shutil.rmtree(self._folder / "data")
        self._life += 1

    def start(self, *more: str) -> None:
        """Start it; others of it may still live."""
        conf = [part for text in CONF for part in ("--conf", text)]
        command = [sys.executable, "-m", "flowshare.cli", "pipeline", "tests.chaos.spark_app:app", self._plan.sink]
        with self._log.open("ab") as log:
            self._logged = log.tell()
            self.process = subprocess.Popen(
                [*command, "--master", "local[2,4]", *conf, *more],
                env={**self._environment, "CHAOS_OUT": str(self._folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._groups.append(self.process.pid)

    def batches(self, of: str) -> int:
        """The newest batch in its log of `offsets` (write-ahead) or `commits`; −1: none."""
        folder = self._folder / "data" / "pipelines" / self._plan.sink / of
        return max((int(one.name) for one in folder.glob("*") if one.name.isdigit()), default=-1)

    def said_backlog(self) -> int:
        """The backlog that it told last; −1: none, or it is not known."""
        found = re.findall(r"backlog ([\d,]+|unknown)", self._log.read_text(errors="replace"))
        return int(found[-1].replace(",", "")) if found and found[-1] != "unknown" else -1

    def wait_going(self) -> bool:
        """Until it has committed a batch; False: it has nothing left to do. Raises: AssertionError."""
        before, until = self.batches("commits"), time.monotonic() + GOING_S
        look = time.monotonic() + QUIET_S
        while self.batches("commits") == before:
            if time.monotonic() > look:
                look += QUIET_S
                if self.said_backlog() == 0:
                    return False
            assert time.monotonic() < until, f"no batch was committed for {GOING_S:g} s:\n{tail(self._log)}"
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{tail(self._log)}"
            time.sleep(0.01)
        return True

    def wait_handling(self) -> None:
        """Until the newest process says that it handled records, or that none are left: what an earlier one left behind
        may commit batches meanwhile. Raises: AssertionError."""
        until = time.monotonic() + GOING_S
        while not re.search(rb"running: [1-9]|backlog 0\b", self._log.read_bytes()[self._logged :]):
            assert time.monotonic() < until, f"it handled nothing for {GOING_S:g} s:\n{tail(self._log)}"
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{tail(self._log)}"
            time.sleep(0.1)

    def kill(self, victim: str) -> None:
        """kill -9 of the `driver`, its `jvm` or `all` processes; a driver without a JVM must end by itself."""
        if victim == "all":
            self._kill_group(self.process.pid)
        elif victim == "jvm" and (pid := jvm_of(self.process.pid)) is not None:
            os.kill(pid, signal.SIGKILL)
            code = self.process.wait(GOING_S)
            assert code == 1, f"without its JVM it ended with {code}:\n{tail(self._log)}"
        else:
            self.process.kill()
        self.process.wait()

    def kill_python(self, dice: random.Random) -> bool:
        """kill -9 of one of the processes in which Spark runs Python; whether there was one."""
        found = sorted(python_workers(self.process.pid))
        for pid in [dice.choice(found)] if found else []:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(found)

    def stop(self) -> None:
        """End it in order. Raises: AssertionError when it does not."""
        self.process.terminate()
        try:
            code = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"SIGTERM did not end it within {STOP_S:g} s:\n{tail(self._log)}") from None
        assert code in (0, 128 + signal.SIGTERM, -signal.SIGTERM), f"SIGTERM ended it with {code}:\n{tail(self._log)}"

    def run_to_the_end(self) -> None:
        """Read what is there, and end. Raises: AssertionError."""
        self.start("--once")
        code = self.process.wait(END_S)
        assert code == 0, f"it ended with {code}:\n{tail(self._log)}"

    def end(self) -> None:
        """Nothing of it lives on."""
        for group in self._groups:
            self._kill_group(group)
        self.process.wait()

    def rows(self) -> list[dict[str, Any]]:
        """All rows of the sink, as its readers find them."""
        import pyarrow.parquet as parquet

        files: list[Path] = []
        for life in range(self._life + 1):
            folder = self._out / str(life) / self._plan.sink / "rows"
            files += written(folder) if self._plan.sink == "files" else sorted(folder.glob("batch=*/*.parquet"))
        return [row for path in files for row in parquet.ParquetFile(path).read().to_pylist()]

    @staticmethod
    def _kill_group(group: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def jvm_of(pid: int) -> int | None:
    """The Java process that a driver started; None: not yet."""
    for one in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            name, _, rest = (one / "stat").read_text().rpartition(")")
            if int(rest.split()[1]) == pid and name.endswith("(java"):
                return int(one.name)
    return None


def python_workers(leader: int) -> list[int]:
    """Spark's Python workers in the session of a process: those that a daemon of pyspark's forked."""
    parents: dict[int, int] = {}
    daemons: set[int] = set()
    for one in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            fields = (one / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and b"pyspark.daemon" in (one / "cmdline").read_bytes():
                parents[int(one.name)] = int(fields[1])
                daemons.add(int(one.name))
    return [pid for pid, parent in parents.items() if parent in daemons]


def written(folder: Path) -> list[Path]:
    """The files that Spark's file sink committed: its log `_spark_metadata` says them, the folder may have more."""
    log = folder / "_spark_metadata"
    compact = max((int(one.stem) for one in log.glob("*.compact")), default=-1)
    entries = [log / f"{compact}.compact"] if compact >= 0 else []
    entries += [one for one in log.glob("*") if one.name.isdigit() and int(one.name) > compact]
    lines = [line for one in entries for line in one.read_text().splitlines()[1:]]
    return [Path(json.loads(line)["path"].removeprefix("file://")) for line in lines]


class Run:
    """One pipeline, killed again and again."""

    def __init__(self, plan: Plan, url: str, folder: Path, kafka: MortalKafka | None) -> None:
        folder.mkdir(parents=True)
        self.plan, self._url, self._kafka = plan, url, kafka
        self._dice = random.Random(f"{plan.seed} {plan.place} {plan.sink}")
        self._topic = f"numbers-{uuid.uuid4().hex[:8]}"
        self._query = Query(plan, url, self._topic, folder)
        self.met = Met()

    def go(self) -> list[str]:
        """Violations. Raises: AssertionError when it does not go on."""
        with serving(self._url) as broker:
            self._produce(broker, 0, self.plan.records)
        kinds = [*KINDS, *KAFKA_KINDS] if self._kafka else KINDS
        try:
            self._query.start()
            for number, kind in enumerate(self.plan.faults or self._dice.choices(kinds, k=self.plan.kills)):
                if number == self.plan.kills // 2:
                    self._new_checkpoint()
                if not self._fault(kind):
                    print(f"it ran out of records before fault {number + 1}", flush=True)
                    break
            self._query.kill("all")
            left = self._to_the_end()
            left += self._new_topic()
        finally:
            self._query.end()
        return self._judge(left)

    def _produce(self, broker: Serving, first: int, behind: int) -> None:
        broker.topic(self._topic, partitions=PARTITIONS)
        for number in range(first, behind, PRODUCED):  # whole batches of the log are handed out
            broker.produce(self._topic, [b"%d" % one for one in range(number, min(number + PRODUCED, behind))])

    def _left(self) -> int:
        """How many records the group has not finished."""
        with serving(self._url) as broker:
            return int(broker.backlog(f"chaos-{self._topic}.{self.plan.sink}"))

    def _new_checkpoint(self) -> None:
        self._query.wait_handling()
        self._query.stop()
        self._query.begin_anew()
        self._query.start()

    def _new_topic(self) -> int:
        """How many records are not finished when it was made anew, and the query ran over it."""
        with serving(self._url) as broker:
            broker.call(broker.admin.delete_topic(self._topic))
            blocking_until(
                lambda: [one.name for one in broker.call(broker.admin.list_topics())],
                good=lambda names: self._topic not in names,
                limit_s=GOING_S,
            )
            self._produce(broker, self.plan.records, self.plan.all_records)
        return self._to_the_end()

    def _slow(self, kind: str) -> None:
        """The broker is slow, or says nothing, for a while."""
        assert self._kafka is not None
        proxy = self._kafka.proxies[0]
        if kind == "slow":
            proxy.delay_s = self._dice.uniform(*SLOW_S)
        else:
            proxy.stall()
        time.sleep(self._dice.uniform(*STALL_S))
        proxy.mend()

    def _throttle(self) -> None:
        """A quota of the broker's for a while."""
        assert self._kafka is not None
        toolbox = Toolbox()
        entity = ("--bootstrap-server", self._kafka.bootstrap, "--entity-type", "clients", "--entity-name", READER)
        try:
            told = toolbox("kafka-configs", "--alter", *entity, "--add-config", f"consumer_byte_rate={THROTTLED_RATE}")
            assert told.code == 0, told
            time.sleep(self._dice.uniform(*STALL_S))
            told = toolbox("kafka-configs", "--alter", *entity, "--delete-config", "consumer_byte_rate")
            assert told.code == 0, told
        finally:
            toolbox.close()

    def _fault(self, kind: str) -> bool:
        """Let something happen; False: the query has nothing left to do."""
        if self._dice.random() < 0.75:
            if not self._query.wait_going():
                return False
            time.sleep(self._dice.uniform(0.0, 1.5))
        else:
            self.met.before += 1
            time.sleep(self._dice.uniform(0.0, 8.0))
        self.met.kinds[kind] += 1
        if kind == "python":
            self._query.kill_python(self._dice)
            return True
        if kind in ("slow", "stall"):
            self._slow(kind)
            return True
        if kind == "throttle":
            self._throttle()
            return True
        if kind == "broker":
            assert self._kafka is not None
            self._kafka.stop(kill=True)
            self._kafka.start()
            return True  # the query goes on by itself
        if kind == "stop":
            self._query.stop()
        else:
            self.met.killed += 1
            self.met.under_way += self._query.batches("offsets") > self._query.batches("commits")
            self._query.kill(kind)
        self._query.start()
        return True

    def _to_the_end(self) -> int:
        """How many records the group has not finished at last."""
        left = -1
        for _ in range(ENDS):
            self._query.run_to_the_end()
            left = self._left()
            if left == 0:
                break
        return left

    def _judge(self, left: int) -> list[str]:
        rows = self._query.rows()
        times = collections.Counter(row["id"] for row in rows)
        lost = [number for number in range(self.plan.all_records) if number not in times]
        twice = [number for number, count in times.items() if count > 1]
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.met.kinds.items()))
        print(
            f"{self.plan.place} {self.plan.sink}: {len(rows)} rows of {self.plan.all_records} records, "
            f"lost {len(lost)}, twice {len(twice)}, not finished {left}; faults {kinds}; "
            f"{self.met.under_way} met a batch under way, {self.met.before} the start; "
            f"{self._query.batches('commits') + 1} batches, "
            f"{sum(row['attempt'] > 1 for row in rows)} records delivered again, "
            f"{max(row['attempt'] for row in rows)} times at most",
            flush=True,
        )
        found = [f"{what} {len(ids)}: {ids[:5]}" for what, ids in (("lost", lost), ("twice", twice)) if ids]
        if left:
            found.append(f"{left} records are not finished")
        if self.met.under_way < int(MET_PART * self.met.killed):
            found.append(f"only {self.met.under_way} of {self.met.killed} kills met a batch under way")
        return found


@contextmanager
def place_of(plan: Plan, folder: Path, kafka: MortalKafka | None, bootstrap: str | None) -> Iterator[str]:
    """The broker URL of a run."""
    if plan.place == "embedded":
        yield f"embedded://{folder}/broker"
        return
    address = f"127.0.0.1:{kafka.proxies[0].port}" if kafka is not None else bootstrap
    url = f"kafka://{address}?share={plan.place}"
    yield url if plan.place == "native" else f"{url}&fleet={folder.name}&state_dir={folder}/state"


def chaos(plans: Sequence[Plan], folder: Path, *, bootstrap: str | None = None) -> int:
    """All runs; the number of violations. bootstrap: a Kafka that is not to be killed; None: one of its own."""
    violations = 0
    with Wires() as wires:
        mortal = bootstrap is None and any(plan.place != "embedded" for plan in plans)
        kafka = MortalKafka(folder, wires, 1) if mortal else None
        if kafka is not None:
            kafka.start()
        try:
            for plan in plans:
                violations += _one(plan, folder / f"{plan.place}-{plan.sink}", kafka, bootstrap)
        finally:
            if kafka is not None:
                kafka.stop(kill=True)
    return violations


def _one(plan: Plan, folder: Path, kafka: MortalKafka | None, bootstrap: str | None) -> int:
    with place_of(plan, folder, kafka, bootstrap) as url:
        run = Run(plan, url, folder, kafka if plan.place != "embedded" else None)
        try:
            found = run.go()
        except AssertionError as error:
            found = [str(error)]
    for one in found:
        print(f"{plan.place} {plan.sink}, seed {plan.seed}: {one}", flush=True)
    return len(found)


def short_run(place: str, sink: str, folder: Path, *faults: str, bootstrap: str | None = None) -> int:
    """One run as the tests have it, with a seed of the test's; the number of violations."""
    seed = drawn()
    plan = Plan(place=place, sink=sink, seed=seed, records=10_000, kills=len(faults), faults=faults)
    return chaos([plan], folder, bootstrap=bootstrap)


def main() -> None:
    """The command line."""
    parser = parser_of(__doc__, records=200_000, runs=False)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--only", default="", help="place:sink, separated by commas; all without it.")
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else [f"{place}:{sink}" for place in PLACES for sink in SINKS]
    plans = [
        Plan(place=place, sink=sink, seed=options.seed, records=options.records, kills=options.kills)
        for place, _, sink in (one.partition(":") for one in chosen)
    ]
    finish(options, lambda folder: chaos(plans, folder))


if __name__ == "__main__":
    main()
