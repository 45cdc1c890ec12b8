"""Handlers that wait, on a real broker and on the embedded one, beside bare pools and what Kafka's own limits allow.

    python benchmarks/native.py [--only sleep|crowd|slow|members|processes] [--runs 3]

sleep: 10 ms handlers at concurrency 100 against a bare uvloop pool in the same process. crowd: 16 members × 50 ms on
one partition. slow: the same with one record of 20 s, which a broker's window of 4,000 records stops. members: 1 to
64 members with no-op and with 10 ms handlers. processes: `flowshare worker --procs` with a handler that keeps its
processor busy. Needs Java for the broker.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

import arena
import beyond
import flowshare as fs
from common import embedded_url, fill, in_fresh_process, info, verdict
from flowshare.agents.host.host import Host, HostSettings
from flowshare.backend import open_backend
from flowshare.clock import LoopClock

HERE = Path(__file__).resolve()
SLEEP_S = 0.01
CONCURRENCY = 100
SLEEPS = 100_000
BARE = 15_000
BUSY_RECORDS = 4_000
BUSY_S = 0.002
WORKER_LIMIT_S = 120
MEMBERS = (1, 2, 4, 8, 16, 32, 64)


class Meter:
    """Counts calls and says when the last one came."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.seen = 0
        self.first = self.last = 0.0
        self.done = asyncio.Event()

    def hit(self) -> None:
        """A call."""
        if not self.seen:
            self.first = time.perf_counter()
        self.seen += 1
        if self.seen == self.total:
            self.last = time.perf_counter()
            self.done.set()

    @property
    def rate(self) -> float:
        """Liveness a second from the first to the last."""
        return (self.total - 1) / (self.last - self.first)


# --- sections, each in a process of its own ---------------------------------------------------------------------


def section_sleep(options: argparse.Namespace) -> dict[str, float]:
    """An agent with a pool's worth of sleeping handlers, and the bare pool before and after it."""

    async def bare() -> float:
        waiting = deque(range(BARE))

        async def slot() -> None:
            while waiting:
                waiting.popleft()
                await asyncio.sleep(SLEEP_S)

        started = time.perf_counter()
        await asyncio.gather(*(slot() for _ in range(CONCURRENCY)))
        return BARE / (time.perf_counter() - started)

    async def agent() -> float:
        app = fs.App("bench", broker=options.url)
        meter = Meter(SLEEPS)

        @app.share_agent(app.topic("values", value_type=bytes), concurrency=CONCURRENCY, group=options.group)
        async def sleep(value: bytes) -> None:
            await asyncio.sleep(SLEEP_S)
            meter.hit()

        async with app.running():
            await meter.done.wait()
        return meter.rate

    async def main() -> dict[str, float]:
        before, rate, after = await bare(), await agent(), await bare()
        return {"rate": rate, "bare": (before + after) / 2, "ratio": 2 * rate / (before + after)}

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def section_crowd(options: argparse.Namespace) -> dict[str, float]:
    """16 members × 50 ms; with `--slow` one record takes 20 s."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(beyond.run(options.url, 20, 2000 if options.slow else None))


def section_members(options: argparse.Namespace) -> dict[str, float]:
    """Many members in one process, each an app of its own."""

    async def main() -> dict[str, float]:
        meter = Meter(options.records)
        clock = LoopClock()
        everybody = asyncio.Event()
        backend = open_backend(options.url, clock=clock)
        await backend.start()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(backend.close)
            for _ in range(options.members):
                app = fs.App("bench", broker=options.url)

                @app.share_agent(app.topic("values", value_type=bytes), group=options.group, concurrency=1)
                async def work(value: bytes) -> None:
                    await everybody.wait()
                    if options.wait_ms:
                        await asyncio.sleep(options.wait_ms / 1000)
                    meter.hit()

                host = Host(app, backend=backend, clock=clock, settings=HostSettings(threads=False))
                stack.push_async_callback(host.stop)
                await host.start()
            everybody.set()
            at = time.perf_counter()
            await meter.done.wait()
            return {"rate": meter.seen / (time.perf_counter() - at)}

    logging.disable(logging.WARNING)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


SECTIONS = {"sleep": section_sleep, "crowd": section_crowd, "members": section_members}


# --- worker processes -------------------------------------------------------------------------------------------

BUSY_APP = """
import os, time
import flowshare as fs
app = fs.App("busy", broker=os.environ["URL"])
log = open(os.environ["TIMES"], "ab", buffering=0)
@app.share_agent(app.topic("values", value_type=bytes), concurrency=4)
async def work(value: bytes) -> None:
    until = time.thread_time() + {busy}
    while time.thread_time() < until:
        pass
    log.write(b"%.6f\\n" % time.monotonic())
"""


def busy_rate(processes: int) -> float:
    """Records a second of so many worker processes with a handler that uses `BUSY_S` of processor time."""
    with embedded_url() as url, tempfile.TemporaryDirectory() as folder:
        fill(url, "values", [b"x" * 100] * BUSY_RECORDS, batch_size=10_000)
        Path(folder, "busyapp.py").write_text(BUSY_APP.format(busy=BUSY_S))
        times = Path(folder, "times")
        times.touch()
        command = [str(Path(sys.executable).parent / "flowshare"), "worker", "busyapp:app"]
        worker = subprocess.Popen(
            [*command, *(["--procs", str(processes)] if processes > 1 else [])],
            cwd=folder,
            env={**os.environ, "URL": url, "TIMES": str(times)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + WORKER_LIMIT_S
            while times.read_bytes().count(b"\n") < BUSY_RECORDS:
                if time.monotonic() > deadline or worker.poll() is not None:
                    raise SystemExit(f"{processes} workers did not finish {BUSY_RECORDS} records")
                time.sleep(0.2)
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(60)
        at = sorted(map(float, times.read_bytes().split()))
        # All processes are there from some time on: the middle half is looked at.
        low, high = len(at) // 4, 3 * len(at) // 4
        return (high - low) / (at[high] - at[low])


# --- the table --------------------------------------------------------------------------------------------------


def section(name: str, url: str, **options: object) -> dict[str, float]:
    """A section's figures."""
    return in_fresh_process(str(HERE), name, url=url, **options)


def on_each(server: arena.Server, filled: int, name: str, **options: object) -> dict[str, dict[str, float]]:
    """A section on the broker and on an embedded one, on fresh groups."""
    native = section(name, f"kafka://{server.bootstrap}", group=server.unused_group(), **options)
    with embedded_url() as url:
        fill(url, "values", [arena.VALUE] * filled, batch_size=860 * 107 + 61)
        return {"native": native, "embedded": section(name, url, group="bench", **options)}


def sleep(runs: int) -> None:
    """The table's first part."""
    with arena.kafka() as server:
        server.fill("values", SLEEPS)
        found = [on_each(server, SLEEPS, "sleep") for _ in range(runs)]
    for kind in ("native", "embedded"):
        middle = arena.medians([run[kind] for run in found])
        info(f"10 ms handlers, concurrency 100, {kind}", middle["rate"], unit="records/s")
        info("  a bare uvloop pool in the same process", middle["bare"], unit="records/s")
        verdict("  agent / bare pool", 100 * middle["ratio"], 97, unit="%")


def crowd(runs: int) -> None:
    """16 members × 50 ms."""
    rates = []
    for _ in range(runs):
        with arena.kafka() as server:
            server.fill("values", 20_000, batch=860)
            rates.append(section("crowd", f"kafka://{server.bootstrap}"))
    middle = arena.medians(rates)
    verdict("16 members × 50 ms on one partition, native", middle["rate"], 0.9 * beyond.IDEAL, unit="records/s")
    info("  busy members", middle["busy"])
    info("  records run twice", middle["duplicates"])


def slow(_: int) -> None:
    """One record of 20 s on a broker."""
    with arena.kafka() as server:
        server.fill("values", 20_000, batch=860)
        found = section("crowd", f"kafka://{server.bootstrap}", slow=1)
    info("the other 15 while one record takes 20 s, native", found["rate"], unit="records/s")
    info("  of the 300/s that they could do; the window ends", 100 * found["rate"] / (15 / beyond.HANDLER_S), unit="%")


def members(_: int) -> None:
    """From 1 to 64 members of one share-partition, all in one process."""
    with arena.kafka() as server:
        server.fill("values", 400_000)
        for count in MEMBERS:
            for wait_ms, records in ((0, 300_000), (10, 1_000 + 300 * count)):
                options = {"members": count, "wait_ms": wait_ms, "records": records}
                found = on_each(server, 400_000, "members", **options)
                for kind, figures in found.items():
                    what = "10 ms" if wait_ms else "no-op"
                    info(f"{count:>2} members, {what} handlers, {kind}", figures["rate"], unit="records/s")


def processes(runs: int) -> None:
    """Four worker processes against one."""
    ratios, ones, fours = [], [], []
    for _ in range(runs):
        one, four = busy_rate(1), busy_rate(4)
        ones.append(one)
        fours.append(four)
        ratios.append(four / one)
    info("handlers of 2 ms processor time, one process", statistics.median(ones), unit="records/s")
    info("  --procs 4", statistics.median(fours), unit="records/s")
    verdict(f"  four processes / one, {os.cpu_count()} cores", statistics.median(ratios), 1.8, unit="×")


PARTS = {"sleep": sleep, "crowd": crowd, "slow": slow, "processes": processes, "members": members}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--runs", type=int, default=3)
    inner = parser.add_argument_group("what the parts give their processes")
    inner.add_argument("--section", choices=SECTIONS)
    inner.add_argument("--url")
    inner.add_argument("--group", default="beyond")
    inner.add_argument("--members", type=int)
    inner.add_argument("--wait-ms", type=int)
    inner.add_argument("--records", type=int)
    inner.add_argument("--slow", type=int)
    options = parser.parse_args()
    if options.section:
        print(json.dumps(SECTIONS[options.section](options)))
        return
    for name, part in PARTS.items():
        if options.only in (None, name):
            part(options.runs)


if __name__ == "__main__":
    main()
