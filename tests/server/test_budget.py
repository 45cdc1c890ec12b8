"""What connections hold of a budget: parts, order, and who gives way."""

from __future__ import annotations

from flowshare.server.budget import ARRIVING_BYTES, SMALL_BYTES, Budget, Makers, StateBudget
from flowshare.server.failures import Refused

MIB = 1024 * 1024


class Socket:
    """A connection that says of itself whether it reads."""

    def __init__(self, budget: Budget, party: str = "a") -> None:
        self.budget = budget
        self.account = budget.open(self, party)
        self.arriving = True
        self.resumed = 0

    def resume(self) -> None:
        self.resumed += 1
        self.arriving = self.budget.allows(self.account)

    def send(self, count: int) -> bool:
        """Part of a request; whether more is read."""
        self.budget.received(self.account, count)
        self.arriving = self.budget.allows(self.account)
        return self.arriving

    def end(self, count: int) -> None:
        """The rest of a request, which is answered at once."""
        self.budget.received(self.account, count)
        whole = self.account.unfinished
        self.budget.accepted(self.account, whole)
        self.budget.finished(self.account, whole)


def filled(budget: Budget, count: int, *, party: str = "a") -> list[Socket]:
    """Connections with begun requests of up to 2 MiB."""
    sockets = [Socket(budget, party) for _ in range(count)]
    for _ in range(8):
        for socket in sockets:
            if socket.arriving:
                socket.send(MIB // 4)
    return sockets


def test_one_connection_alone_is_read_from_until_it_holds_what_is_left_to_its_part():
    budget = Budget(64 * MIB)
    other = Socket(budget)
    other.send(MIB)
    assert all(other.send(MIB) for _ in range(14))


def test_whoever_comes_later_finds_room_however_many_hold_theirs():
    budget = Budget(256 * MIB)
    filled(budget, 300)
    stranger = Socket(budget, "b")
    assert stranger.send(MIB)
    assert stranger.send(MIB)


def test_a_party_of_many_holds_no_more_than_half():
    budget = Budget(256 * MIB)
    filled(budget, 300, party="many")
    assert budget.held <= 128 * MIB + 301 * MIB // 4 + 2 * MIB
    assert all(Socket(budget, f"other {number}").send(MIB) for number in range(5))


def test_small_requests_are_always_read():
    budget = Budget(256 * MIB)
    filled(budget, 200)
    small = Socket(budget)
    for _ in range(100):
        assert small.send(SMALL_BYTES // 2)
        small.end(SMALL_BYTES // 2)


def test_one_of_those_that_wait_is_read_from_to_the_end_of_its_request():
    budget = Budget(4 * MIB)
    sockets = [Socket(budget) for _ in range(4)]
    for socket in sockets:
        socket.send(3 * MIB)
    for _ in range(4):
        (favoured,) = [socket for socket in sockets if socket.arriving]
        assert favoured.send(8 * MIB)
        favoured.end(0)
        sockets.remove(favoured)
    assert budget.held == 0


def test_of_equals_those_go_on_first_who_had_a_request_answered_last():
    budget = Budget(4 * MIB)
    good = Socket(budget)
    good.end(10)
    hogs = [Socket(budget) for _ in range(4)]
    for hog in hogs:
        hog.send(3 * MIB)
    favoured = next(hog for hog in hogs if hog.arriving)
    favoured.send(MIB)
    assert not good.send(MIB)
    budget.left(favoured.account)
    assert good.arriving


def test_who_had_a_request_answered_does_not_wait_for_a_favoured_one_of_which_nothing_comes():
    budget = Budget(4 * MIB)
    good = Socket(budget)
    good.end(10)
    for _ in range(4):
        Socket(budget).send(3 * MIB)
    assert good.send(MIB)


def test_nobody_comes_before_a_favoured_one_that_arrives():
    budget = Budget(4 * MIB)
    good = Socket(budget)
    good.end(10)
    hogs = [Socket(budget) for _ in range(4)]
    for hog in hogs:
        hog.send(3 * MIB)
    favoured = next(hog for hog in hogs if hog.arriving)
    favoured.send(MIB)
    assert not good.send(MIB)


def test_a_begun_request_that_stands_still_gives_way_while_others_wait():
    budget = Budget(4 * MIB)
    hogs = [Socket(budget) for _ in range(4)]
    for hog in hogs:
        hog.send(3 * MIB)
    assert budget.look() == []
    favoured = next(hog for hog in hogs if hog.arriving)
    assert budget.look() == [favoured]


def test_a_begun_request_that_arrives_does_not_give_way():
    budget = Budget(4 * MIB)
    hogs = [Socket(budget) for _ in range(4)]
    for hog in hogs:
        hog.send(3 * MIB)
    favoured = next(hog for hog in hogs if hog.arriving)
    for _ in range(5):
        favoured.send(ARRIVING_BYTES)
        assert favoured not in budget.look()


def test_a_trickle_gives_way_as_silence_does():
    budget = Budget(4 * MIB)
    hogs = [Socket(budget) for _ in range(4)]
    for hog in hogs:
        hog.send(3 * MIB)
    favoured = next(hog for hog in hogs if hog.arriving)
    budget.look()
    favoured.send(100)
    assert budget.look() == [favoured]


def test_those_that_wait_are_tried_so_that_all_who_only_hold_are_found():
    budget = Budget(256 * MIB)
    filled(budget, 300)
    before = budget.waiting
    for _ in range(12):
        for still in budget.look():
            budget.left(still.account)
    assert budget.waiting < before // 4


def test_many_that_end_as_they_are_resumed_are_no_deep_recursion():
    budget = Budget(4 * MIB)

    class Ending(Socket):
        def resume(self) -> None:
            self.budget.left(self.account)

    sockets = [Ending(budget) for _ in range(600)]
    for socket in sockets:
        socket.send(MIB)
    for socket in sockets:
        budget.left(socket.account)
    assert budget.held == budget.waiting == 0


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
