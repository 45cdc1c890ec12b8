"""Share groups led by the workers themselves, on a real Kafka that this starts: ratios against peers in the same run.

    python benchmarks/workers.py [--parts noop,order,acks,latency,pools,restart] [--runs 5]

order    an agent by key beside parallel-consumer's KEY, 10,000 keys: no-op, and 10 ms × 100 at once
noop     1 M records of 100 bytes through a no-op agent, led by the worker, beside the same led by Kafka's brokers
acks     8 members acknowledge random offsets one by one on one slot, each answer confirmed in Kafka
latency  1,000 records/s beside a plain consumer, one that writes before it hands on, and native groups; and 300/s
restart  a worker that starts again with 1 M updates of 100,000 share-partitions, with its local store and without
pools    four worker processes × concurrency 100 × 10 ms on one partition beside four bare pools of coroutines

Needs Java.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter, deque
from pathlib import Path
from typing import TYPE_CHECKING

import latency
import uvloop
from native import BARE, CONCURRENCY, SLEEP_S
from peers import WARM_ROUNDS

import arena
import flowshare as fs
from common import info, verdict
from flowshare.dev.processes import tied_to_parent
from flowshare.server.runtime.state import SNAPSHOT, ShareKey, encode_state
from flowshare.share.types import PartitionState
from flowshare.slots.placement import SLOTS_DEFAULT, slot_of_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowshare.client.session.member import ShareMember
    from flowshare.protocol.messages import TopicPartition

    Held = tuple[TopicPartition, int, int]

HERE = Path(__file__).resolve()
RECORDS = 1_000_000
NATIVE_LEAST = 0.5
ORDER_RECORDS = 300_000
ORDER_SLOW_RECORDS = 60_000
ACKS_LEAST = 20_000
ACK_MEMBERS = 8
ACK_RECORDS = 200_000
ACKS_EACH = 2_000
ACKS_AT_ONCE = 32
"""Acknowledgements that a member has under way."""
LATENCY_MOST = 2.5
POOLS = 4
POOL_RECORDS = 120_000
POOLS_LEAST = 0.95
STEP_S = 0.005
SLOWER_S = 0.02
"""Handlers with which the machine is not busy all of the time."""
QUIET_RATE = 300
SHARE_PARTITIONS = 100_000
UPDATES = 1_000_000
WRITTEN_AT_ONCE = 500
CACHE_S = 3
"""The local store lags behind by so much less."""
READY_S = 60


# --- no-op --------------------------------------------------------------------------------------------------------


def noop(server: arena.Server, runs: int) -> None:
    """Workers and brokers in turns."""
    topic = server.fill("values", RECORDS)
    found: dict[str, list[dict[str, float]]] = {"workers": [], "flowshare": []}
    for run in range(-WARM_ROUNDS, runs):
        for peer, figures in found.items():
            got = arena.python_peer(
                "peer.py", peer, bootstrap=server.bootstrap, topic=topic, group=server.group(), records=RECORDS
            )
            if run >= 0:
                figures.append(got)
    ours, native = (arena.medians(figures) for figures in found.values())
    info("no-op agent, led by the worker", ours["rate"], unit="records/s")
    info("  its processor time, leading included", ours["cpu_us"], unit="µs/record")
    info("no-op agent, led by the brokers", native["rate"], unit="records/s")
    info("  its processor time", native["cpu_us"], unit="µs/record")
    verdict("workers / native", ours["rate"] / native["rate"], NATIVE_LEAST, unit="×")


# --- by key -------------------------------------------------------------------------------------------------------


def order(server: arena.Server, runs: int) -> None:
    """An agent by key, led by the worker, and parallel-consumer's KEY in turns: no-op, and 10 ms × 100 at once."""
    for label, sleep_ms, records, least, drawn in (
        ("no-op", 0, ORDER_RECORDS, 2.0, True),
        ("no-op, keys in turns", 0, ORDER_RECORDS, 2.0, False),
        ("10 ms", 10, ORDER_SLOW_RECORDS, 1.0, True),
    ):
        topic = server.fill(f"ordered-{sleep_ms}-{drawn}", records, random_keys=drawn)
        found: dict[str, list[dict[str, float]]] = {"workers": [], "parallel": []}
        for _ in range(runs):
            ours = arena.python_peer(
                "peer.py",
                "workers",
                bootstrap=server.bootstrap,
                topic=topic,
                group=server.unused_group(),
                records=records,
                order="key",
                concurrency=CONCURRENCY,
                sleep_ms=sleep_ms,
            )
            found["workers"].append(ours)
            where = (server.bootstrap, topic, server.unused_group(), records)
            libraries = arena.parallel_libraries()
            found["parallel"].append(arena.java_peer("ParallelRate", *where, sleep_ms, "KEY", libraries=libraries))
        ours, theirs = (arena.medians(figures) for figures in found.values())
        info(f"{label} by key, {arena.KEYS:,} keys, {CONCURRENCY} at once, led by the worker", ours["rate"], unit="/s")
        info("  its processor time, leading included", ours["cpu_us"], unit="µs/record")
        info("  parallel-consumer, KEY", theirs["rate"], unit="/s")
        info("  its processor time", theirs["cpu_us"], unit="µs/record")
        verdict("  workers / parallel-consumer", ours["rate"] / theirs["rate"], least, unit="×")


# --- acknowledgements ---------------------------------------------------------------------------------------------


class Acks:
    """Members of one worker with records of one partition, which lies on one slot."""

    def __init__(self, options: argparse.Namespace) -> None:
        from flowshare.backend.fleet import WorkersBackend
        from flowshare.backend.url import parse_broker
        from flowshare.client.admin.admin import ShareAdmin
        from flowshare.client.session.member import ShareMember
        from flowshare.clock import LoopClock

        clock = LoopClock()
        self.a_request = options.a_request
        self.shuffle = random.Random(options.seed).shuffle
        self.backend = WorkersBackend(parse_broker(f"{options.url}&slots=1"), clock=clock)
        self.admin = ShareAdmin(lambda: self.backend.connect("admin"), clock=clock)
        self.members = [
            ShareMember(lambda: self.backend.connect("member"), group_id="acks", topics=[options.topic], clock=clock)
            for _ in range(ACK_MEMBERS)
        ]

    async def run(self) -> dict[str, float]:
        await self.backend.start()
        settings = {"share.auto.offset.reset": "earliest", "share.partition.max.record.locks": "100000"}
        await self.admin.alter_group_configs("acks", settings)
        for member in self.members:
            await member.start()
        seconds, done = 0.0, 0
        while done < ACK_RECORDS:
            held = await asyncio.gather(*(self.hold(member) for member in self.members))
            started = time.perf_counter()
            await asyncio.gather(
                *(
                    self.say(member, left)
                    for member, left in zip(self.members, held, strict=True)
                    for _ in range(ACKS_AT_ONCE)
                )
            )
            seconds += time.perf_counter() - started
            done += ACKS_EACH * ACK_MEMBERS
        for member in self.members:
            await member.close()
        await self.admin.close()
        await self.backend.close()
        return {"rate": done / seconds}

    async def hold(self, member: ShareMember) -> deque[Held]:
        """Acquire so many records; in random order."""
        held: list[Held] = []
        while len(held) < ACKS_EACH:
            for one in await member.fetch(records_max=ACKS_EACH - len(held), max_wait_s=1):
                for first, last, _ in one.acquired:
                    held += [(one.tp, offset, one.generation) for offset in range(first, last + 1)]
        self.shuffle(held)
        return deque(held[:ACKS_EACH])

    async def say(self, member: ShareMember, left: deque[Held]) -> None:
        """Accept one after the other, each offset in a batch of its own."""
        from flowshare.share.types import AckRange

        while left:
            some = sorted(left.popleft() for _ in range(min(self.a_request, len(left))))
            tp, _, generation = some[0]
            acks = tuple(AckRange(offset, offset, b"\1") for _, offset, _ in some)
            (result,) = await member.acknowledge({tp: acks}, generation=generation)
            assert not result.error, result


def section_acks(options: argparse.Namespace) -> dict[str, float]:
    """See `Acks`."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Acks(options).run())


def acks(server: arena.Server, runs: int) -> None:
    """Acknowledgements a second."""
    topic = server.fill("acked", 10 * ACK_RECORDS // 8)
    for a_request in (1, 20):
        rates = [
            section("acks", url=fleet_url(server), topic=topic, seed=run, a_request=a_request)["rate"]
            for run in range(runs)
        ]
        label = f"random single offsets, {a_request} a request, confirmed in Kafka"
        verdict(label, statistics.median(rates), ACKS_LEAST, unit="/s")


# --- pools ----------------------------------------------------------------------------------------------------------


def section_bare(options: argparse.Namespace) -> dict[str, float]:
    """A pool of coroutines that sleep, started when a line comes in."""

    async def main() -> dict[str, float]:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        waiting = deque(range(BARE))

        async def slot() -> None:
            while waiting:
                waiting.popleft()
                await asyncio.sleep(options.sleep_s)

        started = time.perf_counter()
        await asyncio.gather(*(slot() for _ in range(CONCURRENCY)))
        return {"rate": BARE / (time.perf_counter() - started)}

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def section_worker(options: argparse.Namespace) -> dict[str, float]:
    """One worker of four; it handles records until a line comes in, and says how many ended in each step of time."""

    async def main() -> dict[str, float]:
        app = fs.App("bench", broker=options.url)
        ended: list[float] = []

        @app.share_agent(app.topic(options.topic, value_type=bytes), concurrency=CONCURRENCY, group=options.group)
        async def sleep(value: bytes) -> None:
            await asyncio.sleep(options.sleep_s)
            ended.append(time.monotonic())

        async with app.running():
            print("ready", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
        return {str(step): count for step, count in Counter(int(at / STEP_S) for at in ended).items()}

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def together(name: str, wait: Callable[[], None], **options: object) -> list[dict[str, float]]:
    """Four processes of a section, told to begin or to end by `wait`'s end; their figures."""
    arguments = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    processes = [
        subprocess.Popen(
            [sys.executable, str(HERE), "--section", name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
            preexec_fn=tied_to_parent(),
        )
        for _ in range(POOLS)
    ]
    for process in processes:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise SystemExit(f"{name} ended before it was ready")
    wait()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return [json.loads(process.communicate(timeout=READY_S)[0].splitlines()[-1]) for process in processes]


def pools(server: arena.Server, runs: int) -> None:
    """Four workers on one partition beside four bare pools; with slower handlers, too."""
    verdict("four workers / four bare pools", pooled(server, runs, SLEEP_S), POOLS_LEAST, unit="×")
    info("  the same with slower handlers", pooled(server, runs, SLOWER_S), unit="×")


def pooled(server: arena.Server, runs: int, sleep_s: float) -> float:
    """The ratio, with handlers that take so long."""
    ratios: list[float] = []
    for _ in range(runs):
        bare = sum(figures["rate"] for figures in together("bare", lambda: None, sleep_s=sleep_s))
        topic, group = server.topic(server.unused_group()), server.group()

        def fill(topic: str = topic) -> None:
            server.send(topic, POOL_RECORDS)
            time.sleep(POOL_RECORDS / (POOLS * CONCURRENCY / sleep_s) * 1.5)

        found = together("worker", fill, url=fleet_url(server), topic=topic, group=group, sleep_s=sleep_s)
        ended = sum((Counter({int(step): count for step, count in figures.items()}) for figures in found), Counter())
        steps = sorted(ended.elements())
        inner = range(steps[len(steps) // 10], steps[-len(steps) // 10])
        rate = sum(ended[step] for step in inner) / (len(inner) * STEP_S)
        ratios.append(rate / bare)
        info(f"four workers × 100 × {1000 * sleep_s:g} ms on one partition", rate, unit="records/s")
        info("  four bare pools", bare, unit="calls/s")
    return statistics.median(ratios)


# --- restart --------------------------------------------------------------------------------------------------------


def section_write(options: argparse.Namespace) -> dict[str, float]:
    """One worker writes states of share-partitions again and again, and leaves."""

    async def main() -> dict[str, float]:
        from flowshare.backend.fleet import WorkersBackend
        from flowshare.backend.url import parse_broker

        backend = WorkersBackend(parse_broker(options.url))
        await backend.start()
        worker = backend.worker
        assert worker is not None
        while len(worker.served) < SLOTS_DEFAULT:
            await asyncio.sleep(0.05)
        by_slot: dict[int, list[bytes]] = {}
        for key in share_partitions():
            by_slot.setdefault(slot_of_key(key, SLOTS_DEFAULT), []).append(key)

        async def fill(number: int, keys: list[bytes]) -> None:
            slot = worker._slot_manager.led[number]
            for turn in range(UPDATES // SHARE_PARTITIONS):
                value = encode_state(PartitionState(state_epoch=0, start_offset=turn))
                for at in range(0, len(keys), WRITTEN_AT_ONCE):
                    await slot.write([(key, value) for key in keys[at : at + WRITTEN_AT_ONCE]])

        started = time.perf_counter()
        await asyncio.gather(*(fill(*one) for one in by_slot.items()))
        seconds = time.perf_counter() - started
        await asyncio.sleep(CACHE_S)
        await backend.close()
        return {"rate": UPDATES / seconds}

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def share_partitions() -> list[bytes]:
    """State keys of share-partitions of a hundred groups."""
    topics = [uuid.UUID(int=number + 1) for number in range(SHARE_PARTITIONS // 100 // 100)]
    keys = [
        ShareKey(f"group-{group}", topic, partition)
        for group in range(100)
        for topic in topics
        for partition in range(100)
    ]
    return [key.prefix + SNAPSHOT for key in keys]


def section_again(options: argparse.Namespace) -> dict[str, float]:
    """The worker starts again: until it serves all slots, with all that was written."""

    async def main() -> dict[str, float]:
        from flowshare.backend.fleet import WorkersBackend
        from flowshare.backend.url import parse_broker

        backend = WorkersBackend(parse_broker(options.url))
        started, cpu = time.perf_counter(), time.process_time()
        await backend.start()
        worker = backend.worker
        assert worker is not None
        while len(worker.served) < SLOTS_DEFAULT:
            await asyncio.sleep(0.005)
        found = {"seconds": time.perf_counter() - started, "cpu": time.process_time() - cpu}
        kept = sum(len(slot.scan(b"s/")) for slot in worker._slot_manager.led.values())
        assert kept == SHARE_PARTITIONS, kept
        found["mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        await backend.close()
        return found

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def restart(server: arena.Server, runs: int) -> None:
    """With the local store and without it."""
    with tempfile.TemporaryDirectory(prefix="flowshare-bench-") as folder:
        url = fleet_url(server)
        written = section("write", url=f"{url}&state_dir={folder}")
        info(f"{UPDATES:,} updates of {SHARE_PARTITIONS:,} share-partitions written", written["rate"], unit="updates/s")
        for about, more in (("with the local store", f"&state_dir={folder}"), ("without it", "")):
            found = arena.medians([section("again", url=url + more) for _ in range(runs)])
            info(f"restart {about}", found["seconds"], unit="s")
            info("  processor time", found["cpu"], unit="s")
            info("  memory", found["mb"], unit="MB")


# --- all of it ------------------------------------------------------------------------------------------------------


def fleet_url(server: arena.Server) -> str:
    """A fleet of its own for each use."""
    return f"kafka://{server.bootstrap}?share=workers&fleet={server.unused_group()}"


def section(name: str, **options: object) -> dict[str, float]:
    """One section in a process of its own."""
    return arena.python_peer("workers.py", name, **options)


def latencies(server: arena.Server, runs: int) -> None:
    """Interleaved with a plain consumer; then beside what else it may be compared with, where records queue and not."""
    latency.warm(server)
    latency.table(
        server,
        1_000,
        10,
        runs,
        uncounted=latency.COLD_ROUNDS,
        ours=latency.WORKERS,
        beside=(latency.PLAIN,),
        held_to={latency.PLAIN: LATENCY_MOST},
    )
    beside = (latency.PLAIN, latency.WRITTEN, latency.AGENT)
    for rate in (1_000, QUIET_RATE):
        latency.table(server, rate, 10, runs, uncounted=0, ours=latency.WORKERS, beside=beside, held_to={})


PARTS = {"noop": noop, "order": order, "acks": acks, "latency": latencies, "pools": pools, "restart": restart}
SECTIONS = {
    "acks": section_acks,
    "bare": section_bare,
    "worker": section_worker,
    "write": section_write,
    "again": section_again,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--runs", type=int, default=5)
    inner = parser.add_argument_group("what the processes are told")
    inner.add_argument("--section", "--peer", choices=SECTIONS)
    inner.add_argument("--url")
    inner.add_argument("--topic")
    inner.add_argument("--group")
    inner.add_argument("--seed", type=int)
    inner.add_argument("--sleep-s", type=float)
    inner.add_argument("--a-request", type=int)
    options = parser.parse_args()
    if options.section:
        print(json.dumps(SECTIONS[options.section](options)))
        return
    with arena.kafka() as server:
        for part in options.parts.split(","):
            PARTS[part](server, options.runs)


if __name__ == "__main__":
    main()
