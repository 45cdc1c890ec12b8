"""Speed of the server of cooperative groups: durable commits of single offsets in random order, beside share groups.

    python benchmarks/cooperative_server.py [--runs N]

One member holds one partition on embedded and commits 100,000 records, one offset a range, in random order within a
window of 10,000: once with one range a request and 100 requests under way, once with 100 ranges a request and 4 under
way, over the connection within the process and over TCP. Every answer means that the state, and the group's committed
offset, is in the write-ahead log. Beside each figure within the process stands that of share groups in the same run:
acknowledgements of the same records by the same number of requests (`benchmarks/server.py`). Claim: half of it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

import uvloop

from benchmarks.server import acknowledgements
from flowshare.client.net.tcp import open_tcp
from flowshare.client.settings import LinkSettings
from flowshare.clock import LoopClock
from flowshare.cooperative.types import HASHES, KeyRange, OffsetRange
from flowshare.log.embedded import EmbeddedStorage
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    CooperativeCommitRequest,
    CooperativeHoldRequest,
    CreateTopicRequest,
    ProduceRequest,
)
from flowshare.protocol.messages.cooperative import CommitEntry, PartitionCommit, WantedKeys
from flowshare.server.net.listener import Listener
from flowshare.server.server import Server
from flowshare.share.config import ServerConfig

RECORDS = 100_000
WINDOW = 10_000
GROUP, MEMBER, TOPIC = "bench", "member", "records"
CLAIM = 0.5


async def _commits(connection, topic_id, ranges_a_request: int, requests_at_once: int, seed: int) -> float:
    """Commits a second."""
    held = await connection.send(
        CooperativeHoldRequest(
            group_id=GROUP,
            member_id=MEMBER,
            generation=1,
            sequence=1,
            lease_ms=600_000,
            auto_offset_reset="earliest",
            partitions=(WantedKeys(topic_id, 0, ((0, HASHES),)),),
        )
    )
    (part,) = held.partitions
    assert part.error is ErrorCode.NONE, part
    keys, epoch = KeyRange(0, HASHES), part.held[0].epoch
    shuffle, seconds = random.Random(seed).shuffle, 0.0
    for window in range(0, RECORDS, WINDOW):
        offsets = list(range(window, window + WINDOW))
        shuffle(offsets)
        requests: deque[CooperativeCommitRequest] = deque()
        for start in range(0, WINDOW, ranges_a_request):
            ranges = [OffsetRange(offset, offset + 1) for offset in sorted(offsets[start : start + ranges_a_request])]
            committed = PartitionCommit(topic_id, 0, part.reset_epoch, (CommitEntry(keys, epoch, ranges),))
            requests.append(CooperativeCommitRequest(group_id=GROUP, member_id=MEMBER, partitions=(committed,)))

        async def send_all(requests: deque[CooperativeCommitRequest] = requests) -> None:
            while requests:
                answer = await connection.send(requests.popleft())
                assert answer.partitions[0].error is ErrorCode.NONE, answer
                assert not answer.partitions[0].fenced

        started = time.perf_counter()
        await asyncio.gather(*(send_all() for _ in range(requests_at_once)))
        seconds += time.perf_counter() - started
    return RECORDS / seconds


async def _measure(ranges_a_request: int, requests_at_once: int, seed: int, *, tcp: bool) -> float:
    clock = LoopClock()
    with tempfile.TemporaryDirectory(prefix="flowshare-bench-") as path:
        storage = await EmbeddedStorage.open(Path(path), clock=clock)
        server = Server(storage=storage, config=ServerConfig.embedded(), clock=clock)
        await server.start()
        listener = Listener(server, clock=clock)
        host, port = await listener.start("127.0.0.1", 0)
        connection = server.connect(client_id="bench")
        made = await connection.send(CreateTopicRequest(name=TOPIC))
        for _ in range(RECORDS // 1000):
            builder = BatchBuilder()
            for _ in range(1000):
                builder.add(None, b"x" * 100, timestamp_ms=0)
            await connection.send(ProduceRequest(topic=TOPIC, partition=0, records=builder.build()))
        remote = await open_tcp(host, port, client_id="bench", clock=clock, settings=LinkSettings())
        used = remote if tcp else connection
        rate = await _commits(used, made.topic_id, ranges_a_request, requests_at_once, seed)
        await remote.close()
        await listener.close()
        await server.close()
        await storage.close()
    return rate


def commits(*, ranges_a_request: int, requests_at_once: int, seed: int = 1, tcp: bool = False) -> float:
    """Durable commits of single offsets a second."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(ranges_a_request, requests_at_once, seed, tcp=tcp))


def main() -> int:
    """Print the figures; 1 if one is below the claim."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    missed = 0
    for ranges, at_once in ((1, 100), (100, 4)):
        share, own, tcp = list[float](), list[float](), list[float]()
        for run in range(runs):
            share.append(acknowledgements(batches_a_request=ranges, requests_at_once=at_once, seed=run))
            own.append(commits(ranges_a_request=ranges, requests_at_once=at_once, seed=run))
            tcp.append(commits(ranges_a_request=ranges, requests_at_once=at_once, seed=run, tcp=True))
        middle = statistics.median(own)
        part = middle / statistics.median(share)
        missed += part < CLAIM
        print(
            f"durable commits, {ranges} a request, {at_once} requests under way: {middle:,.0f}/s in the process, "
            f"{statistics.median(tcp):,.0f}/s over TCP; share groups {statistics.median(share):,.0f}/s "
            f"(x {part:.2f}, claim {CLAIM})"
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
