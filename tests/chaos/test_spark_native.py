"""A short run of `tests.chaos.spark` on Kafka's own share groups; as `test_spark`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.spark import short_run

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(1500)]


def test_a_pipeline_that_is_killed_again_and_again_has_every_record_once(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    bootstrap = request.getfixturevalue("kafka").bootstrap

    assert short_run("native", "batches", tmp_path, "jvm", "python", bootstrap=bootstrap) == 0
