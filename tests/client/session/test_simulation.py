"""The seeded world of members' sessions (`world`): fixed seeds in every run, others as `tests.sim.seeds` says."""

from __future__ import annotations

import pytest

from tests.client.session.world import KINDS, World
from tests.sim.seeds import play, seeds


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_or_told_twice_whatever_happens_to_requests_and_leaders(kind) -> None:
    play(seeds(100, 1), lambda seed: World(seed, kind).live(), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_world_ends_well_and_the_same_seed_is_the_same_run(kind) -> None:
    assert World(1, kind).live() == World(1, kind).live()


def test_what_a_node_gave_before_it_led_anew_is_left_when_it_comes_after_the_resume() -> None:
    World(35, "fleet").live()
