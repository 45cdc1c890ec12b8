"""Shared parts of the benchmarks: a temporary embedded path, a filled topic, a run in a fresh process, a table."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flowshare.backend import open_backend
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.producer.producer import Producer
from flowshare.clock import LoopClock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from flowshare.client.producer.producer import Message

CLEAR_TRIES = 50


@contextmanager
def embedded_url() -> Iterator[str]:
    """An `embedded://` URL in a directory that is gone afterwards."""
    path = tempfile.mkdtemp(prefix="flowshare-bench-")
    try:
        yield f"embedded://{path}/broker"
    finally:
        for _ in range(CLEAR_TRIES):  # who led it, a process of Spark's say, may still be closing it
            shutil.rmtree(path, ignore_errors=True)
            if not os.path.exists(path):
                break
            time.sleep(0.2)
        else:
            shutil.rmtree(path)  # says what is in the way


def fill(
    url: str, topic: str, values: Iterable[bytes | Message], *, partitions: int = 1, batch_size: int = 100_000
) -> None:
    """Create a topic and produce values (without keys) or messages into it, in batches of about `batch_size`."""

    async def main() -> None:
        clock = LoopClock()
        backend = open_backend(url, clock=clock)
        await backend.start()
        try:
            admin = ShareAdmin(lambda: backend.connect("bench-admin"), clock=clock)
            await admin.create_topic(topic, partitions=partitions)
            producer = Producer(lambda: backend.connect("bench-fill"), clock=clock, batch_size=batch_size)
            await producer.send_many(topic, values)
            await producer.close()
            await admin.close()
        finally:
            await backend.close()

    asyncio.run(main())


def in_fresh_process(script: str, section: str, **options: object) -> dict[str, float]:
    """Run one section of a benchmark script alone in a new process; its last line of output is its figures as JSON."""
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    done = subprocess.run(
        [sys.executable, script, "--section", section, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)},
    )
    if done.returncode:
        raise SystemExit(f"section {section} failed with exit code {done.returncode}")
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def median_of(runs: int, script: str, section: str, **options: object) -> dict[str, float]:
    """The figures of a section, each the median over `runs` fresh processes."""
    results = [in_fresh_process(script, section, **options) for _ in range(runs)]
    return {name: statistics.median(result[name] for result in results) for name in results[0]}


def verdict(label: str, value: float, target: float, *, unit: str = "", at_most: bool = False) -> None:
    """Print a figure beside what it is held to."""
    good = value <= target if at_most else value >= target
    sign = "≤" if at_most else "≥"
    print(f"{label:<58} {value:>14,.2f} {unit:<10} {sign} {target:,.2f} {'ok' if good else 'MISSED'}", flush=True)


def info(label: str, value: float, *, unit: str = "") -> None:
    """Print a figure that stands beside another."""
    print(f"{label:<58} {value:>14,.2f} {unit}", flush=True)
