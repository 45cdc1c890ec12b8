"""Who may make how much that stays: groups, transactional ids, and their bytes."""

from __future__ import annotations

from flowshare.server.runtime.budget import Makers, StateBudget
from flowshare.server.runtime.failures import Refused


def test_a_party_makes_at_most_as_many_names_as_are_left():
    makers, there = Makers("things", "max.things"), set[str]()

    def make(party: str | None, name: str) -> bool:
        try:
            makers.check(party, there, len(there), 10)
        except Refused as error:
            return "max.things" not in str(error)
        there.add(name)
        makers.add(party, name, there, 10)
        return True

    assert [make("a", f"a{number}") for number in range(7)] == [True] * 5 + [False] * 2
    assert [make("b", f"b{number}") for number in range(4)] == [True] * 3 + [False]
    there.discard("a0")
    there.discard("a1")
    assert make("a", "again")
    assert [make(None, f"own{number}") for number in range(5)] == [True] * 3 + [False] * 2


def test_who_made_what_is_gone_is_forgotten():
    makers = Makers("things", "max.things")
    for number in range(1_000):
        makers.add(f"party {number}", f"thing {number}", {"thing 999"}, 10)
    assert len(makers._made) <= 11


def test_whoever_makes_a_name_again_is_its_maker():
    makers, there = Makers("things", "max.things"), {"thing"}
    makers.add("a", "thing", there, 10)
    assert makers.maker_of("thing") == "a"
    makers.add("b", "thing", there, 10)
    assert makers.maker_of("thing") == "b"
    assert makers._made["a"] == set()
    makers.add(None, "thing", there, 10)
    assert makers.maker_of("thing") is None


class State:
    """State that a budget counts, and how often it was."""

    def __init__(self, bytes_max: int = 100) -> None:
        self.held: list[tuple[str | None, int]] = []
        self.counted = 0
        self.budget = StateBudget(bytes_max)
        self.budget.counts(self._held)

    def _held(self) -> list[tuple[str | None, int]]:
        self.counted += 1
        return self.held

    def grows(self, party: str | None, size: int, now_s: float = 0.0) -> bool:
        """Ask for it, and hold it if that is granted."""
        try:
            self.budget.take(party, size, now_s)
        except Refused as error:
            return "coordinator.state.max.bytes" not in str(error)
        self.held.append((party, size))
        return True


def test_a_party_holds_at_most_as_many_bytes_of_state_as_are_left():
    state = State()
    assert [state.grows("a", 10) for _ in range(6)] == [True] * 5 + [False]
    assert [state.grows("b", 5) for _ in range(6)] == [True] * 5 + [False]
    assert state.grows("c", 12)
    assert not state.grows("d", 100)


def test_the_own_process_may_hold_more_than_there_is_and_leaves_nothing_to_others():
    state = State()
    assert all(state.grows(None, 50) for _ in range(3))
    assert not state.grows("a", 1, 2.0)
    state.held.clear()
    assert state.grows("a", 1, 4.0)


def test_a_count_that_is_too_high_is_set_right_before_anybody_is_refused():
    state = State()
    for _ in range(20):
        assert state.grows("a", 40, 10.0)
        state.held.pop()  # the same member again, or one that was refused later
        state.budget.came()
    state.held.append(("a", 40))
    assert state.grows("a", 10, 20.0)
    state.held.clear()
    assert state.grows("a", 50, 30.0)


def test_state_is_counted_at_most_once_a_second_however_many_are_refused():
    state = State()
    assert state.grows("a", 50, 1.0)
    before = state.counted
    assert not any(state.grows("a", 10, 2.0 + number / 1_000) for number in range(900))
    assert state.counted == before + 1
    state.held.clear()
    assert state.grows("a", 10, 3.0)


def test_state_of_unknown_makers_counts_in_the_total():
    state = State()
    state.held.append((None, 60))
    assert not state.grows("a", 30)
    assert state.grows("a", 20)


def test_what_was_read_from_the_store_is_counted_by_the_next_request():
    state = State()
    assert state.grows("a", 10)
    state.held.append((None, 80))
    state.budget.came()
    assert not state.grows("b", 10)


def test_who_adds_nothing_is_never_refused():
    state = State()
    state.held.append(("a", 1_000))
    state.budget.take("a", 0, 0.0)
    state.budget.take("a", -5, 0.0)
