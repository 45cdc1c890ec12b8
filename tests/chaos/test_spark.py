"""A short run of `tests.chaos.spark`: pipelines that are killed, on one machine and on a real Kafka."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.spark import Plan, chaos

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(1500)]


@pytest.mark.parametrize(("place", "sink"), [("embedded", "files"), ("native", "batches"), ("workers", "files")])
def test_a_pipeline_that_is_killed_again_and_again_has_every_record_once(
    place: str, sink: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    kafka = None if place == "embedded" else request.getfixturevalue("kafka").bootstrap
    plan = Plan(place=place, sink=sink, seed=seed, records=20_000, kills=4)

    assert chaos([plan], tmp_path, bootstrap=kafka) == 0, f"seed {seed}"
