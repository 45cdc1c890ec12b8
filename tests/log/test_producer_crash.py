"""kill -9 at random moments while producers write and send again: every record once, every abort known."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from flowshare.protocol.batches import batch_headers, decode_all
from tests.log.places import opened
from tests.log.producer_crasher import PRODUCERS

ROOT = Path(__file__).parents[2]


def run_and_kill(path: Path, seed: int, lines: int, nexts: list[int], mode: str) -> None:
    """Let a process confirm about `lines` writes, kill it; `nexts` then says what each producer goes on with."""
    command = [
        sys.executable,
        "-m",
        "tests.log.producer_crasher",
        str(path),
        str(seed),
        ",".join(map(str, nexts)),
        mode,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        said = [child.stdout.readline() for _ in range(lines)]
        child.kill()
        said += child.stdout.readlines()
    for line in said:
        kind, producer, number, _ = line.decode().split() if line.endswith(b"\n") else ("", "0", "0", "")
        if kind == "d":
            nexts[int(producer)] = int(number) + 1


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


def crash_repeatedly(path: Path, seed: int, kills: int, mode: str = "") -> None:
    print(f"seed={seed}")
    chance, nexts = random.Random(seed), [0] * PRODUCERS
    for kill in range(kills):
        run_and_kill(path, seed + kill, chance.randint(1, 400), nexts, mode)
        check(path, nexts)


@pytest.mark.slow
def test_a_producer_that_sends_again_after_a_kill_writes_every_record_once(tmp_path):
    crash_repeatedly(tmp_path / "storage", seed=7, kills=2)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["", "fsync"])
@pytest.mark.parametrize("seed", [300, 400])
def test_no_record_is_lost_or_doubled_by_any_of_many_kills(tmp_path, seed, mode):
    crash_repeatedly(tmp_path / "storage", seed=seed, kills=8, mode=mode)
