"""Patterns of topics: what one may cost, and that others run while the names are gone through."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.core_errors import InvalidRegularExpression
from flowshare.server.groups import patterns
from flowshare.server.groups.patterns import PATTERN_BYTES_MAX, Patterns
from flowshare.server.runtime.turns import TURN_S, TurnLine, Turns
from flowshare.testing.clock import ManualClock
from tests.server.test_turns import SlowClock

pytestmark = pytest.mark.asyncio

NAMES = [f"t-{number}" for number in range(20)]


def turns() -> Turns:
    return Turns(ManualClock())


@pytest.mark.parametrize("pattern", ["(.?){1000}.{0,999}x", "(?:.?){1000}.{0,999}x", r"(\pL?){200}x"])
async def test_a_pattern_whose_program_is_large_is_refused_however_few_bytes_it_has(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpression, match="cannot be read by RE2"):
        Patterns(lambda: NAMES).check(pattern)


async def test_a_list_of_names_as_long_as_a_pattern_may_be_is_none_of_those() -> None:
    listed = "|".join(f"orders-of-{number:05}" for number in range(1_000))[: PATTERN_BYTES_MAX - 16].rpartition("|")[0]
    found = Patterns(lambda: ["orders-of-00007", "orders-of-7"])
    assert await found.matching(listed, turns()) == {"orders-of-00007"}


async def test_groups_in_a_pattern_capture_nothing_and_match_as_before() -> None:
    known = Patterns(lambda: ["orders-de", "orders-", "x"])
    assert await known.matching("(orders)-(de|at)(?P<rest>.*)", turns()) == {"orders-de"}
    match = known._known("(orders)-(de|at)(?P<rest>.*)")[0].fullmatch("orders-de")
    assert not any(match.groups())


async def test_others_run_between_any_two_names_that_take_a_turn_each() -> None:
    line, rounds = TurnLine(), 0
    found = Patterns(lambda: NAMES)
    task = asyncio.ensure_future(found.matching("t-.*", Turns(SlowClock(TURN_S), line)))
    while not task.done():
        await asyncio.sleep(0)
        rounds += 1
    assert await task == frozenset(NAMES)
    assert rounds > len(NAMES)


async def test_a_name_is_matched_once_and_shown_only_to_whom_may_know_it() -> None:
    names = ["a", "b"]
    known = Patterns(lambda: names)
    assert await known.matching(".", turns(), lambda name: name != "a") == {"b"}
    kept = known._known(".")[1]
    names.append("c")
    assert await known.matching(".", turns()) == {"a", "b", "c"}
    assert known._known(".")[1] is kept


async def test_what_is_known_of_all_patterns_together_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "KNOWN_MAX", 50)
    known = Patterns(lambda: NAMES)
    for number in range(10):
        assert await known.matching(f"t-{number}.*", turns())
        assert sum(len(one) for _, one in known._kept.values()) <= 50
    assert await known.matching("t-0.*", turns()) == {"t-0"}
