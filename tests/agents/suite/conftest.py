"""`place`: each test of the suite runs on every backend."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from flowshare.backend.base import EMBEDDED, MEMORY, NATIVE, WORKERS
from flowshare.backend.memory import MemoryBackend
from tests.agents.suite.places import Place
from tests.kafka.fixtures import OLD_VERSIONS, old_kafka

ROOT = Path(__file__).parents[3]
LEADER = """
import asyncio, sys
from flowshare.backend.embedded import EmbeddedBackend

async def main():
    backend = EmbeddedBackend(sys.argv[1])
    await backend.start()
    print("leads", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await backend.close()

asyncio.run(main())
"""


@pytest.fixture(scope="session")
def led_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A path that another process leads, throughout the run."""
    path = tmp_path_factory.mktemp("led") / "data"
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER, str(path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with leader:
        try:
            assert leader.stdout is not None
            assert leader.stdout.readline() == "leads\n"
            yield path
        finally:
            assert leader.stdin is not None
            leader.stdin.close()
            try:
                leader.wait(20)
            except subprocess.TimeoutExpired:
                leader.kill()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Old Kafkas differ in what is read and written; what becomes of outcomes does not depend on them."""
    here = [item for item in items if item.path.parent == Path(__file__).parent and item.path.name != "test_records.py"]
    left_out = {item for item in here if any(f"workers-{old}" in item.name for old in OLD_VERSIONS)}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))


@pytest_asyncio.fixture(
    params=[
        "memory",
        "embedded",
        pytest.param("joined", marks=pytest.mark.slow),
        pytest.param("workers", marks=[pytest.mark.slow, pytest.mark.java]),
        *(pytest.param(f"workers-{old}", marks=[pytest.mark.slow, pytest.mark.java]) for old in OLD_VERSIONS),
        pytest.param("native", marks=[pytest.mark.slow, pytest.mark.java]),
    ]
)
async def place(request: pytest.FixtureRequest, tmp_path: Path, unique: Callable[[str], str]) -> AsyncIterator[Place]:
    """Where the test's agents run."""
    match request.param:
        case "memory":
            backend = MemoryBackend()
            await backend.start()
            yield Place("memory", "memory://", MEMORY, unique, backend)
            await backend.close()
        case "embedded":
            yield Place("embedded", f"embedded://{tmp_path}/data", EMBEDDED, unique)
        case "joined":
            path = request.getfixturevalue("led_path")
            yield Place("joined", f"embedded://{path}", EMBEDDED, unique)
        case "workers":
            broker = request.getfixturevalue("kafka")
            url = f"kafka://{','.join(broker.addresses)}?share=workers&fleet=suite&slots=4"
            yield Place("workers", url, WORKERS, unique)
        case old if old.startswith("workers-"):
            broker = old_kafka(old.removeprefix("workers-"))
            url = f"kafka://{','.join(broker.addresses)}?share=workers&fleet=suite&slots=4"
            yield Place("workers", url, WORKERS, unique)
        case _:
            broker = request.getfixturevalue("kafka")
            url = f"kafka://{','.join(broker.addresses)}?share=native"
            yield Place("native", url, NATIVE, unique)
