"""One worker of `test_once_kills`: says by an output of each record that it was handled.

    python once_worker.py BROKER JOURNAL LEASE WORK

The journal says how many records it has begun, a byte each. SIGTERM ends it in order.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from typing import Any

import flowshare as fs

broker, journal, lease, work = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
app = fs.App("once", broker=broker)
paid = app.topic("paid", partitions=2)
file = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


@app.cooperative_agent(
    "churn", group="once", sink=paid, lease=lease, concurrency=8, drain_timeout=5, exactly_once=True,
    output_order=os.environ.get("OUTPUT_ORDER", "key"),
)  # fmt: skip
async def handle(value: Any, delivery: fs.Delivery) -> dict[str, Any]:
    os.write(file, b".")
    await asyncio.sleep(random.random() * 2 * work)
    place = {"key": delivery.key.decode(), "partition": delivery.partition, "offset": delivery.offset}
    delivery.send(paid, {**place, "sent": True}, key=delivery.key)
    return place


async def main() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with app.running():
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main())
