"""`flowshare demo`: the flights go through the agent of flights_app.py, and a table shows that nothing was lost.

Steps: produce the rows into a topic with one partition; start a worker process; `kill -9` it half-way; start it again;
wait until its backlog is empty; stop it with SIGTERM; read the sink and the dead letters and compare them with the
raw table. The worker is the ordinary command of flowshare, watched through its `/lag` page. Then a pipeline on Spark
sums the results up (flights_report.py).
"""

from __future__ import annotations

import argparse
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Final

from flowshare.agents import own_user
from flowshare.backend import open_backend
from flowshare.backend.workers import running_workers
from flowshare.client.admin import ShareAdmin
from flowshare.client.producer import Message, Producer
from flowshare.clock import LoopClock
from flowshare.dev.failure import DevFailure
from flowshare.dev.flights_data import ROWS, DataMissing, Figures, expected, rows
from flowshare.dev.flights_report import PICTURE, PipelineFailed, report
from flowshare.dev.java import java

APP: Final = "flowshare.dev.flights_app:app"
TOPIC, SINK, DEAD_LETTERS = "flights", "flights.delays", "flights.classify.dlq"
LIMIT_S: Final = 300.0
POLL_S: Final = 0.02
STOP_LIMIT_S: Final = 60.0


class DemoFailed(Exception):
    """A step did not work; the text says which and what to look at."""


@dataclass(slots=True)
class Outcome:
    """What lies in the topics at the end, and how it came there."""

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


class Worker:
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


async def produce(path: Path, limit: int) -> None:
    """Create the topic with one partition and produce the rows, keyed by tail number (2,512 rows have none)."""
    clock = LoopClock()
    backend = open_backend(f"embedded://{path}", clock=clock)
    await backend.start()
    try:
        admin = ShareAdmin(lambda: backend.connect("demo"), clock=clock)
        await admin.create_topic(TOPIC, partitions=1)
        producer = Producer(lambda: backend.connect("demo"), clock=clock)
        await producer.send_many(
            TOPIC,
            (
                Message(json.dumps(row).encode(), str(row["tailnum"]).encode() if row["tailnum"] else None)
                for row in rows(limit)
            ),
        )
        await producer.close()
        await admin.close()
    finally:
        await backend.close()


async def count(path: Path, limit: int) -> Outcome:
    """Read the sink and the dead letters back, each flight once."""
    clock = LoopClock()
    backend = open_backend(f"embedded://{path}", clock=clock)
    await backend.start()
    outcome = Outcome()
    try:
        admin = ShareAdmin(lambda: backend.connect("demo"), clock=clock)
        outcome.produced = (await admin.offsets(TOPIC, 0)).high_watermark
        seen: set[int] = set()
        offset = 0
        while records := await admin.read(SINK, 0, offset, limit=20_000):
            for record in records:
                _count_result(json.loads(record.value or b"{}"), seen, outcome)
            offset = records[-1].offset + 1
        dead: set[int] = set()
        offset = 0
        while letters := await admin.read(DEAD_LETTERS, 0, offset, limit=20_000):
            for letter in letters:
                row_id = json.loads(letter.value or b"{}")["id"]
                outcome.dead_duplicates += row_id in dead
                reason = dict(letter.headers).get("flowshare.dlq.reason") or b""
                outcome.wrong_reason += not reason.startswith(b"cancelled")
                dead.add(row_id)
            offset = letters[-1].offset + 1
        outcome.dead = len(dead)
        outcome.missing = limit - len(seen | dead)
        await admin.close()
    finally:
        await backend.close()
    return outcome


def _count_result(result: dict[str, object], seen: set[int], outcome: Outcome) -> None:
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


def table(wanted: Figures, got: Outcome) -> tuple[list[str], bool]:
    """The lines of the table, and whether every figure that must agree does."""
    checks: list[tuple[str, int, int]] = [
        ("flights produced", wanted.flights, got.produced),
        ("accepted", wanted.flights - wanted.cancelled, got.accepted),
        *((f"  {kind}", wanted.classes[kind], got.classes[kind]) for kind in ("early", "on time", "late", "very late")),
        ("dead letters (cancelled flights)", wanted.cancelled, got.dead),
        ("dead letters with another reason", 0, got.wrong_reason),
        ("timed out once, accepted later", wanted.flaky, got.flaky_retried),
        ("lost", 0, got.missing),
    ]
    lines = [f"{'':<36}{'raw table':>12}{'came out':>12}"]
    lines += [f"{name:<36}{a:>12,}{b:>12,}   {'ok' if a == b else 'DIFFERS'}" for name, a, b in checks]
    lines += [
        f"{'redelivered after the kill':<36}{'':>12}{got.redelivered - got.flaky_retried:>12,}",
        f"{'duplicate results (at least once)':<36}{'':>12}{got.duplicates + got.dead_duplicates:>12,}",
        f"{'killed with kill -9 after':<36}{'':>12}{got.killed_at:>12,}   flights",
        f"{'records/s, restart included':<36}{'':>12}{wanted.flights / max(got.seconds, 0.001):>12,.0f}",
    ]
    return lines, all(a == b for _, a, b in checks)


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
    worker = Worker(path, path.parent / "worker.log")
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
    say("\nnothing was lost" if good else "\nthe figures differ")
    return 0 if good else 1


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
    try:
        good = report(folder / "broker", folder, limit, say)
    except PipelineFailed as error:
        raise DemoFailed(str(error)) from error
    picture = folder / PICTURE
    if not keep:
        picture = Path(tempfile.gettempdir()) / f"flowshare-demo-{PICTURE}"
        shutil.move(folder / PICTURE, picture)
    say(f"plot: {picture}")
    say("\nthe pipeline's table is the raw table's" if good else "\nthe pipeline's table differs")
    return 0 if good else 1


def main(argv: list[str]) -> int:
    """Run the demo. Options: --rows N (default all 336,776), --data DIR (default: a temporary one, removed),
    --no-spark (the agents' half alone)."""
    parser = argparse.ArgumentParser(prog="flowshare demo", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="how many flights (default: all)")
    parser.add_argument("--data", type=Path, help="where to keep the broker's data (default: removed at the end)")
    parser.add_argument("--no-spark", action="store_true", help="leave the pipeline out, which needs Spark and Java")
    options = parser.parse_args(argv)
    if not 1000 <= options.rows <= ROWS:
        parser.error(f"--rows takes 1000 to {ROWS}")
    folder = Path(options.data or tempfile.mkdtemp(prefix="flowshare-demo-")).absolute()
    if (folder / "broker").exists():
        parser.error(f"{folder} holds an earlier demo; remove it or name another directory")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        code = both_halves(folder, options.rows, spark=not options.no_spark, keep=options.data is not None)
    except (DemoFailed, DataMissing) as error:
        sys.stderr.write(f"flowshare demo: {error}\n")
        return 1
    if options.data is None and code == 0:
        shutil.rmtree(folder, ignore_errors=True)
    return code
