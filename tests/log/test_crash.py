"""kill -9 at random moments: whatever was confirmed is there, offsets have no holes, writes are whole."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from flowshare.protocol.batches import decode_all
from tests.killing import said_until_killed
from tests.log.crasher import main
from tests.log.places import opened


def check(path: Path, appended: dict[int, tuple[int, str]], state: dict[str, int]) -> None:
    async def body(storage) -> None:
        end, offset, values = storage.offsets("t", 0).high_watermark, 0, {}
        while offset < end:
            result = await storage.read("t", 0, offset, max_bytes=1 << 20)
            assert result.batches[0].first == offset
            values |= {record.offset: record.value.rstrip(b".") for record in decode_all(result.records)}
            offset = result.batches[-1].last + 1
        assert sorted(values) == list(range(end))
        for first, (last, value) in appended.items():
            assert {values[number] for number in range(first, last + 1)} == {value.encode()}
        entries = dict(await storage.scan(b""))
        for key, value in state.items():
            found = int(entries[b"k" + key.encode()])
            assert found >= value
            assert entries[b"twin" + key.encode()] == b"%d" % found

    opened(path, body)


def crash_repeatedly(path: Path, seed: int, kills: int, *, fsync: bool = False) -> None:
    chance = random.Random(seed)
    appended: dict[int, tuple[int, str]] = {}
    for kill in range(kills):
        # State is numbered anew by each process.
        state: dict[str, int] = {}
        said = said_until_killed(main, path, seed + kill, fsync, lines=chance.randint(1, 600))
        for kind, first, *rest in map(str.split, said):
            if kind == "a":
                appended[int(first)] = (int(rest[0]), rest[1])
            else:
                state[first] = max(int(rest[0]), state.get(first, 0))
        check(path, appended, state)


def test_what_was_confirmed_before_a_kill_is_there(tmp_path):
    crash_repeatedly(tmp_path / "storage", seed=1, kills=1)


@pytest.mark.slow
@pytest.mark.parametrize("fsync", [False, True])
@pytest.mark.parametrize("seed", [100, 200])
def test_what_was_confirmed_before_any_of_many_kills_is_there(tmp_path, seed, fsync):
    crash_repeatedly(tmp_path / "storage", seed=seed, kills=8, fsync=fsync)
