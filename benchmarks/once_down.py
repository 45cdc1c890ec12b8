"""Measure the loss of an agent whose neighbour writes to a partition that is down: outputs exactly once, on a fleet.

    python benchmarks/once_down.py [--runs 3]

Two real brokers and a fleet of one worker with one slot, so that both agents' settles go through the same lanes. One
agent copies 500 records a second to a topic that both brokers have. The other agent writes to a topic whose only
replica is on the second broker, which is killed. First this neighbour has no records, then 50 a second, none of which
can be written. Latency is that of an output, from the time when its input should have been sent until a reader of
committed records has it. Each run has a fleet and topics of its own; figures are medians.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics

import uvloop
from confluent_kafka.admin import AdminClient, NewTopic
from once import KafkaReader, Stamps, send_evenly

import flowshare as fs
from common import info, verdict
from flowshare.dev import broker

NODES = {
    "default.replication.factor": "2",
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.replication.factor": "2",
    "min.insync.replicas": "1",
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "2000",
}
BOTH, SECOND = [[1, 2]], [[2]]
DOWN_S = 8.0
"""Until the other broker leads everything that it can."""
WARM_RECORDS = 200
NEIGHBOURS_PAUSE_S = 0.02
P50_MOST = 1.05
CALL_S = 30


def make(bootstrap: str, topics: dict[str, list[list[int]]]) -> None:
    """Topics of one partition with these replicas."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    made = admin.create_topics([NewTopic(name, 1, replica_assignment=nodes) for name, nodes in topics.items()])
    for one in made.values():
        one.result(CALL_S)


async def keep_sending(topic: fs.Topic[bytes]) -> None:
    """Until it is cancelled."""
    while True:
        await topic.send(value=b"x" * 100)
        await asyncio.sleep(NEIGHBOURS_PAUSE_S)


async def measured(values: fs.Topic[bytes], stamps: Stamps) -> float:
    """p50 of the outputs, in ms."""
    await send_evenly(values)
    await asyncio.to_thread(stamps.all_seen.wait, CALL_S)
    return stamps.figures()["p50"]


async def one_run(running: broker.DevBroker, run: int) -> tuple[float, float]:
    """p50 while the neighbour has nothing to do, and while nothing that it has can be written."""
    names = [f"{name}-{run}" for name in ("values", "copies", "others", "down")]
    make(running.bootstrap, {name: SECOND if name.startswith("down") else BOTH for name in names})
    app = fs.App("bench", broker=f"kafka://{running.bootstrap}?share=workers&fleet=run-{run}&slots=1")
    values, copies, others, down = (app.topic(name, value_type=bytes) for name in names)

    @app.share_agent(values, sink=[copies], exactly_once=True)
    async def copy(value: bytes) -> bytes:
        return value

    @app.share_agent(others, sink=[down], exactly_once=True)
    async def neighbour(value: bytes) -> bytes:
        return value

    async with app.running():
        for _ in range(WARM_RECORDS):
            await others.send(value=b"before")
        running.processes[1].end(0)
        await asyncio.sleep(DOWN_S)
        found: list[float] = []
        for busy in (False, True):
            stamps = Stamps()
            KafkaReader(running.bootstrap, names[1], stamps, at_end=True)
            sending = asyncio.create_task(keep_sending(others)) if busy else None
            found.append(await measured(values, stamps))
            if sending is not None:
                sending.cancel()
        return found[0], found[1]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    found: list[tuple[float, float]] = []
    for run in range(options.runs):
        wanted = broker.Wanted(nodes=2, heap="512m", settings=NODES)
        with (
            broker.running(wanted) as running,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            found.append(runner.run(one_run(running, run)))
    info("p50, the neighbour has nothing to do", statistics.median(quiet for quiet, _ in found), unit="ms")
    info("p50, the neighbour's output partition is down", statistics.median(down for _, down in found), unit="ms")
    ratio = statistics.median(down / quiet for quiet, down in found)
    verdict("  down / nothing to do", ratio, P50_MOST, unit="×", at_most=True)


if __name__ == "__main__":
    main()
