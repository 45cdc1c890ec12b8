"""A short run of `tests.chaos.chain`, and its judge."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.chain import Chained, Plan, chained

SEED = 7


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(600)
def test_what_an_exactly_once_agent_writes_is_handed_to_the_next_one_from_one_place_whoever_is_killed(
    tmp_path: Path,
) -> None:
    (one,) = chained([Plan(seed=SEED, records=4_000, kills=3)], tmp_path)

    assert (one.kills, dict(one.twice), one.lost) == (3, {}, [])


def test_records_from_several_places_and_from_none_are_violations() -> None:
    assert Chained({3: frozenset({(0, 1), (0, 9)})}, [4, 5], 1).violations == 3
