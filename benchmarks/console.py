"""Measure the console's cost and speed: many groups on an embedded path, a worker that leads, open pages.

    python benchmarks/console.py [--groups 200] [--partitions 25] [--busy 2000] [--pages 1] [--seconds 20] [--rounds 3]

Groups share four topics. One more group is busy: `--busy` records a second are produced to it and handled. The leader's
processor time is that of the worker's process, measured in turns with a console and without. A page is one that is
requested every second, as the script does. First paint is the browser's own figure, where there is a browser
(`tests/browser`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

from common import info, verdict
from flowshare.client.producer.producer import Message
from flowshare.ops.session import open_session

TOPICS = ("a", "b", "c", "d")
RECORDS = 20_000
APP = """
import flowshare as fs
app = fs.App("big", broker="{url}")
@app.share_agent(app.topic("busy"), group="busy", concurrency=64)
async def handle(value: bytes): pass
"""
PAINT_MOST_S, AGE_MOST_S, CONSOLE_MOST, LEADER_MOST = 1.0, 1.0, 0.10, 0.02
TICKS = os.sysconf("SC_CLK_TCK")


def spent_s(pid: int) -> float:
    """Processor time of a process, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def fill(url: str, groups: int, partitions: int) -> None:
    """Topics with records, and groups that stand somewhere in them."""
    async with open_session(url, create=True) as session:
        await session.admin.create_topic("busy", partitions=4)
        for topic in TOPICS:
            await session.admin.create_topic(topic, partitions=partitions)
            await session.producer.send_many(topic, [Message(b"x" * 100, b"%d" % (i % 500)) for i in range(RECORDS)])
        for number in range(groups):
            topic = TOPICS[number % len(TOPICS)]
            places = {(topic, part): (number * 7 + part * 3) % (RECORDS // partitions) for part in range(partitions)}
            await session.admin.place_group(f"group-{number:05d}", places)


class Processes:
    """A worker and a console on the path, and what feeds the worker."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self._folder = folder
        (folder / "bigapp.py").write_text(APP.format(url=url))
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *command: str) -> int:
        """The process's id, once it has printed what it prints when it is ready."""
        log = self._folder / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "flowshare.cli", *command], stdout=out, stderr=out, cwd=self._folder
            )
        self._running.append(process)
        until = time.monotonic() + 120
        while not re.search(r"ready after|console: ", self.log(name)):
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{name} did not start: {self.log(name)[-1000:]}")
            time.sleep(0.1)
        return process.pid

    def log(self, name: str) -> str:
        """Return the text that the process printed to its log."""
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def end(self, pid: int | None = None) -> None:
        """One of them, or all."""
        for process in [one for one in self._running if pid in (None, one.pid)]:
            process.terminate()
            process.wait(60)
            self._running.remove(process)


class Visitor:
    """Somebody with the page of groups open."""

    def __init__(self, address: str) -> None:
        self.root = address.partition("/?")[0]
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        self._opener.open(address).read()

    def look(self) -> tuple[float, float | None]:
        """Seconds that the page took, and how old it says its figures are."""
        begun = time.perf_counter()
        text = self._opener.open(f"{self.root}/groups").read().decode()
        took = time.perf_counter() - begun
        found = re.search(r'data-seconds="([0-9.]+)"', text)
        return took, None if found is None or "not seen yet" in text else float(found[1])


async def feed(url: str, per_s: int, seconds: float) -> None:
    """So many records a second to the busy group."""
    async with open_session(url) as session:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            begun = time.monotonic()
            await session.producer.send_many("busy", [Message(b"x" * 100) for _ in range(per_s // 10)])
            await asyncio.sleep(max(0.0, 0.1 - (time.monotonic() - begun)))


async def measured(url: str, per_s: int, seconds: float, pids: list[int], visitors: list[Visitor]) -> dict[str, Any]:
    """Parts of a processor that processes take while the group is busy and pages are open."""
    busy = asyncio.create_task(feed(url, per_s, seconds + 1))
    await asyncio.sleep(0.5)
    before, begun = [spent_s(pid) for pid in pids], time.monotonic()
    looks: list[tuple[float, float | None]] = []
    while time.monotonic() - begun < seconds:
        at = time.monotonic()
        looks += await asyncio.gather(*(asyncio.to_thread(one.look) for one in visitors))
        await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - at)))
    took = time.monotonic() - begun
    parts = [(spent_s(pid) - then) / took for pid, then in zip(pids, before, strict=True)]
    await busy
    return {"parts": parts, "looks": looks}


async def first_paint(address: str) -> float | None:
    """Seconds until the browser has painted the page of groups; None: there is no browser."""
    try:
        from tests.browser.pages import browsing
    except ImportError:
        return None
    try:
        async with browsing() as browser, browser.page(address) as page:
            times = []
            for _ in range(5):
                await page.goto(address.partition("/?")[0] + "/groups")
                times.append(
                    await page.evaluate(
                        "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? performance.now()"
                    )
                )
    except Exception as error:  # noqa: BLE001 - any reason why there is no browser here
        print(f"no browser: {error}")
        return None
    return float(statistics.median(times)) / 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = {"groups": 200, "partitions": 25, "busy": 2000, "pages": 1, "seconds": 20, "rounds": 3}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        url = f"embedded://{folder / 'data'}"
        begun = time.monotonic()
        asyncio.run(fill(url, asked.groups, asked.partitions))
        parts = asked.groups * asked.partitions
        print(
            f"{asked.groups} groups with {parts} share-partitions, made in {time.monotonic() - begun:.0f} s", flush=True
        )
        processes = Processes(folder, url)
        try:
            return compared(processes, asked)
        finally:
            processes.end()


def compared(processes: Processes, asked: argparse.Namespace) -> int:
    """Rounds with and without a console, in turns."""
    worker = processes.start("worker", "worker", "bigapp:app")
    asyncio.run(measured(processes.url, asked.busy, 5, [worker], []))
    without: list[float] = []
    beside: list[float] = []
    own: list[float] = []
    looks: list[tuple[float, float | None]] = []
    paint = None
    for number in range(asked.rounds):
        without += asyncio.run(measured(processes.url, asked.busy, asked.seconds, [worker], []))["parts"]
        console = processes.start(f"console{number}", "console", "--broker", processes.url, "--port", "0")
        address = processes.log(f"console{number}").split("console: ", 1)[1].split()[0]
        visitors = [Visitor(address) for _ in range(asked.pages)]
        deadline = time.monotonic() + 60
        while visitors[0].look()[1] is None and time.monotonic() < deadline:
            time.sleep(0.5)
        time.sleep(5)  # what it asks once is over
        found = asyncio.run(measured(processes.url, asked.busy, asked.seconds, [worker, console], visitors))
        beside.append(found["parts"][0])
        own.append(found["parts"][1])
        looks += found["looks"]
        paint = paint or asyncio.run(first_paint(address))
        processes.end(console)
    ages = [age for _, age in looks if age is not None]
    leader = statistics.median(beside) - statistics.median(without)
    rows = {
        "page of groups, median s": statistics.median(took for took, _ in looks),
        "page of groups, slowest s": max(took for took, _ in looks),
        "first paint s": paint,
        "age of figures, median s": statistics.median(ages),
        "age of figures, oldest s": max(ages),
        "console, part of a core": statistics.median(own),
        "leader without, part of a core": statistics.median(without),
        "leader with, part of a core": statistics.median(beside),
        "more at the leader": leader,
    }
    for name, value in rows.items():
        if value is not None:
            info(name, 1000 * value if name.endswith(" s") else 100 * value, unit="ms" if name.endswith(" s") else "%")
    shown = paint if paint is not None else rows["page of groups, slowest s"]
    verdict("first paint", 1000 * (shown or 0.0), 1000 * PAINT_MOST_S, unit="ms", at_most=True)
    verdict("age of figures", 1000 * statistics.median(ages), 1000 * AGE_MOST_S, unit="ms", at_most=True)
    verdict(
        "the console's processor", 100 * statistics.median(own), 100 * CONSOLE_MOST, unit="% of a core", at_most=True
    )
    verdict("more at the leader", 100 * leader, 100 * LEADER_MOST, unit="% of a core", at_most=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
