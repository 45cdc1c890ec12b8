"""One worker of `test_churn`: handles records of a cooperative group and writes down when each began and ended.

    python churn_worker.py BROKER JOURNAL LEASE WORK

SIGTERM ends it in order. A line of the journal: `b` or `e`, key, partition, offset, nanoseconds of the machine's clock.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from typing import Any

import flowshare as fs

broker, journal, lease, work = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
app = fs.App("churn", broker=broker)


def note(what: str, delivery: fs.Delivery) -> None:
    """One write, which is in the file when the process is killed."""
    file = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    line = f"{what} {delivery.key.decode()} {delivery.partition} {delivery.offset} {time.monotonic_ns()}\n"
    os.write(file, line.encode())
    os.close(file)


@app.cooperative_agent("churn", group="churn", lease=lease, concurrency=8, drain_timeout=5)
async def handle(value: Any, delivery: fs.Delivery) -> None:
    note("b", delivery)
    await asyncio.sleep(random.random() * 2 * work)
    note("e", delivery)


async def main() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with app.running():
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main())
