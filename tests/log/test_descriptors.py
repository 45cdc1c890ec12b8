"""How many descriptors the store and connections get of those that there are."""

from __future__ import annotations

import pytest

from flowshare.log.descriptors import RESERVE_MAX, STORE_MAX, connections, store_files


@pytest.mark.parametrize(
    ("limit", "files", "left"), [(None, 512, 2_000), (20_000, 512, 2_000), (1_024, 256, 512), (160, 40, 80)]
)
def test_the_store_has_its_files_and_connections_what_is_left(limit, files, left):
    assert (store_files(limit), connections(limit, 2_000)) == (files, left)


def test_both_together_leave_a_reserve():
    for limit in range(64, 5_000, 7):
        rest = limit - store_files(limit) - connections(limit, 10**9)
        assert rest >= min(RESERVE_MAX, limit // 4)


def test_there_is_always_a_connection():
    assert connections(16, 2_000) == 1
    assert connections(1_000_000, 5) == 5
    assert store_files(1_000_000) == STORE_MAX
