"""What is remembered of replayed letters, as text."""

import pytest

from flowshare.cli.dlq import METADATA_MAX, format_runs, parse
from flowshare.share.ranges import merged


@pytest.mark.parametrize("runs", [[], [(0, 5)], [(3, 3), (7, 19)]])
def test_runs_come_back_from_their_text(runs):
    assert parse(format_runs(runs)) == runs


def test_what_somebody_else_wrote_is_nothing():
    assert parse("offsets of mine, 7, x-9") == []


def test_of_too_many_runs_the_newest_are_kept():
    runs = [(2 * number, 2 * number) for number in range(10_000)]
    kept = parse(format_runs(runs))

    assert len(format_runs(runs)) <= METADATA_MAX
    assert kept == runs[-len(kept) :]


def test_neighbours_become_one_run():
    assert merged([(5, 6), (0, 1), (2, 2), (9, 9), (6, 7)]) == [(0, 2), (5, 7), (9, 9)]
