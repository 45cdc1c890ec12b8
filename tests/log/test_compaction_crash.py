"""kill -9 while a log is compacted: the last value of each key is there, where it was, and sizes are right."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from flowshare.protocol.batches import batch_headers
from tests.killing import said_until_killed
from tests.log.compaction_contract import content
from tests.log.compaction_crasher import KEYS, main
from tests.log.places import opened


def check(path: Path, newest: dict[bytes, tuple[int, bytes]]) -> int:
    """Look at what is there; returns how many offsets are missing."""

    async def body(storage) -> int:
        found = {record.key: (record.offset, record.value[:20]) for record in await content(storage)}
        for key, (offset, value) in newest.items():
            # A batch that was on its way when the process died may be there too.
            assert found[key] == (offset, value) or found[key][0] > offset
        log = storage._partition("t", 0)
        offset, size, there = 0, 0, 0
        while offset < log.end:
            read = await storage.read("t", 0, offset, max_bytes=1 << 20)
            offset = read.batches[-1].last + 1
            size += len(read.records)
            there += sum(header.record_count for header in batch_headers(read.records))
        assert size == log.end_position - log.start_position
        return log.end - there

    return opened(path, body)


def crash_repeatedly(path: Path, seed: int, kills: int) -> None:
    chance = random.Random(seed)
    newest: dict[bytes, tuple[int, bytes]] = {}
    missing = 0
    for kill in range(kills):
        for line in said_until_killed(main, path, seed + kill, lines=chance.randint(100, 1500)):
            offset, key, value = line.encode().split()
            newest[key] = (int(offset), value)
        missing = check(path, newest)
    assert len(newest) == KEYS, f"seed {seed}"
    assert missing > 0, f"seed {seed}: nothing was compacted"


def test_a_kill_while_a_log_is_compacted_loses_nothing(tmp_path):
    crash_repeatedly(tmp_path / "storage", seed=1, kills=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [100, 200])
def test_many_kills_while_a_log_is_compacted_lose_nothing(tmp_path, seed):
    crash_repeatedly(tmp_path / "storage", seed=seed, kills=6)
