"""Short runs of `tests.chaos.order`: each kind of fault once, judged as the long ones are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.order import Plan, chaos

SEED, RECORDS = 27, 6_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_processes_on_one_path_run_no_key_out_of_order_or_twice_at_once_whatever_ends_or_stands_still(
    tmp_path: Path,
) -> None:
    plan = Plan(seed=SEED, backend="embedded", records=RECORDS, more=False)

    assert chaos([plan], tmp_path) == 0, f"seed {SEED}"


@pytest.mark.java
def test_a_fleet_runs_no_key_out_of_order_or_twice_at_once_whatever_ends_or_stands_still(tmp_path: Path) -> None:
    plan = Plan(seed=SEED, backend="workers", records=RECORDS, more=False)

    assert chaos([plan], tmp_path) == 0, f"seed {SEED}"
