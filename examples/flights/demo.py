"""`make demo`: the flights go through the agent of app.py, and a table shows that nothing was lost.

Steps: produce the rows into a topic with one partition; start a worker process; `kill -9` it half-way; start it again;
wait until its backlog is empty; stop it with SIGTERM; read the sink and the dead letters and compare them with the
raw table. The worker is the ordinary command of flowshare, watched through its `/lag` page. Then a pipeline on Spark
sums the results up.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, NamedTuple

from examples.flights.data import LATE_AFTER_MIN, Figures, expected, rows
from flowshare.agents.pages import own_user
from flowshare.backend import open_backend
from flowshare.backend.path_workers import running_workers
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.producer.producer import Message, Producer
from flowshare.clock import LoopClock
from flowshare.dev import DevFailure
from flowshare.dev.java import java

APP: Final = "examples.flights.app:app"
ROOT: Final = Path(__file__).parents[2]
"""The folder from which the applications are found by name."""
TOPIC, SINK, DEAD_LETTERS = "flights", "flights.delays", "flights.classify.dlq"
LIMIT_S: Final = 300.0
POLL_S: Final = 0.02
STOP_LIMIT_S: Final = 60.0


class DemoFailed(Exception):
    """A step did not work; the text says which and what to look at."""


@dataclass(slots=True)
class FlightsOutcome:
    """Content of the topics at the end, and how it came there."""

    produced: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    flaky_retried: int = 0
    redelivered: int = 0
    duplicates: int = 0
    dead: int = 0
    dead_duplicates: int = 0
    wrong_reason: int = 0
    missing: int = 0
    seconds: float = 0.0
    killed_at: int = 0

    @property
    def accepted(self) -> int:
        """Flights with a result, each counted once."""
        return sum(self.classes.values())


# --- the worker process -----------------------------------------------------------------------------------------


class FlightsWorker:
    """The worker of the moment."""

    def __init__(self, path: Path, log: Path) -> None:
        self._path = path
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start `flowshare worker` on the demo's app."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "flowshare.cli", "worker", APP],
                env={**os.environ, "FLOWSHARE_BROKER": f"embedded://{self._path}"},
                stdout=log,
                stderr=log,
                cwd=ROOT,
            )

    def kill(self) -> None:
        """`kill -9`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM, and wait for the drain. Raises: DemoFailed."""
        assert self._process is not None
        self._process.terminate()
        if code := self._process.wait(STOP_LIMIT_S):
            raise DemoFailed(f"the worker ended with exit code {code}; its log is {self._log}")

    def end(self) -> None:
        """Make sure that no process stays behind."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def backlog(self) -> int | None:
        """Flights that are not finished yet; None while the worker does not answer. Raises: DemoFailed."""
        assert self._process is not None
        if (code := self._process.poll()) is not None:
            raise DemoFailed(f"the worker ended with exit code {code}; its log is {self._log}")
        pid = self._process.pid
        address = next((worker.address for worker in running_workers(self._path) if worker.pid == pid), None)
        if address is None:
            return None
        try:
            found = json.loads(own_user.ask(address, "/lag", timeout_s=5).body)
        except (OSError, ValueError, HTTPException):
            return None
        parts = [row["backlog"] for row in found if row["topic"] == TOPIC]
        return sum(parts) if parts and min(parts) >= 0 else None

    def wait_for_backlog(self, at_most: int, tell: Callable[[int], object]) -> int:
        """Wait until no more than `at_most` flights are left; `tell` hears how many are. Raises: DemoFailed."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            left = self.backlog()
            if left is not None:
                tell(left)
                if left <= at_most:
                    return left
            time.sleep(POLL_S)
        raise DemoFailed(f"the worker did not get on within {LIMIT_S:.0f} s; its log is {self._log}")


# --- the log, while no worker holds it -----------------------------------------------------------------------------


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[tuple[ShareAdmin, Producer]]:
    """An admin client and a producer on the log at a path."""
    clock = LoopClock()
    backend = open_backend(f"embedded://{path}", clock=clock)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(backend.close)
        await backend.start()
        admin = ShareAdmin(lambda: backend.connect("demo"), clock=clock)
        stack.push_async_callback(admin.close)
        producer = Producer(lambda: backend.connect("demo"), clock=clock)
        stack.push_async_callback(producer.close)
        yield admin, producer


async def produce(path: Path, limit: int) -> None:
    """Create the topic with one partition and produce the rows, keyed by tail number (2,512 rows have none)."""
    async with opened(path) as (admin, producer):
        await admin.create_topic(TOPIC, partitions=1)
        messages = (
            Message(json.dumps(row).encode(), str(row["tailnum"]).encode() if row["tailnum"] else None)
            for row in rows(limit)
        )
        await producer.send_many(TOPIC, messages)


async def count(path: Path, limit: int) -> FlightsOutcome:
    """Read the sink and the dead letters back, each flight once."""
    outcome = FlightsOutcome()
    seen: set[int] = set()
    dead: set[int] = set()
    async with opened(path) as (admin, _):
        outcome.produced = (await admin.offsets(TOPIC, 0)).high_watermark
        async for record in _all(admin, SINK):
            _count_result(json.loads(record.value or b"{}"), seen, outcome)
        async for letter in _all(admin, DEAD_LETTERS):
            row_id = json.loads(letter.value or b"{}")["id"]
            outcome.dead_duplicates += row_id in dead
            reason = dict(letter.headers).get("flowshare.dlq.reason") or b""
            outcome.wrong_reason += not reason.startswith(b"cancelled")
            dead.add(row_id)
    outcome.dead = len(dead)
    outcome.missing = limit - len(seen | dead)
    return outcome


async def _all(admin: ShareAdmin, topic: str) -> AsyncIterator[Any]:
    """The records of a topic with one partition."""
    offset = 0
    while records := await admin.read(topic, 0, offset, limit=20_000):
        for record in records:
            yield record
        offset = records[-1].offset + 1


def _count_result(result: dict[str, object], seen: set[int], outcome: FlightsOutcome) -> None:
    row_id, attempt = result["id"], result["attempt"]
    assert isinstance(row_id, int)
    assert isinstance(attempt, int)
    if row_id in seen:
        outcome.duplicates += 1
        return
    seen.add(row_id)
    outcome.classes[str(result["kind"])] += 1
    if attempt > 1:
        outcome.redelivered += 1
        outcome.flaky_retried += row_id % 100 == 0


# --- the table --------------------------------------------------------------------------------------------------


def table(wanted: Figures, got: FlightsOutcome) -> tuple[list[str], bool]:
    """The lines of the table, and whether every figure that must agree does."""
    checks: list[tuple[str, int, int]] = [
        ("flights produced", wanted.flights, got.produced),
        ("accepted", wanted.flights - wanted.cancelled, got.accepted),
        *((f"  {kind}", wanted.classes[kind], got.classes[kind]) for kind in ("early", "on time", "late", "very late")),
        ("dead letters (cancelled flights)", wanted.cancelled, got.dead),
        ("dead letters with another reason", 0, got.wrong_reason),
        ("timed out once, accepted later", wanted.flaky, got.flaky_retried),
        ("lost", 0, got.missing),
        ("duplicate results", 0, got.duplicates + got.dead_duplicates),
    ]
    lines, good = compared("came out", checks)
    lines += [
        f"{'redelivered after the kill':<36}{'':>12}{got.redelivered - got.flaky_retried:>12,}",
        f"{'killed with kill -9 after':<36}{'':>12}{got.killed_at:>12,}   flights",
        f"{'records/s, restart included':<36}{'':>12}{wanted.flights / max(got.seconds, 0.001):>12,.0f}",
    ]
    return lines, good


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@contextmanager
def progress(total: int) -> Iterator[Callable[[int], object]]:
    """A bar of the flights that are done, on a terminal; elsewhere nothing."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("  flights"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, transient=True, disable=not sys.stdout.isatty()) as bar:
        task = bar.add_task("flights", total=total)
        yield lambda left: bar.update(task, completed=total - left)


def run(path: Path, limit: int) -> int:
    """The whole demo in one directory. Returns 0 when every figure agrees, else 1. Raises: DemoFailed, DataMissing."""
    wanted = expected(limit)
    say(f"producing {limit:,} flights into topic {TOPIC!r}, one partition …")
    asyncio.run(produce(path, limit))
    worker = FlightsWorker(path, path.parent / "worker.log")
    try:
        say("starting a worker …")
        began = time.monotonic()
        worker.start()
        with progress(limit) as tell:
            left = worker.wait_for_backlog(limit // 2, tell)
        worker.kill()
        say(f"kill -9 of the worker, {left:,} flights to go; starting it again …")
        worker.start()
        with progress(limit) as tell:
            worker.wait_for_backlog(0, tell)
        seconds = time.monotonic() - began
        worker.stop()
    finally:
        worker.end()
    say("comparing with the raw table …\n")
    got = asyncio.run(count(path, limit))
    got.seconds, got.killed_at = seconds, limit - left
    lines, good = table(wanted, got)
    say("\n".join(lines))
    say("\nnothing was lost, and nothing is there twice" if good else "\nthe figures differ")
    return 0 if good else 1


# --- the second half: a Spark pipeline sums the results up, and its table is held against the raw one ---------------

PIPELINE: Final = ["pipeline", APP, "by_hour", "--once", "--master", "local[2,4]"]
PIPELINE_LIMIT_S: Final = 240
TOP: Final = 10
PICTURE: Final = "carriers.png"


class Hour(NamedTuple):
    """A carrier's hour. Delays are minutes."""

    carrier: str
    hour: str
    flights: int
    total_delay: int
    mean_delay: float
    p90_delay: int
    late_share: float


@dataclass(slots=True)
class Carrier:
    """A carrier's year, from its hours."""

    name: str
    flights: int = 0
    total_delay: int = 0
    late: int = 0

    @property
    def mean_delay(self) -> float:
        """Minutes."""
        return self.total_delay / self.flights

    @property
    def late_share(self) -> float:
        """Of its flights."""
        return self.late / self.flights


def run_pipeline(broker: Path, out: Path, log: Path) -> float:
    """Run the pipeline over the broker at a path; how many seconds it took. Raises: DemoFailed."""
    began = time.monotonic()
    env = {**os.environ, "FLOWSHARE_BROKER": f"embedded://{broker}", "FLOWSHARE_FLIGHTS_OUT": str(out)}
    with log.open("wb") as file:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "flowshare.cli", *PIPELINE],
                env=env,
                stdout=file,
                stderr=file,
                check=False,
                cwd=ROOT,
                timeout=PIPELINE_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"the pipeline did not end within {PIPELINE_LIMIT_S} s; its log is {log}") from None
    if done.returncode:
        raise DemoFailed(f"the pipeline ended with exit code {done.returncode}; its log is {log}")
    return time.monotonic() - began


def hours(folder: Path) -> list[Hour]:
    """The pipeline's table, by carrier and hour."""
    import pyarrow.parquet as parquet

    table = parquet.ParquetDataset(sorted(folder.glob("*.parquet"))).read()
    found = [Hour(*(_plain(row[name]) for name in Hour._fields)) for row in table.to_pylist()]
    return sorted(found)


def wanted(limit: int) -> list[Hour]:
    """The same table straight from the raw one."""
    delays: dict[tuple[str, str], list[int]] = {}
    for row in rows(limit):
        delay = row["dep_delay"]
        if isinstance(delay, int) and row["dep_time"] is not None:
            delays.setdefault((str(row["carrier"]), str(row["time_hour"])), []).append(delay)
    return sorted(_hour(carrier, hour, sorted(minutes)) for (carrier, hour), minutes in delays.items())


def _hour(carrier: str, hour: str, minutes: Sequence[int]) -> Hour:
    size, total = len(minutes), sum(minutes)
    return Hour(
        carrier=carrier,
        hour=hour,
        flights=size,
        total_delay=total,
        mean_delay=total / size,
        p90_delay=minutes[-(-9 * size // 10) - 1],
        late_share=sum(one > LATE_AFTER_MIN for one in minutes) / size,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return value


# --- what is shown ------------------------------------------------------------------------------------------------


def carriers(table: Iterable[Hour]) -> list[Carrier]:
    """Carriers, the one with the most flights first."""
    found: dict[str, Carrier] = {}
    for row in table:
        carrier = found.setdefault(row.carrier, Carrier(row.carrier))
        carrier.flights += row.flights
        carrier.total_delay += row.total_delay
        carrier.late += round(row.late_share * row.flights)
    return sorted(found.values(), key=lambda one: -one.flights)


def carriers_table(got: Sequence[Hour], raw: Sequence[Hour]) -> tuple[list[str], bool]:
    """The table of carriers and the checks, and whether every hour of every carrier agrees with the raw table."""
    text = [f"{'carrier':<10}{'flights':>10}{'mean delay, min':>18}{'late':>9}"]
    text += [
        f"{one.name:<10}{one.flights:>10,}{one.mean_delay:>18.1f}{one.late_share:>9.1%}" for one in carriers(got)[:TOP]
    ]
    differ = len(set(got) ^ set(raw))
    checks = [
        ("carriers × hours", len(raw), len(got)),
        ("flights that left", sum(one.flights for one in raw), sum(one.flights for one in got)),
        ("minutes of delay", sum(one.total_delay for one in raw), sum(one.total_delay for one in got)),
        ("hours that differ in any figure", 0, differ),
    ]
    below, good = compared("pipeline", checks)
    return [*text, "", *below], good


def compared(other: str, checks: Sequence[tuple[str, int, int]]) -> tuple[list[str], bool]:
    """A table of figures of the raw table beside others, and whether all of them agree."""
    lines = [f"{'':<36}{'raw table':>12}{other:>12}"]
    lines += [f"{name:<36}{a:>12,}{b:>12,}   {'ok' if a == b else 'DIFFERS'}" for name, a, b in checks]
    return lines, all(a == b for _, a, b in checks)


def plot(table: Iterable[Hour], path: Path) -> None:
    """Mean delay and share of late departures of the ten largest carriers, as a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    top = carriers(table)[:TOP]
    names = [one.name for one in top]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
    left.barh(names, [one.mean_delay for one in top], color="#3465a4")
    left.set_title("mean departure delay, minutes")
    right.barh(names, [100 * one.late_share for one in top], color="#cc7722")
    right.set_title(f"departures more than {LATE_AFTER_MIN} minutes late, %")
    for axes in (left, right):
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("flights from New York in 2013, ten largest carriers")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def report(broker: Path, folder: Path, limit: int) -> bool:
    """Run the pipeline, print its table, write the plot; whether all agrees with the raw table.

    Raises: DemoFailed, DataMissing.
    """
    out = folder / "out"
    say("\nsumming the results up with Spark: per carrier and hour, fed by a share group …")
    seconds = run_pipeline(broker, out, folder / "pipeline.log")
    got = hours(out / "by_hour")
    text, good = carriers_table(got, wanted(limit))
    plot(got, folder / PICTURE)
    say("\n".join(["", *text]))
    say(f"{'seconds, start of Spark included':<36}{'':>12}{seconds:>12,.0f}")
    return good


# --- both -------------------------------------------------------------------------------------------------------------


def check_spark() -> None:
    """See that the second half can run before the first begins. Raises: DemoFailed."""
    if importlib.util.find_spec("pyspark") is None:
        raise DemoFailed("its second half runs on Spark: pip install 'flowshare[spark]', or leave it out: --no-spark")
    try:
        java()
    except DevFailure as error:
        raise DemoFailed(f"its second half runs on Spark, and {error}; or leave it out: --no-spark") from error


def both_halves(folder: Path, limit: int, *, spark: bool, keep: bool) -> int:
    """The agents' half and, unless it is left out, the pipeline's; the exit code. Raises: DemoFailed, DataMissing."""
    if spark:
        check_spark()
    code = run(folder / "broker", limit)
    if code or not spark:
        return code
    good = report(folder / "broker", folder, limit)
    say(f"plot: {kept_picture(folder, keep=keep)}")
    say("\nthe pipeline's table is the raw table's" if good else "\nthe pipeline's table differs")
    return 0 if good else 1


def kept_picture(folder: Path, *, keep: bool) -> Path:
    """Where the plot lies; keep: the folder stays, else it is moved out of it."""
    picture = folder / PICTURE
    if not keep:
        # A folder of its own: at a name that others can guess may lie a link of theirs.
        picture = Path(tempfile.mkdtemp(prefix="flowshare-demo-plot-")) / PICTURE
        shutil.move(folder / PICTURE, picture)
    return picture


def demo(limit: int, data: Path | None, *, spark: bool) -> int:
    """The demo of so many flights; the exit code. data: where all of it is kept; None: it is removed at the end.

    Raises: DemoFailed, DataMissing.
    """
    folder = Path(data or tempfile.mkdtemp(prefix="flowshare-demo-")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    code = both_halves(folder, limit, spark=spark, keep=data is not None)
    if data is None and code == 0:
        shutil.rmtree(folder, ignore_errors=True)
    return code
