"""One partition, four workers, and `kill -9` at random, of the leader too: `benchmarks/chaos.py`.

Twice the kills and the records are `make chaos`; on a Kafka, which that does not start for it, the same command with
`--broker`.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
RECORDS = 100_000
KILLS = 6


def chaos(*more: str) -> str:
    """Run it with a seed of its own; what it printed."""
    seed = random.SystemRandom().randrange(1 << 32)
    options = [f"--records={RECORDS}", f"--kills={KILLS}", f"--seed={seed}", "--workers=4", *more]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "chaos.py"), *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=800,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, f"seed {seed}\n{done.stdout[-20_000:]}"
    return done.stdout


def test_nothing_is_lost_on_an_embedded_path() -> None:
    printed = chaos()

    assert f"ended {RECORDS}  lost 0" in printed
    assert "violations 0" in printed


def test_nothing_is_lost_on_a_real_kafka(kafka) -> None:
    printed = chaos(f"--broker={kafka.url}")

    assert f"ended {RECORDS}  lost 0" in printed
    assert "violations 0" in printed
