"""How long a record is under way on a real broker: an agent beside plain consumers and librdkafka's share consumer.

    python benchmarks/latency.py [--rates 500,1000] [--seconds 10] [--runs 5]

One partition. A process of its own sends single records evenly (librdkafka, linger 0, acks=all) with the time at which
each should have left, so that a sender that is late counts as latency. Each consumer is a process of its own and
alone; they take turns, and each figure is the median over the runs. Needs Java for the broker.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

import arena
from common import info, verdict
from flowshare.dev.processes import tied_to_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

HERE = Path(__file__).resolve()
WARM, LAST = b"warm", b"last"
WARM_RECORDS = 1_000_000
COLD_ROUNDS = 4
"""Rounds before the first rate counts: a fresh broker answers single records late for half a minute."""
JOIN_LIMIT_S = 60
AGENT, SHARE, PLAIN, AIO = "flowshare agent", "confluent ShareConsumer", "confluent Consumer", "aiokafka"
WORKERS = "flowshare workers"
WRITTEN = "confluent Consumer that writes first"
HELD_TO = {PLAIN: 2.0, AIO: 2.0}


class Stamps:
    """Takes values off a consumer; says when the first came and when all did."""

    def __init__(self) -> None:
        self.seen: list[float] = []
        self.joined = self.ended = False
        self._cpu = 0.0

    def take(self, value: bytes) -> bool:
        """A value; whether it was the last one."""
        if value == WARM:
            if not self.joined:
                self.joined = True
                self._cpu = time.process_time()
                print("joined", flush=True)
        elif value == LAST:
            self.ended = True
        else:
            self.seen.append(time.monotonic() - float(value))
        return self.ended

    def figures(self) -> dict[str, float]:
        """Milliseconds; processor time in microseconds a record."""
        cpu = time.process_time() - self._cpu
        ordered = sorted(self.seen)
        return {
            "p50": 1000 * ordered[len(ordered) // 2],
            "p99": 1000 * ordered[int(0.99 * len(ordered))],
            "max": 1000 * ordered[-1],
            "cpu_us": 1e6 * cpu / len(ordered),
        }


# --- consumers --------------------------------------------------------------------------------------------------


def flowshare(options: argparse.Namespace, stamps: Stamps) -> None:
    """An agent with default options."""
    receive_all(options, stamps, f"kafka://{options.bootstrap}?share=native")


def workers(options: argparse.Namespace, stamps: Stamps) -> None:
    """The same, with its share group led by the worker itself."""
    receive_all(options, stamps, f"kafka://{options.bootstrap}?share=workers&fleet={options.group}")


def receive_all(options: argparse.Namespace, stamps: Stamps, url: str) -> None:
    """An agent at `url`."""
    import flowshare as fs

    async def main() -> None:
        app = fs.App("bench", broker=url)
        done = asyncio.Event()

        @app.share_agent(app.topic(options.topic, value_type=bytes), group=options.group)
        async def receive(value: bytes) -> None:
            if stamps.take(value):
                done.set()

        async with app.running():
            await done.wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def aiokafka(options: argparse.Namespace, stamps: Stamps) -> None:
    """`async for` of a consumer group."""
    from aiokafka import AIOKafkaConsumer

    async def main() -> None:
        consumer = AIOKafkaConsumer(
            options.topic, bootstrap_servers=options.bootstrap, group_id=options.group, auto_offset_reset="earliest"
        )
        await consumer.start()
        async for record in consumer:
            if stamps.take(record.value):
                break
        await consumer.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def plain(options: argparse.Namespace, stamps: Stamps) -> None:
    """librdkafka's consumer of a consumer group."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {"bootstrap.servers": options.bootstrap, "group.id": options.group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([options.topic])
    while not stamps.ended:
        for message in consumer.consume(500, timeout=0.001) or filter(None, [consumer.poll(1)]):
            stamps.take(message.value())
    consumer.close()


def written(options: argparse.Namespace, stamps: Stamps) -> None:
    """librdkafka's consumer that writes a line (acks=all) for what it got before it hands it on: what writing down who
    has a record costs, without anything of ours."""
    from confluent_kafka import Consumer, Producer

    consumer = Consumer(
        {"bootstrap.servers": options.bootstrap, "group.id": options.group, "auto.offset.reset": "earliest"}
    )
    producer = Producer({"bootstrap.servers": options.bootstrap, "linger.ms": 0, "acks": "all", "log_level": 0})
    consumer.subscribe([options.topic])

    def hand_on(values: list[bytes]) -> None:
        for value in values:
            stamps.take(value)

    while not stamps.ended:
        if messages := consumer.consume(500, timeout=0):
            values = [message.value() for message in messages]
            producer.produce(
                f"{options.group}-written", b"x" * 60, on_delivery=lambda *_, values=values: hand_on(values)
            )
        producer.poll(0.0005)
    consumer.close()


def share(options: argparse.Namespace, stamps: Stamps) -> None:
    """librdkafka's share consumer, implicit acknowledgement."""
    from confluent_kafka import ShareConsumer

    consumer = ShareConsumer({"bootstrap.servers": options.bootstrap, "group.id": options.group, "log_level": 0})
    consumer.subscribe([options.topic])
    while not stamps.ended:
        for message in consumer.poll(timeout=1.0):
            stamps.take(message.value())
    consumer.close()


CONSUMERS: dict[str, Callable[[argparse.Namespace, Stamps], None]] = {
    AGENT: flowshare,
    WORKERS: workers,
    SHARE: share,
    PLAIN: plain,
    WRITTEN: written,
    AIO: aiokafka,
}


# --- the sender -------------------------------------------------------------------------------------------------


def send(options: argparse.Namespace) -> None:
    """Stamped records at an even rate, then the last one."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": options.bootstrap, "linger.ms": 0, "acks": "all", "log_level": 0})
    start = time.monotonic() + 0.2
    for number in range(round(options.rate * options.seconds)):
        due = start + number / options.rate
        while (left := due - time.monotonic()) > 0:
            time.sleep(left)
        producer.produce(options.topic, b"%.6f" % due)
        producer.poll(0)
    producer.flush(30)
    producer.produce(options.topic, LAST)
    producer.flush(30)


def run(server: arena.Server, name: str, rate: int, seconds: float) -> dict[str, float]:
    """One consumer on a topic of its own."""
    from confluent_kafka import Producer

    topic, group = server.topic(server.unused_group()), server.group()
    where = [f"--bootstrap={server.bootstrap}", f"--topic={topic}", f"--group={group}"]
    consumer = subprocess.Popen(
        [sys.executable, str(HERE), "--consumer", name, *where],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=tied_to_parent(),
    )
    producer = Producer({"bootstrap.servers": server.bootstrap, "log_level": 0})
    producer.produce(topic, WARM)
    producer.flush(30)
    assert consumer.stdout is not None
    if consumer.stdout.readline() != "joined\n":
        raise SystemExit(f"{name} ended before its first record")
    time.sleep(1)  # what a start leaves to do
    command = [sys.executable, str(HERE), "--send", *where, f"--rate={rate}", f"--seconds={seconds}"]
    subprocess.run(command, check=True, timeout=seconds + JOIN_LIMIT_S, preexec_fn=tied_to_parent())
    out, _ = consumer.communicate(timeout=JOIN_LIMIT_S)
    figures: dict[str, float] = json.loads(out.splitlines()[-1])
    return figures


def table(
    server: arena.Server,
    rate: int,
    seconds: float,
    runs: int,
    *,
    uncounted: int,
    ours: str = AGENT,
    beside: Sequence[str] = (SHARE, PLAIN, AIO),
    held_to: Mapping[str, float] = HELD_TO,
) -> None:
    """`ours` and others in turns at one rate, after some rounds that are not counted.

    held_to: how many times another one's latency ours may have.
    """
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for number in range(-uncounted, runs):
        for name in (ours, *beside):
            figures = run(server, name, rate, seconds)
            if number >= 0:
                found[name].append(figures)
    middle = {name: arena.medians(each) for name, each in found.items()}
    for name, figures in middle.items():
        for part in ("p50", "p99", "max"):
            info(f"{name} at {rate:,}/s, {part}", figures[part], unit="ms")
        info("  its processor time", figures["cpu_us"], unit="µs/record")
    for part in ("p50", "p99"):
        for other, target in held_to.items():
            ratio = middle[ours][part] / middle[other][part]
            verdict(f"{ours} / {other} at {rate:,}/s, {part}", ratio, target, unit="×", at_most=True)


def warm(server: arena.Server) -> None:
    """Give the broker work until its compiler and its collector have found their pace: else the first rate pays."""
    topic = server.fill("warm", WARM_RECORDS)
    for _ in range(2):
        arena.python_peer(
            "peer.py",
            "librdkafka",
            bootstrap=server.bootstrap,
            topic=topic,
            group=server.group(),
            records=WARM_RECORDS,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="500,1000")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--runs", type=int, default=5)
    inner = parser.add_argument_group("what the processes are told")
    inner.add_argument("--consumer", choices=CONSUMERS)
    inner.add_argument("--send", action="store_true")
    inner.add_argument("--bootstrap")
    inner.add_argument("--topic")
    inner.add_argument("--group")
    inner.add_argument("--rate", type=int)
    options = parser.parse_args()
    if options.send:
        send(options)
    elif options.consumer:
        stamps = Stamps()
        CONSUMERS[options.consumer](options, stamps)
        print(json.dumps(stamps.figures()))
    else:
        with arena.kafka() as server:
            warm(server)
            for place, rate in enumerate(options.rates.split(",")):
                uncounted = 1 if place else COLD_ROUNDS
                table(server, int(rate), options.seconds, options.runs, uncounted=uncounted)


if __name__ == "__main__":
    main()
