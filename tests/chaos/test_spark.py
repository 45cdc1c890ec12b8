"""A short run of `tests.chaos.spark` on one machine; the other places are files of their own, to run beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.spark import short_run

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(1500)]


def test_a_pipeline_that_is_killed_again_and_again_has_every_record_once(tmp_path: Path) -> None:
    assert short_run("embedded", "files", tmp_path) == 0
