"""Claims in a random world: at most one holder of each hash, and no commit of a claim that ended."""

from __future__ import annotations

from collections import Counter

import pytest

from flowshare.cooperative.types import DrainMode
from tests.cooperative.world import World
from tests.sim.seeds import drawn, named

RARE_WORLDS = 400
"""Of the fast test: one world in five has a take-over."""


def play(mode, worlds, steps, seed, *, seen=lambda _counts: True):
    """So many worlds, and more until what is to be seen was."""
    counts = Counter()
    for number in range(max(worlds, RARE_WORLDS)):
        if number >= worlds and seen(counts):
            break
        with named(seed + number, mode):
            world = World(seed + number, mode)
            for _ in range(steps):
                world.step()
        counts.update(world.counts)
    return counts


@pytest.mark.parametrize("mode", list(DrainMode))
def test_each_hash_has_one_holder_and_no_claim_that_ended_commits(mode):
    def seen(counts):
        return counts["taken"] or mode is DrainMode.STRICT

    counts = play(mode, 20, 400, drawn(), seen=seen)

    assert min(counts[name] for name in ("granted", "blocked", "passed", "fenced")) > 0, counts
    assert bool(counts["taken"]) == (mode is DrainMode.AVAILABLE)


def test_a_member_that_lost_its_keys_and_got_them_back_without_hearing_of_it_is_fenced():
    play(DrainMode.AVAILABLE, 1, 1_000, 2459763970, seen=lambda _counts: True)


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(DrainMode))
def test_each_hash_has_one_holder_and_no_claim_that_ended_commits_in_many_worlds(mode):
    counts = play(mode, 1_000, 1_000, drawn())

    assert min(counts[name] for name in ("rolled back", "late")) > 100, counts
