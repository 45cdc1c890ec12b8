"""The app of the workers of all runs but the chain's and Spark's, whose handlers write what they do before they do it.

With LEASE_S its agent is one of a cooperative group, which rejects nothing. With an empty ORDER its agent has no order,
and no attempt is planned to fail; what members are told of their deliveries is written, too, and a thread syncs the
journal to the disk. The handler of the record POISON kills its own process.

With ONCE its agent has outputs: one that is sent by the delivery as soon as the handler begins, so that attempts that
fail, reject or are cancelled have sent something, and one that is returned.

`python -m tests.chaos.app SECONDS`: members of the same group that join and leave, one each 0 to 500 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import sys
import threading
import time
from contextlib import AsyncExitStack
from typing import Any

import flowshare as fs
from flowshare.agents.host.host import Host
from tests.chaos import once_steps
from tests.chaos.journal import (
    ACCEPTED,
    BEGUN,
    CANCELLED,
    CONFIRMED,
    FAILED,
    LINE,
    NO_FENCE,
    NO_ID,
    NO_KEY,
    NUMBER_SIZE,
    OTHER,
    REJECTED,
    STILL,
    fails,
    poisoned,
)
from tests.chaos.once_judge import EXACTLY_ONCE, Output, output_topics

ENV = os.environ.get
TOPIC, SEED, HANDLERS = ENV("TOPIC", "orders"), int(ENV("SEED", "0")), ENV("HANDLERS", "tasks")
SHORT_S, LONG, LONG_S = float(ENV("SHORT_S", "0")), float(ENV("LONG", "0")), float(ENV("LONG_S", "1"))
ONCE = ENV("ONCE", "")
"""The agent's promise for its outputs; empty: the agent has no outputs."""
LEASE_S = float(ENV("LEASE_S", "0"))
"""How long the keys of a member of a cooperative group are its own without a word; 0: the group is a share group."""
ORDER, POISON = ENV("ORDER", "key"), int(ENV("POISON", "-1"))
RETURNED, SENT = output_topics(TOPIC)
AT_ONCE = 0.3
"""So many return without ever waiting."""
ATTEMPTS = int(ENV("ATTEMPTS", "15"))
STILL_S = 0.3
PULSE_S = 0.05
SYNC_S = 0.2
MEMBERS_MAX = 4
PID = os.getpid()
JOURNAL = os.open(
    os.path.join(ENV("JOURNALS", "/tmp"), f"{PID}.journal"),
    os.O_WRONLY | os.O_APPEND | os.O_CREAT,
)
dice = random.Random(PID)


def note(what: bytes, delivery: fs.Delivery, number: int) -> None:
    """Write one line about a handler."""
    key = delivery.key
    generation, serial = getattr(delivery, "fence", None) or NO_FENCE
    os.write(
        JOURNAL,
        LINE.pack(
            what,
            delivery.partition,
            min(delivery.attempt, 0xFFFF),
            0,
            PID,
            number,
            NO_KEY if key is None else int(key),
            delivery.offset,
            generation,
            serial,
            time.monotonic_ns(),
        ),
    )


def pulse() -> None:
    """Note when this process does not get on, for whatever reason."""
    before = time.monotonic_ns()
    while True:
        time.sleep(PULSE_S)
        now = time.monotonic_ns()
        if now - before > STILL_S * 1e9:
            os.write(JOURNAL, LINE.pack(STILL, 0, 0, 0, PID, 0, NO_KEY, now - before, *NO_FENCE, now))
        before = now


def settled(one: Any) -> None:
    """Note what a member was told of a delivery."""
    what = CONFIRMED if one.outcome == "accepted" else OTHER
    where = one.partition, min(one.attempt, 0xFFFF), 0, PID, NO_ID, NO_KEY, one.offset
    os.write(JOURNAL, LINE.pack(what, *where, *NO_FENCE, time.monotonic_ns()))
    if what == OTHER:
        print("SETTLED", one, flush=True)


def sync() -> None:
    """Have the journal on the disk, soon."""
    while True:
        time.sleep(SYNC_S)
        os.fdatasync(JOURNAL)


def unsaid(record: logging.LogRecord) -> bool:
    """Leave out what is said of every planned failure."""
    return not isinstance(record.msg, str) or ("tried again in" not in record.msg and "rejected: " not in record.msg)


def takes_s() -> float:
    """How long a handler takes."""
    drawn = dice.random()
    if drawn < LONG:
        return dice.uniform(LONG_S / 2, LONG_S)
    return 0.0 if drawn < LONG + AT_ONCE else dice.uniform(0.0, 2 * SHORT_S)


def ends(number: int, attempt: int) -> Exception | None:
    """Return the exception that the plan has an attempt raise; None: the attempt succeeds."""
    if not ORDER:
        return None
    if fails(SEED, number, attempt):
        return RuntimeError("planned")
    return fs.Reject("planned") if poisoned(SEED, number) and not LEASE_S else None


def outputs(delivery: fs.Delivery, number: int) -> Any:
    """Send one output, and return what the handler is to return for the other; None without ONCE."""
    if not ONCE:
        return None
    key = delivery.key
    told = Output(number, delivery.attempt, delivery.partition, delivery.offset, NO_KEY if key is None else int(key))
    value = told.encode()
    sender: Any = fs.current_delivery()
    if not hasattr(sender, "send"):
        return [fs.Send(RETURNED, value), fs.Send(SENT, value, key=key)]
    sender.send(SENT, value, key=key)
    return value if number % 2 else fs.Send(RETURNED, value, key=key)


async def work(value: bytes, delivery: fs.Delivery) -> Any:
    """The handler as a task."""
    number = int(value[:NUMBER_SIZE])
    note(BEGUN, delivery, number)
    if number == POISON:
        os.kill(PID, signal.SIGKILL)
    result = outputs(delivery, number)
    try:
        if length_s := takes_s():
            await asyncio.sleep(length_s)
    except BaseException:
        note(CANCELLED, delivery, number)
        raise
    end(delivery, number)
    return result


def work_in_thread(value: bytes, delivery: fs.Delivery) -> Any:
    """The handler in a thread."""
    number = int(value[:NUMBER_SIZE])
    note(BEGUN, delivery, number)
    result = outputs(delivery, number)
    if length_s := takes_s():
        time.sleep(length_s)
    end(delivery, number)
    return result


def end(delivery: fs.Delivery, number: int) -> None:
    """Write how the handler ends, and end so."""
    error = ends(number, delivery.attempt)
    if error is None:
        note(ACCEPTED, delivery, number)
        return
    note(REJECTED if isinstance(error, fs.Reject) else FAILED, delivery, number)
    raise error


def make(app_id: str) -> fs.App:
    """An app whose agent is a member of the group."""
    made = fs.App(app_id, broker=ENV("URL", "memory://"))
    handler = work_in_thread if HANDLERS == "threads" else work
    common: Any = {
        "group": f"{TOPIC}.work",
        "concurrency": int(ENV("CONCURRENCY", "16")),
        "retry": fs.Retry(max_attempts=ATTEMPTS, delay=fs.exponential(0.01, cap=0.1)),
        "drain_timeout": 10,
    }
    if LEASE_S:
        made.cooperative_agent(made.topic(TOPIC, value_type=bytes), lease=LEASE_S, **common)(handler)
        return made
    more: Any = {"sink": [RETURNED]} if ONCE else {}
    if ONCE == EXACTLY_ONCE:
        more["exactly_once"] = True
    made.share_agent(
        made.topic(TOPIC, value_type=bytes),
        **({"order": ORDER} if ORDER else {}),
        lock_duration=float(ENV("LOCK_S", "3")),
        **common,
        **more,
    )(handler)
    return made


async def come_and_go(length_s: float) -> None:
    """Members join and leave, until all have left."""
    async with AsyncExitStack() as all_of_them:
        members: list[AsyncExitStack] = []
        until = time.monotonic() + length_s
        number = 0
        while time.monotonic() < until:
            if members and (len(members) == MEMBERS_MAX or dice.random() < 0.5):
                await members.pop(dice.randrange(len(members))).aclose()
            else:
                number += 1
                member = AsyncExitStack()
                await member.enter_async_context(make(f"guest-{number}").running())
                all_of_them.push_async_callback(member.aclose)
                members.append(member)
            await asyncio.sleep(dice.uniform(0.0, 0.5))


logging.getLogger("flowshare.agents").addFilter(unsaid)
threading.Thread(target=pulse, name="pulse", daemon=True).start()
once_steps.patch()
if not ORDER:
    Host.__init__.__kwdefaults__["observer"] = settled  # type: ignore[index]
    threading.Thread(target=sync, name="sync", daemon=True).start()
app = make("chaos")

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(come_and_go(float(sys.argv[1])))
