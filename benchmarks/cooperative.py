"""How near members of a cooperative group come to the ideal: 16 members with handlers of 50 ms on one partition.

    python benchmarks/cooperative.py [--mode free|keys] [--members 16] [--work 0.05] [--keys 1000] [--seconds 30]

The ideal is members x 1 / work records a second. A member handles one record at a time. Timed is from when all members
hold something and each has handled a record, for so many seconds; joining is told apart. All run in this process, on a
server in memory, so what it costs them to read, dispatch and commit is in the figure. So is what the machine costs: as
many loops that only sleep run before and after, and their rate is told beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter

import flowshare as fs
from flowshare.client.cooperative.consumer import CooperativeConsumer
from flowshare.client.producer.producer import Message

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


async def main(args: argparse.Namespace) -> None:
    free = args.mode == "free"
    settings = fs.CooperativeSettings(max_poll_records=args.ahead if free else 1)
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
                free=free,
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
            f"{args.mode}: {args.members} members x {args.work * 1000:g} ms, {args.keys} keys: {rate:.1f} records/s, "
            f"{rate / ideal:.3f} of the ideal {ideal:g}, {rate / alone:.3f} of {alone:.1f} without any group; "
            f"a member handled {each[0]} to {each[-1]}; "
            f"all at work after {joined - args.settle:.1f} s; {100 * used / took:.0f} % of a processor"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("free", "keys"), default="keys")
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--work", type=float, default=0.05)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--settle", type=float, default=3.0, help="seconds after the joins before it is timed")
    parser.add_argument("--ahead", type=int, default=4, help="records that a member takes ahead in free mode")
    asyncio.run(main(parser.parse_args()))
