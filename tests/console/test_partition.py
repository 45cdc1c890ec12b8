"""Tests of the page of a share-partition."""

from __future__ import annotations

from flowshare.client.admin.browsing import BrowsedHole, BrowsedRun, BrowsePage
from flowshare.console.pages.partition import _states, _strip, untold


def page(*runs: BrowsedRun, kind: str = "native", start: int = 4, end: int = 12, holes=()) -> BrowsePage:
    return BrowsePage(
        group_id="g", topic="t", partition=0, kind=kind, taken_ms=0, loaded=False,
        start_offset=start, end_offset=end, runs=runs, holes=holes,
    )  # fmt: skip


def done(first: int, last: int) -> BrowsedRun:
    return BrowsedRun(first, last, "acknowledged", 1, "", 0, -1)


def test_what_brokers_tell_nothing_of_is_unknown_and_not_available():
    found = page(done(5, 6), done(9, 11))
    assert untold(found) == [(4, 4), (7, 8)]
    assert _states(found) == [("acknowledged", 5), ("unknown", 3)]
    strip, *_ = _strip(found, None, None)
    assert "7: unknown" in strip
    assert "available" not in strip


def test_where_no_record_is_nothing_is_unknown():
    assert untold(page(done(6, 8), holes=(BrowsedHole(4, 5, "retention"),))) == []


def test_other_leaders_tell_all_there_is():
    found = page(done(5, 6), kind="share")
    assert _states(found) == [("acknowledged", 2)]
    assert "4: available" in _strip(found, None, None)[0]
