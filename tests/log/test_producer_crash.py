"""kill -9 at random moments while producers write and send again: every record once, every abort known."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from flowshare.protocol.batches import batch_headers, decode_all
from tests.killing import said_until_killed
from tests.log.places import opened
from tests.log.producer_crasher import PRODUCERS, main


def check(path: Path, nexts: list[int]) -> None:
    """Every confirmed record is in the log once and in order; aborted are those that a look at the log shows."""

    async def body(storage) -> None:
        read = await storage.read("t", 0, 0, max_bytes=1 << 30)
        sequences: dict[int, list[int]] = {producer: [] for producer in range(PRODUCERS)}
        for record in decode_all(read.records):
            producer, sequence = record.value.split(b"-")
            sequences[int(producer)].append(int(sequence))
        for producer, found in sequences.items():
            assert found == list(range(len(found))), f"producer {producer}"
            assert nexts[producer] <= len(found) <= nexts[producer] + 1
        opened_at, aborted, waiting = {}, set(), {}
        for header in batch_headers(read.records):
            pid = header.producer_id
            if header.is_control:
                abort = read.records[header.position + 61 + 5 + 3] == 0
                aborted |= set(waiting.pop(pid, ())) if abort else set()
                waiting.pop(pid, None)
                opened_at.pop(pid, None)
            elif header.is_transactional:
                waiting.setdefault(pid, []).append(header.base_offset)
                opened_at.setdefault(pid, header.base_offset)
        end = storage.offsets("t", 0)
        assert end.last_stable == min(opened_at.values(), default=end.high_watermark)
        committed = await storage.read("t", 0, 0, max_bytes=1 << 30, committed=True)
        assert {batch.first for batch in committed.aborted} == {base for base in aborted if base < end.last_stable}

    opened(path, body)


def crash_repeatedly(path: Path, seed: int, kills: int, *, fsync: bool = False) -> None:
    print(f"seed={seed}")
    chance, nexts = random.Random(seed), [0] * PRODUCERS
    for kill in range(kills):
        said = said_until_killed(main, path, seed + kill, nexts, fsync, lines=chance.randint(1, 400))
        for kind, producer, number, _ in map(str.split, said):
            if kind == "d":
                nexts[int(producer)] = int(number) + 1
        check(path, nexts)


@pytest.mark.slow
def test_a_producer_that_sends_again_after_a_kill_writes_every_record_once(tmp_path):
    crash_repeatedly(tmp_path / "storage", seed=7, kills=2)


@pytest.mark.slow
@pytest.mark.parametrize("fsync", [False, True])
@pytest.mark.parametrize("seed", [300, 400])
def test_no_record_is_lost_or_doubled_by_any_of_many_kills(tmp_path, seed, fsync):
    crash_repeatedly(tmp_path / "storage", seed=seed, kills=8, fsync=fsync)
