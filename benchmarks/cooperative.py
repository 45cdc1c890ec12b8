"""How near members of a cooperative group come to the ideal: 16 members with handlers of 50 ms on one partition.

    python benchmarks/cooperative.py [--members 16] [--work 0.05] [--keys 1000] [--seconds 30]

The ideal is members x 1 / work records a second. A member handles one record at a time. Timed is from when all members
hold something and each has handled a record, for so many seconds; joining is told apart. All run in this process, on a
server in memory, so what it costs them to read, dispatch and commit is in the figure. So is what the machine costs: as
many loops that only sleep run before and after, and their rate is told beside it.

    python benchmarks/cooperative.py --reads [--records 50000] [--keys 1000] [--codec lz4]

What it costs that members share a partition: 1, 4 and 16 of them with handlers that do nothing, where the server sends
each the records of its keys, and where it sends everything to everybody, as Kafka's brokers do. All members hold their
part before the records are sent; the processor time of sending them, to a topic that nobody reads, is taken off.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import flowshare as fs
from flowshare.client.cooperative.consumer import CooperativeConsumer
from flowshare.client.producer.producer import Message
from flowshare.cooperative.types import HASHES
from flowshare.protocol.messages import FetchRequest

GROUP = "bench"


async def bare(args: argparse.Namespace, seconds: float) -> float:
    """Handlers without anything around them: records a second."""
    done = 0

    async def loop() -> None:
        nonlocal done
        while True:
            await asyncio.sleep(args.work)
            done += 1

    tasks = [asyncio.create_task(loop()) for _ in range(args.members)]
    start = time.perf_counter()
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    return done / (time.perf_counter() - start)


class Counting:
    """A connection that counts the bytes of records, and asks for all of them where the server is not to filter."""

    def __init__(self, connection: Any, read: Counter[str], *, filters: bool) -> None:
        self._connection, self._read, self._filters = connection, read, filters
        self.is_flowshare, self.keeps_time = connection.is_flowshare, connection.keeps_time
        self.close = connection.close

    async def send(self, request: Any) -> Any:
        """As `Connection.send`."""
        if isinstance(request, FetchRequest) and not self._filters:
            request = replace(request, partitions=tuple(one._replace(only=None) for one in request.partitions))
        answer = await self._connection.send(request)
        if isinstance(request, FetchRequest):
            self._read["bytes"] += sum(len(log.records) for log in answer.partitions)
            self._read["fetches"] += 1
        return answer


async def send(args: argparse.Namespace, producer: fs.Producer, topic: str) -> float:
    """Send the records; the processor time that it took, of this process."""
    before = time.process_time()
    messages = [Message(b"x" * 100, key=b"key %d" % (one % args.keys)) for one in range(args.records)]
    for first in range(0, args.records, 5_000):
        await producer.send_many(topic, messages[first : first + 5_000])
    return time.process_time() - before


def sharing(consumers: Sequence[CooperativeConsumer[bytes | None, bytes | None]]) -> bool:
    """True if each consumer holds a part and all of them together hold everything."""
    held = [sum(end - first for keys in one.held().values() for first, end in keys) for one in consumers]
    return all(held) and sum(held) == HASHES


async def reads_of(args: argparse.Namespace, members: int, *, filters: bool) -> str:
    """One line of the table."""
    done: Counter[str] = Counter()
    read: Counter[str] = Counter()
    consumers: list[CooperativeConsumer[bytes | None, bytes | None]] = []

    async def handle(consumer: CooperativeConsumer[bytes | None, bytes | None]) -> None:
        async for record in consumer:
            consumer.commit(record)
            done["records"] += 1

    async with fs.Broker("memory://") as broker:
        for topic in ("work", "unread"):
            await fs.ShareAdmin(broker).create_topic(topic, partitions=1)
        producer = fs.Producer(broker, settings=fs.ProducerSettings(compression=args.codec))
        tasks: list[asyncio.Task[None]] = []
        for number in range(members):
            name = f"m{number:02}"

            async def connect(name: str = name) -> Any:
                return Counting(await broker.connect(name), read, filters=filters)

            consumer = CooperativeConsumer(connect, group_id=GROUP, clock=broker.clock, member_id=name)
            consumer.subscribe(["work"])
            consumers.append(consumer)
            tasks.append(asyncio.create_task(handle(consumer)))
        while not sharing(consumers):
            await asyncio.sleep(0.05)
        await asyncio.sleep(args.settle)
        sending = await send(args, producer, "unread")
        read.clear()
        start, cpu = time.perf_counter(), time.process_time()
        await send(args, producer, "work")
        while done["records"] < args.records:
            await asyncio.sleep(0.005)
        took, used = time.perf_counter() - start, time.process_time() - cpu - sending
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for consumer in consumers:
            await consumer.close()
    return (
        f"{members:2} members, {'filtered by the server' if filters else 'each reads everything':22}: "
        f"{read['bytes'] / args.records:8.1f} bytes/record in {read['fetches']} fetches, "
        f"{1e6 * used / args.records:6.1f} us of processor/record, {args.records / took:8.0f} records/s"
    )


async def reads(args: argparse.Namespace) -> None:
    """The table; what is imported at its first use is before it."""
    for filters in (False, True):
        await reads_of(args, 2, filters=filters)
    for members in (1, 4, 16):
        for filters in (False, True):
            print(await reads_of(args, members, filters=filters), flush=True)


async def main(args: argparse.Namespace) -> None:
    settings = fs.CooperativeSettings(max_poll_records=1)
    async with fs.Broker("memory://") as broker:
        await fs.ShareAdmin(broker).create_topic("work", partitions=1)
        ideal = args.members / args.work
        count = int(ideal * (args.seconds + 15))
        producer = fs.Producer(broker)
        for first in range(0, count, 5_000):
            messages = [Message(b"x" * 100, key=b"key %d" % (one % args.keys)) for one in range(first, first + 5_000)]
            await producer.send_many("work", messages)
        done: Counter[str] = Counter()

        async def member(name: str) -> None:
            consumer: CooperativeConsumer[bytes | None, bytes | None] = CooperativeConsumer(
                lambda: broker.connect(name),
                group_id=GROUP,
                clock=broker.clock,
                settings=settings,
                member_id=name,
            )
            consumer.subscribe(["work"])
            async with consumer:
                async for record in consumer:
                    await asyncio.sleep(args.work)
                    consumer.commit(record)
                    done[name] += 1

        before_it = await bare(args, args.seconds / 3)
        began = time.perf_counter()
        names = [f"m{number:02}" for number in range(args.members)]
        tasks = [asyncio.create_task(member(name)) for name in names]
        while len(done) < args.members:
            await asyncio.sleep(0.05)
        await asyncio.sleep(args.settle)
        joined = time.perf_counter() - began
        before, start, cpu = done.copy(), time.perf_counter(), time.process_time()
        await asyncio.sleep(args.seconds)
        took, used = time.perf_counter() - start, time.process_time() - cpu
        each = sorted(done[name] - before[name] for name in names)
        rate = sum(each) / took
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        alone = (before_it + await bare(args, args.seconds / 3)) / 2
        print(
            f"{args.members} members x {args.work * 1000:g} ms, {args.keys} keys: {rate:.1f} records/s, "
            f"{rate / ideal:.3f} of the ideal {ideal:g}, {rate / alone:.3f} of {alone:.1f} without any group; "
            f"a member handled {each[0]} to {each[-1]}; "
            f"all at work after {joined - args.settle:.1f} s; {100 * used / took:.0f} % of a processor"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--work", type=float, default=0.05)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--settle", type=float, default=3.0, help="seconds after the joins before it is timed")
    parser.add_argument("--reads", action="store_true", help="what is read, with the server's filter and without it")
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--codec", default="lz4")
    arguments = parser.parse_args()
    asyncio.run(reads(arguments) if arguments.reads else main(arguments))
