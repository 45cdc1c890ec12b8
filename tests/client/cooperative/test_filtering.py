"""A scan of what the server leaves foreign records out of comes to the same as one of everything: the same records of
this member's, the same voids to commit. Random logs: transactions, compaction, all codecs, null keys, damage."""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowshare.client.cooperative.partitions import Partition, Partitions
from flowshare.client.cooperative.reading import take_in
from flowshare.client.cooperative.scan import Batch, KeyScan, Progress
from flowshare.clock import LoopClock
from flowshare.cooperative.assignor import shares
from flowshare.cooperative.offsets import SPAN_MAX
from flowshare.cooperative.ranges import KEY_RANGES_MAX
from flowshare.cooperative.types import HASHES, WHOLE, KeyRange
from flowshare.log.base import LogOffsets, ReadResult
from flowshare.protocol import thinning
from flowshare.protocol.batches import CODECS, decode_all
from flowshare.protocol.messages import FetchedLog, FetchPartition, FetchRequest, KeyFilter
from flowshare.server.records import filtering, records
from flowshare.server.records.filtering import BatchFilter
from flowshare.server.records.records import Reading
from flowshare.server.runtime.answers import AnswerSpace
from flowshare.server.runtime.turns import Turns
from flowshare.server.share import opened_log
from flowshare.share.types import LogBatch
from flowshare.testing.clock import ManualClock
from tests.log.compaction_world import World, built


def world_of(rng: random.Random) -> World:
    """A log; every transaction is ended, some are aborted, some of it is compacted."""
    world = World()
    keys = [b"key %d" % number for number in range(rng.randrange(1, 40))]
    for _ in range(rng.randrange(1, 14)):
        producer = rng.choice([-1, -1, 1, 2])
        count = rng.choice([1, 1, 3, 20])
        pairs = [
            (None if rng.random() < 0.2 else rng.choice(keys), rng.choice([b"v", b"w" * 50])) for _ in range(count)
        ]
        world.add(built(pairs, codec=rng.choice(CODECS), producer=producer, transactional=producer > 0))
        if producer > 0 and rng.random() < 0.6:
            world.end(producer, committed=rng.random() < 0.5)
    for producer in list(world._open):
        world.end(producer, committed=rng.random() < 0.5)
    if rng.random() < 0.6:
        world.compact()
    if world.batches and rng.random() < 0.3:
        at = rng.randrange(len(world.batches))
        made = world.batches[at]
        damaged = made.records[:-1] + bytes([made.records[-1] ^ 0xFF])
        world.batches[at] = made._replace(records=damaged)
    return world


class Log:
    """A world as a server reads it."""

    def __init__(self, world: World) -> None:
        self._batches = world.batches
        self.end = max((made.header.last_offset + 1 for made in world.batches), default=0)
        self.reads = 0

    def offsets(self, topic: str, partition: int) -> LogOffsets:
        return LogOffsets(log_start=0, high_watermark=self.end, last_stable=self.end)

    async def read(
        self, topic: str, partition: int, offset: int, *, max_bytes: int, committed: bool = False
    ) -> ReadResult:
        self.reads += 1
        found = [made for made in self._batches if made.header.last_offset >= offset]
        size = 0
        for count, made in enumerate(found):
            size += len(made.records)
            if count and size > max_bytes:
                found = found[:count]
                break
        return ReadResult(
            pieces=[made.records for made in found],
            batches=tuple(LogBatch(made.header.base_offset, made.header.last_offset) for made in found),
            offsets=self.offsets(topic, partition),
            aborted=tuple(
                LogBatch(made.header.base_offset, made.header.last_offset)
                for made in found
                if committed and made.aborted and not made.header.is_control
            ),
        )


async def fetched(log: Log, batches: BatchFilter, part: FetchPartition, *, committed: bool) -> FetchedLog:
    request = FetchRequest(partitions=(part,), committed=committed)
    any_log: Any = log
    reading = Reading(any_log, request, Turns(LoopClock()), AnswerSpace(), batches)
    await reading.places()
    await reading.look()
    (answer,) = await reading.answer()
    return answer


def scan_of(held: Sequence[KeyRange], target: Sequence[KeyRange]) -> KeyScan[Any]:
    scan: KeyScan[Any] = KeyScan(buffer_max=1_000_000)
    scan.set_target(target)
    scan.held([(*one, epoch) for epoch, one in enumerate(held)], Progress(0, 1, 0, 0), [(3, 5)])
    return scan


def told(scan: KeyScan[Any]) -> tuple[list[tuple[int, int, bytes | None]], list[tuple[int, int]]]:
    """Its records, and the voids that it commits."""
    records: list[tuple[int, int, bytes | None]] = []
    while taken := scan.take(1_000, 0.0):
        for found in taken:
            records.append((found.offset, found.hash, found.record.value))
            assert scan.finish(found)
    batch: Batch | None = scan.commit(1_000_000)
    return sorted(records), [] if batch is None else list(batch.voids)


def scanned(scan: KeyScan[Any], asked: FetchPartition, answer: FetchedLog) -> None:
    """As a member does it."""
    partition: Any = Partition(("t", 0), None, scan)  # type: ignore[arg-type]
    take_in(Partitions(ManualClock(), "g"), partition, asked, answer)


async def read_all(
    scan: KeyScan[Any], log: Log, batches: BatchFilter, *, filters: bool, step: int, committed: bool, grows_after: int
) -> None:
    """Scan the whole log. grows_after: within this fetch the target becomes the whole partition; −1: never."""
    count = 0
    while (position := scan.position()) is not None and position < log.end:
        asked = FetchPartition("t", 0, position, step, only=scan.only if filters else None)
        answer = await fetched(log, batches, asked, committed=committed)
        assert (answer.filtered is None) == (asked.only is None)
        if count == grows_after:
            scan.set_target(WHOLE)
        scanned(scan, asked, answer)
        count += 1
    if grows_after >= count:
        scan.set_target(WHOLE)
        await read_all(scan, log, batches, filters=filters, step=step, committed=committed, grows_after=-1)


async def compare(seed: int) -> None:
    rng = random.Random(seed)
    log = Log(world_of(rng))
    batches, committed = BatchFilter(), rng.random() < 0.5
    names = [f"m{number}" for number in range(rng.randrange(1, 5))]
    for name, keys in shares(names).items():
        grows_after = rng.choice([-1, -1, 0, 1, 3])
        step = rng.choice([1, 200, 1 << 20])
        found: list[Any] = []
        for filters in (False, True):
            scan = scan_of([keys] if grows_after < 0 else WHOLE, [keys])
            await read_all(scan, log, batches, filters=filters, step=step, committed=committed, grows_after=grows_after)
            found.append((*told(scan), scan.position(), [piece[:2] for piece in scan.pieces]))
        assert found[1] == found[0], f"seed {seed}: member {name} of {len(names)}"


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_the_server_filters_comes_to_the_same_records_and_voids(seed: int) -> None:
    asyncio.run(compare(seed))


@pytest.mark.asyncio
async def test_many_members_open_each_batch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    for _ in range(5):
        world.add(built([(b"key %d" % number, b"v" * 20) for number in range(200)], codec="zstd"))
    opened: list[int] = []

    class Counting(filtering.OpenedBatch):
        def __init__(self, batch: bytes, header: Any, *, read: bool = True) -> None:
            opened.append(header.base_offset)
            super().__init__(batch, header, read=read)

    monkeypatch.setattr(filtering, "OpenedBatch", Counting)
    batches, log, size = BatchFilter(), Log(world), 0
    dealt = shares([f"m{number:02}" for number in range(16)])
    for keys in dealt.values():
        scan = scan_of([keys], [keys])
        answer = await fetched(log, batches, FetchPartition("t", 0, 0, only=scan.only), committed=False)
        assert answer.filtered is not None
        assert answer.filtered.end == 1_000
        size += len(answer.records)
    assert opened == [0, 200, 400, 600, 800]
    assert size < 4 * sum(len(made.records) for made in world.batches)


@pytest.mark.asyncio
async def test_a_batch_of_very_many_records_is_opened_once_a_step_in_a_round_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(thinning, "STEP_RECORDS", 10)
    monkeypatch.setattr(opened_log, "STEP_RECORDS", 10)
    world = World()
    world.add(built([(b"key %d" % number, b"v") for number in range(100)], codec="zstd"))
    batches, log, rounds = BatchFilter(), Log(world), 0
    dealt = shares(["m0", "m1"])
    asked = [FetchPartition("t", 0, 0, only=scan_of([keys], [keys]).only) for keys in dealt.values()]
    fetches = [asyncio.ensure_future(fetched(log, batches, one, committed=False)) for one in asked]
    while not all(one.done() for one in fetches):
        await asyncio.sleep(0)
        rounds += 1
    answers = await asyncio.gather(*fetches)
    found = sorted(one.offset for answer in answers for one in decode_all(answer.records))

    assert found == list(range(100))
    assert 30 <= rounds < 60  # ten steps to read, to find where they lie, and to hash; not twice as many


@pytest.mark.asyncio
async def test_a_fetch_looks_at_a_bounded_part_of_the_log_and_says_how_far(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    for _ in range(20):
        world.add(built([(b"k", b"v" * 100)] * 10))
    monkeypatch.setattr(filtering, "SCAN_BYTES", 3_000)
    nobody = FetchPartition("t", 0, 0, only=scan_of([KeyRange(0, 1)], [KeyRange(0, 1)]).only)
    answer = await fetched(Log(world), BatchFilter(), nobody, committed=False)
    assert answer.records == b""
    assert answer.filtered is not None
    assert 0 < answer.filtered.end < world.end_offset


@pytest.mark.asyncio
async def test_a_fetch_looks_at_a_bounded_part_of_all_partitions_together(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    for _ in range(20):
        world.add(built([(b"k", b"v" * 100)] * 10))
    monkeypatch.setattr(records, "ALL_SCANS_BYTES", 5_000)
    monkeypatch.setattr(records, "READ_BYTES", 3_000)
    only = scan_of([KeyRange(0, 1)], [KeyRange(0, 1)]).only
    log: Any = Log(world)
    request = FetchRequest(partitions=tuple(FetchPartition("t", number, 0, only=only) for number in range(3)))
    reading = Reading(log, request, Turns(LoopClock()), AnswerSpace(), BatchFilter())
    await reading.places()
    await reading.look()
    ends = [one.filtered.end for one in await reading.answer() if one.filtered is not None]
    assert reading.full, "what was not looked at is asked for again at once"
    assert 0 < ends[0] < world.end_offset
    assert ends[1:] == [0, 0]


@pytest.mark.asyncio
async def test_voids_are_told_to_who_has_hash_0_only() -> None:
    world = World()
    world.add(built([(b"k", b"v")], producer=1, transactional=True))
    world.end(1, committed=False)
    log, half = Log(world), HASHES // 2
    for keys, voids in (((0, half), ((0, 2),)), ((half, HASHES), ())):
        only = scan_of([KeyRange(*keys)], [KeyRange(*keys)]).only
        answer = await fetched(log, BatchFilter(), FetchPartition("t", 0, 0, only=only), committed=True)
        assert answer.filtered is not None
        assert (answer.filtered.end, answer.filtered.voids) == (2, voids)


def test_who_has_the_whole_partition_or_too_many_pieces_of_it_reads_everything() -> None:
    half = KeyRange(0, HASHES // 2)
    assert scan_of(WHOLE, WHOLE).only is None
    assert scan_of(WHOLE, [half]).only == KeyFilter((half,), SPAN_MAX)
    many = [KeyRange(2 * number, 2 * number + 1) for number in range(KEY_RANGES_MAX + 1)]
    assert scan_of(many, many).only is None


@given(st.lists(st.integers(0, 60), unique=True), st.lists(st.integers(0, 70), unique=True, max_size=10))
def test_wanted_records_are_found_by_few_ranges_and_by_many(offsets: list[int], edges: list[int]) -> None:
    hashes = [(offset * 37) % 71 for offset in sorted(offsets)]
    order = sorted(range(len(hashes)), key=lambda at: hashes[at])
    header: Any = None
    batch = filtering.Hashed(header, None, sorted(offsets), [hashes[at] for at in order], order)
    ends = sorted(edges)
    keys = list(zip(ends[::2], ends[1::2], strict=False))
    many = [(one, one + 1) for first, end in keys for one in range(first, end)]

    def inside(hash_: int) -> bool:
        at = bisect_right([first for first, _ in keys], hash_) - 1
        return at >= 0 and hash_ < keys[at][1]

    for since in (0, 30):
        expected = [at for at, hash_ in enumerate(hashes) if inside(hash_) and sorted(offsets)[at] >= since]
        assert batch.wanted(keys, since) == batch.wanted(many, since) == expected
