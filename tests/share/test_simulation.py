"""The seeded world (simulation.py): fixed seeds in every run, others as `tests.sim.seeds` says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.share.simulation import World
from tests.sim.seeds import play, seeds


@pytest.mark.slow
def test_every_record_ends_and_none_is_lost_or_held_twice() -> None:
    play(seeds(100, 1), lambda seed: World(seed).run())


def test_a_few_worlds_end_well() -> None:
    play((1, 2), lambda seed: World(seed).run())


@pytest.mark.slow
def test_the_same_seed_is_the_same_run_whatever_the_hash_seed() -> None:
    script = "from tests.share.simulation import World; print(World(7).run())"
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }

    assert len(digests) == 1
