"""A short run of `tests.chaos.spark` on one machine; the other places are files of their own, to run beside it.

Each victim is in two of the three; a stop in order and the end of all processes at once are in each. More kills, by the
dice, brokers' among them, and both sinks at each place are `make chaos`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.spark import short_run

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(1500)]


def test_a_pipeline_that_is_killed_again_and_again_has_every_record_once(tmp_path: Path) -> None:
    assert short_run("embedded", "files", tmp_path, "driver", "jvm") == 0
