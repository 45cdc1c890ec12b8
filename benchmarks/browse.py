"""Measure the cost of browsing a group's records without acquiring them, on the embedded backend.

    python benchmarks/browse.py           all sections, each in fresh processes, medians
    python benchmarks/browse.py --section window --runs-in-window 20000 --order key

Sections: window (a window of 200,000 offsets is browsed whole, in pages: loaded, and as it is stored; with the longest
stretch for which a page kept the loop), noop (a no-op agent while another process looks at its group `--looks` times a
second, a page of 10,000 runs each).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import uvloop
from agent import VALUE, Meter

import flowshare as fs
from common import embedded_url, fill, in_fresh_process, info, verdict
from flowshare.backend import open_backend
from flowshare.backend.embedded import EmbeddedBackend
from flowshare.client.admin.admin import ShareAdmin
from flowshare.clock import LoopClock
from flowshare.errors import FlowshareError
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.messages import (
    AlterShareGroupOffsetsRequest,
    CreateTopicRequest,
    IncrementalAlterConfigsRequest,
    ProduceRequest,
    ShareFetchRequest,
    SharePartitionRequest,
    TopicPartition,
)
from flowshare.server.runtime.state import ShareKey, initial_writes
from flowshare.share.types import PartitionState, RecordState, StateRun

OFFSETS = 200_000
TOPIC, GROUP = "values", "g"
ROUNDS = 7
LOOKS = 100


async def _prepare(backend: EmbeddedBackend, options: argparse.Namespace) -> ShareKey:
    """A group of which 200,000 offsets stand in so many runs: every second one is finished."""
    connection = await backend.connect("bench")
    made = await connection.send(CreateTopicRequest(name=TOPIC))
    configs = {"share.auto.offset.reset": "earliest"}
    if options.order:
        configs["share.key.order"] = options.order
    await connection.send(IncrementalAlterConfigsRequest(resource_type="group", resource=GROUP, configs=configs))
    for at in range(0, OFFSETS, 1_000):
        builder = BatchBuilder()
        for number in range(at, at + 1_000):
            builder.add(b"key-%d" % (number % 1_000), VALUE, [], timestamp_ms=0)
        await connection.send(ProduceRequest(topic=TOPIC, partition=0, records=builder.build()))
    placed = {(TOPIC, 0): 0}
    await connection.send(AlterShareGroupOffsetsRequest(group_id=GROUP, offsets=placed))
    size = OFFSETS // options.runs_in_window
    states = (RecordState.AVAILABLE, RecordState.ACKNOWLEDGED)
    runs = tuple(
        StateRun(first, min(first + size, OFFSETS) - 1, states[(first // size) % 2], 1)
        for first in range(0, OFFSETS, size)
    )
    key = ShareKey(GROUP, made.topic_id, 0)
    await backend._led.storage.write(initial_writes(key, PartitionState(start_offset=0, runs=runs)))
    return key


async def _whole(admin: ShareAdmin) -> int:
    """How many runs there are, page by page, each of them looked at."""
    return sum([sum(run.last >= run.first for run in page.runs) async for page in admin.browse_all(GROUP, TOPIC, 0)])


async def _looked(admin: ShareAdmin) -> tuple[float, float, int]:
    """Seconds for the whole and of processor time, medians of some, and the runs."""
    times: list[float] = []
    used: list[float] = []
    runs = 0
    for _ in range(ROUNDS):
        begun, cpu = time.perf_counter(), time.process_time()
        runs = await _whole(admin)
        times.append(time.perf_counter() - begun)
        used.append(time.process_time() - cpu)
    return statistics.median(times), statistics.median(used), runs


async def _longest(admin: ShareAdmin) -> float:
    """The longest time for which the loop answered nobody else while all of it was browsed."""
    longest, last, over = 0.0, time.perf_counter(), False

    async def beat() -> None:
        nonlocal longest, last
        while not over:
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0)
    last = time.perf_counter()
    await _whole(admin)
    over = True
    await beating
    return longest


def section_window(options: argparse.Namespace) -> dict[str, float]:
    """`runs_in_window`, `order`: see above."""

    async def main(path: str) -> dict[str, float]:
        backend = EmbeddedBackend(path)
        await backend.start()
        key = await _prepare(backend, options)
        await backend.close()
        backend = EmbeddedBackend(path)
        await backend.start()
        admin = ShareAdmin(lambda: backend.connect("admin"), clock=LoopClock())
        storage = backend._led.storage
        before = await storage.scan(key.prefix)
        stored, stored_cpu, _ = await _looked(admin)
        for _ in range(LOOKS):
            await admin.browse(GROUP, TOPIC, 0, limit=10_000)
        same = await storage.scan(key.prefix) == before

        connection = await backend.connect("bench")
        request = ShareFetchRequest(
            group_id=GROUP,
            member_id="m",
            session_epoch=0,
            max_records=500,
            heads=500 if options.order else 0,
            max_wait_ms=5_000,
            partitions=(SharePartitionRequest(*TopicPartition(key.topic_id, 0)),),
        )
        await connection.send(request)
        before = await storage.scan(key.prefix)
        live, live_cpu, runs = await _looked(admin)
        for _ in range(LOOKS):
            await admin.browse(GROUP, TOPIC, 0, limit=10_000)
        same = same and await storage.scan(key.prefix) == before
        longest = await _longest(admin)
        await admin.close()
        await backend.close()
        figures = {"stored": stored, "stored_cpu": stored_cpu, "live": live, "live_cpu": live_cpu}
        return {**figures, "runs": runs, "longest": longest, "same": float(same)}

    loop = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    with tempfile.TemporaryDirectory(prefix="flowshare-bench-") as path, loop as runner:
        return runner.run(main(path))


def section_look(options: argparse.Namespace) -> dict[str, float]:
    """The other process: looks until its input ends."""

    async def main() -> dict[str, float]:
        clock = LoopClock()
        backend = open_backend(options.url, clock=clock, listen=False)
        await backend.start()
        admin = ShareAdmin(lambda: backend.connect("look"), clock=clock)
        await admin.ping()
        print("ready", flush=True)
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        looks, runs, took = 0, 0, 0.0
        while not ended.done():
            if options.looks:
                try:
                    begun = time.perf_counter()
                    page = await admin.browse(GROUP, TOPIC, 0, limit=10_000)
                    looks, runs, took = looks + 1, runs + len(page.runs), took + time.perf_counter() - begun
                except FlowshareError:
                    pass  # the group has not begun yet
            await asyncio.sleep(1 / (options.looks or 10))
        await admin.close()
        await backend.close()
        return {"looks": looks, "runs_a_look": runs / (looks or 1), "seconds_a_look": took / (looks or 1)}

    return asyncio.run(main())


def section_noop(options: argparse.Namespace) -> dict[str, float]:
    """`looks`: a second; 0: the other process is there and does nothing. Records flow when it is ready."""

    async def main(url: str) -> dict[str, float]:
        app = fs.App("bench", broker=url)
        meter = Meter(options.records)
        hit = meter.hit

        @app.share_agent(app.topic(TOPIC, value_type=bytes), group=GROUP)
        async def noop(value: bytes) -> None:
            hit()

        backend = open_backend(url, clock=LoopClock(), listen=False)
        admin = ShareAdmin(lambda: backend.connect("bench"), clock=LoopClock())
        async with app.running():
            await backend.start()
            command = (sys.executable, __file__, "--section", "look", f"--url={url}", f"--looks={options.looks}")
            pipe = asyncio.subprocess.PIPE
            looker = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
            await looker.stdout.readline()
            cpu = time.process_time()
            await admin.resume_group(GROUP)
            await meter.all_seen.wait()
            used = time.process_time() - cpu
            told, _ = await looker.communicate(b"")
        await admin.close()
        await backend.close()
        looks = json.loads(told.decode().strip().splitlines()[-1])
        return {"rate": meter.rate, "cpu_us": used / meter.total * 1e6, **looks}

    async def paused(url: str) -> None:
        backend = open_backend(url, clock=LoopClock())
        await backend.start()
        admin = ShareAdmin(lambda: backend.connect("bench"), clock=LoopClock())
        await admin.pause_group(GROUP)
        await admin.close()
        await backend.close()

    with embedded_url() as url:
        fill(url, TOPIC, [VALUE] * options.records)
        asyncio.run(paused(url))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main(url))


SECTIONS = {"window": section_window, "noop": section_noop, "look": section_look}


def windows(script: str) -> None:
    for runs in (2_000, 20_000, 200_000):
        for order in ("", "key"):
            found = in_fresh_process(script, "window", runs_in_window=runs, order=order)
            name = f"{found['runs']:,.0f} runs of 200,000 offsets{', by key' if order else ''}"
            verdict(f"{name}: loaded", found["live"] * 1e3, 200, unit="ms", at_most=True)
            info(f"{name}: loaded, processor time", found["live_cpu"] * 1e3, unit="ms")
            info(f"{name}: as stored", found["stored"] * 1e3, unit="ms")
            info(f"{name}: as stored, processor time", found["stored_cpu"] * 1e3, unit="ms")
            info(f"{name}: the loop was kept for at most", found["longest"] * 1e3, unit="ms")
            verdict(f"{name}: stored bytes are the same after {LOOKS} looks", found["same"], 1)


def looks(script: str, options: argparse.Namespace) -> None:
    rates: dict[int, list[float]] = {0: [], 10: []}
    made = 0.0
    for _ in range(options.runs):
        for often in (0, 10):
            found = in_fresh_process(script, "noop", records=options.records, looks=often)
            rates[often].append(found["rate"])
            made += found["looks"]
    info("looks in all", made)
    info("no-op agent, nobody looks", statistics.median(rates[0]), unit="records/s")
    verdict("with ten looks a second", statistics.median(rates[10]) / statistics.median(rates[0]), 0.98)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--section", choices=SECTIONS)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--runs-in-window", type=int, default=20_000)
    parser.add_argument("--order", default="")
    parser.add_argument("--looks", type=int, default=10)
    parser.add_argument("--url", default="")
    options = parser.parse_args()
    if options.section:
        print(json.dumps(SECTIONS[options.section](options)))
        return
    script = str(Path(__file__).resolve())
    windows(script)
    looks(script, options)


if __name__ == "__main__":
    main()
