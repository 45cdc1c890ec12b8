"""Workers of a path make themselves known and are forgotten when they are gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flowshare.backend.embedded import EmbeddedBackend
from flowshare.backend.path_workers import Registration, running_workers

ROOT = Path(__file__).parents[2]

OTHER = """
import os, pathlib, sys
from flowshare.backend.path_workers import Registration
kept = Registration(pathlib.Path(sys.argv[1]), address="127.0.0.1:2", now_ms=2)
print("known", flush=True)
sys.stdin.read()
os._exit(0)
"""


def test_a_worker_is_known_from_its_registration_to_its_removal(tmp_path: Path) -> None:
    assert running_workers(tmp_path) == []

    known = Registration(tmp_path, address="127.0.0.1:1", now_ms=1)

    assert running_workers(tmp_path) == [known.entry]
    assert (known.entry.pid, known.entry.address) == (os.getpid(), "127.0.0.1:1")
    known.remove()
    known = Registration(tmp_path, address="127.0.0.1:3", now_ms=3)
    assert [entry.address for entry in running_workers(tmp_path)] == ["127.0.0.1:3"]
    known.remove()
    assert running_workers(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"pid": null}', b"\x00"])
def test_a_file_that_nobody_holds_is_removed_whatever_is_in_it(tmp_path: Path, content: bytes) -> None:
    left = tmp_path / "workers" / "17.json"
    left.parent.mkdir()
    left.write_bytes(content)

    assert running_workers(tmp_path) == []
    assert not left.exists()


def test_a_file_that_cannot_be_removed_keeps_no_worker_from_ending(tmp_path: Path) -> None:
    known = Registration(tmp_path, address="127.0.0.1:1", now_ms=1)
    file = tmp_path / "workers" / f"{os.getpid()}.json"
    file.unlink()
    file.mkdir()  # as on a disk that has become read only, which root is kept from, too

    known.remove()

    Registration(tmp_path / "elsewhere", address="127.0.0.1:1", now_ms=1).remove()


def test_a_path_that_is_not_there_has_no_workers(tmp_path: Path) -> None:
    assert running_workers(tmp_path / "nowhere") == []


@pytest.mark.slow
def test_the_file_of_a_process_that_died_counts_not(tmp_path: Path) -> None:
    mine = Registration(tmp_path, address="127.0.0.1:1", now_ms=1)
    command = [sys.executable, "-c", OTHER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert [entry.pid for entry in running_workers(tmp_path)] == [os.getpid(), other.pid]

        other.kill()
        other.wait()

        assert [entry.pid for entry in running_workers(tmp_path)] == [os.getpid()]
    mine.remove()


@pytest.mark.asyncio
async def test_a_backend_tells_where_its_health_pages_are_until_it_closes(tmp_path: Path) -> None:
    backend = EmbeddedBackend(tmp_path / "shop")
    await backend.start()

    await backend.set_address("127.0.0.1:1")
    await backend.set_address("127.0.0.1:2")

    assert [entry.address for entry in running_workers(tmp_path / "shop")] == ["127.0.0.1:2"]
    await backend.close()
    assert running_workers(tmp_path / "shop") == []
