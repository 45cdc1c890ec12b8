"""The app of the workers in `tests.chaos.chain`: an agent that writes exactly once, and one behind it that journals."""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import Any

import flowshare as fs
from tests.chaos.journal import BEGUN, LINE, NO_FENCE, NO_KEY, NUMBER_SIZE

ENV = os.environ.get
TOPIC, ISOLATION = ENV("TOPIC", "in"), ENV("ISOLATION", "")
MIDDLE = f"{TOPIC}.mid"
JOURNAL = os.open(
    os.path.join(ENV("JOURNALS", "/tmp"), f"{os.getpid()}.journal"), os.O_WRONLY | os.O_APPEND | os.O_CREAT
)
dice = random.Random(os.getpid())
app = fs.App("chain", broker=ENV("URL", "memory://"))
common: Any = {"concurrency": 16, "lock_duration": float(ENV("LOCK_S", "3")), "drain_timeout": 10}


@app.share_agent(
    app.topic(TOPIC, value_type=bytes), name="a", group=f"{TOPIC}.a", exactly_once=True, sink=[MIDDLE], **common
)
async def a(value: bytes) -> bytes:
    """Hand the record on."""
    await asyncio.sleep(dice.uniform(0.0, 0.02))
    return value


@app.share_agent(
    app.topic(MIDDLE, value_type=bytes),
    name="b",
    group=f"{TOPIC}.work",
    **common,
    **({"isolation": ISOLATION} if ISOLATION else {}),
)
async def b(value: bytes, delivery: fs.Delivery) -> None:
    """Note where it was."""
    place = delivery.partition, min(delivery.attempt, 0xFFFF), 0, os.getpid(), int(value[:NUMBER_SIZE]), NO_KEY
    os.write(JOURNAL, LINE.pack(BEGUN, *place, delivery.offset, *NO_FENCE, time.monotonic_ns()))
