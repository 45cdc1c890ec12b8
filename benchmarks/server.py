"""Speed of the in-process server with durable state: single-offset acknowledgements in random order.

    python benchmarks/server.py [--runs N]

One member acquires 100,000 records of one partition on embedded and accepts them one offset a batch, in random order:
once with one batch a request and 100 requests under way, once with 100 batches a request and 4 under way. Every
answer means that the state is in the write-ahead log. `acknowledgements` is what other benchmarks call.
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

import uvloop

from flowshare.backend.embedded import EmbeddedBackend
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    CreateTopicRequest,
    IncrementalAlterConfigsRequest,
    ProduceRequest,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    SharePartitionRequest,
    TopicPartition,
)
from flowshare.share.types import AckRange

RECORDS = 100_000
WINDOW = 10_000
ACCEPT = b"\x01"
GROUP, MEMBER, TOPIC = "bench", "member", "records"
CLAIM = 30_000
CONFIGS = {"share.auto.offset.reset": "earliest", "share.partition.max.record.locks": str(WINDOW)}


async def _filled(backend: EmbeddedBackend):
    connection = await backend.connect("bench")
    made = await connection.send(CreateTopicRequest(name=TOPIC))
    await connection.send(IncrementalAlterConfigsRequest(resource_type="group", resource=GROUP, configs=CONFIGS))
    for _ in range(RECORDS // 1000):
        builder = BatchBuilder()
        for _ in range(1000):
            builder.add(None, b"x" * 100, timestamp_ms=0)
        await connection.send(ProduceRequest(topic=TOPIC, partition=0, records=builder.build()))
    return connection, TopicPartition(made.topic_id, 0)


async def _measure(batches_a_request: int, requests_at_once: int, seed: int) -> float:
    with tempfile.TemporaryDirectory(prefix="flowshare-bench-") as path:
        backend = EmbeddedBackend(path)
        await backend.start()
        connection, at = await _filled(backend)
        shuffle = random.Random(seed).shuffle
        seconds, epoch = 0.0, 0
        for _ in range(RECORDS // WINDOW):
            offsets: list[int] = []
            while len(offsets) < WINDOW:
                fetched = await connection.send(
                    ShareFetchRequest(
                        group_id=GROUP,
                        member_id=MEMBER,
                        session_epoch=epoch,
                        max_records=WINDOW,
                        partitions=() if epoch else (SharePartitionRequest(*at),),
                    )
                )
                epoch += 1
                for part in fetched.partitions[0].acquired:
                    offsets.extend(range(part.first, part.last + 1))
            shuffle(offsets)
            requests: deque[ShareAcknowledgeRequest] = deque()
            for start in range(0, len(offsets), batches_a_request):
                # An order within a request is asked for by the protocol.
                chosen = sorted(offsets[start : start + batches_a_request])
                acks = tuple(AckRange(offset, offset, ACCEPT) for offset in chosen)
                requests.append(
                    ShareAcknowledgeRequest(
                        group_id=GROUP,
                        member_id=MEMBER,
                        session_epoch=epoch,
                        partitions=(SharePartitionRequest(*at, acks),),
                    )
                )
                epoch += 1

            async def send_all(requests: deque[ShareAcknowledgeRequest] = requests) -> None:
                while requests:
                    answer = await connection.send(requests.popleft())
                    assert answer.partitions[0].error is ErrorCode.NONE, answer

            started = time.perf_counter()
            await asyncio.gather(*(send_all() for _ in range(requests_at_once)))
            seconds += time.perf_counter() - started
        await backend.close()
    return RECORDS / seconds


def acknowledgements(*, batches_a_request: int, requests_at_once: int, seed: int = 1) -> float:
    """Durable single-offset acknowledgements a second through the in-process server."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(batches_a_request, requests_at_once, seed))


def main() -> int:
    """Print the figures; 1 if one is below the claim."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    missed = 0
    for batches, at_once in ((1, 100), (100, 4)):
        rates = [acknowledgements(batches_a_request=batches, requests_at_once=at_once, seed=run) for run in range(runs)]
        middle = statistics.median(rates)
        claim = f", claim {CLAIM:,}/s" if batches > 1 else ""
        missed += bool(claim) and middle < CLAIM
        print(
            f"durable acknowledgements, {batches} a request, {at_once} requests under way: "
            f"{middle:,.0f}/s (best {max(rates):,.0f}/s){claim}"
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
