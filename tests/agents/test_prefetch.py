"""How many records an agent asks for, and whether whole batches of them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flowshare.agents.feed.prefetch import (
    BUFFER_KEYS_MAX,
    FEW,
    UNCONFIRMED_MAX,
    Asked,
    FetchSize,
    GroupSize,
    KeyFetchSize,
    KeyPrefetch,
    Prefetch,
)
from flowshare.clock import LoopClock

TARGET = 200
"""Records that a `Prefetch` of half as many handlers asks for before the handlers' speed is known."""


class Agent:
    """A `FetchSize` and stand-ins for its inputs."""

    def __init__(self, *, delays: SimpleNamespace | None = None) -> None:
        self.held = SimpleNamespace(outstanding=0)
        self.acks = SimpleNamespace(unconfirmed=0)
        self.reader = SimpleNamespace(batch_records=0)
        self.size = FetchSize(Prefetch(TARGET // 2), self.held, self.acks, self.reader, delays)

    def shares(self, locks: int, members: int) -> None:
        """The agent's record locks are a broker's, for so many members."""
        group = SimpleNamespace(group="g", topics=["in"])
        self.size.group = GroupSize(group, locks, clock=LoopClock(), admin=None)
        self.size.group.members = members


@pytest.fixture
def agent():
    return Agent()


def test_an_agent_that_holds_nothing_asks_for_all_that_its_handlers_finish_soon(agent):
    assert agent.size.wanted() == TARGET


def test_what_is_held_and_what_is_not_read_yet_need_no_room(agent):
    agent.held.outstanding = 60

    assert (agent.size.wanted(), agent.size.wanted(40)) == (TARGET - 60, TARGET - 100)


@pytest.mark.parametrize(("free", "asked"), [(TARGET // 4, TARGET // 4), (TARGET // 4 - 1, 0), (-5, 0)])
def test_less_than_a_quarter_of_the_room_is_not_worth_asking(agent, free, asked):
    agent.held.outstanding = TARGET - free

    assert agent.size.wanted() == asked


def test_a_paused_agent_asks_for_nothing_until_it_is_resumed(agent):
    agent.size.paused = True
    assert agent.size.wanted() == 0

    agent.size.paused = False

    assert agent.size.wanted() == TARGET


def test_nothing_is_asked_for_while_too_many_acknowledgements_have_no_answer(agent):
    agent.acks.unconfirmed = UNCONFIRMED_MAX
    assert agent.size.wanted() == 0

    agent.acks.unconfirmed -= 1

    assert agent.size.wanted() == TARGET


def test_one_fetch_takes_a_part_of_the_record_locks_at_most(agent):
    agent.shares(locks=300, members=2)

    assert agent.size.wanted() == 300 // 2 // 3


def test_where_delays_hold_records_an_agent_holds_no_more_than_its_share_of_the_locks():
    delays = SimpleNamespace(locks=0, waiting=0)
    agent = Agent(delays=delays)
    agent.shares(locks=300, members=2)
    agent.held.outstanding = 120
    assert agent.size.wanted() == 0
    assert delays.locks == 150

    delays.waiting = 90

    assert agent.size.wanted() == 50


def test_nothing_is_asked_ahead_of_few_records_which_are_read_sooner(agent):
    assert (agent.size.ahead(FEW), agent.size.ahead(FEW + 1)) == (0, TARGET - FEW - 1)


@pytest.mark.parametrize(
    ("members", "batch_records", "room", "whole"),
    [
        (1, 10, 10, True),
        (1, 11, 10, False),
        (1, 0, 10, False),
        (2, 10, 10, False),
    ],
    ids=["there is room", "longer than the room", "length not known", "others wait for their part"],
)
def test_a_broker_may_send_whole_batches_where_nobody_else_waits_and_there_is_room(
    agent, members, batch_records, room, whole
):
    agent.shares(locks=300, members=members)
    agent.reader.batch_records = batch_records

    assert agent.size.whole(room) is whole


def test_where_servers_count_records_batches_need_not_come_whole(agent):
    agent.reader.batch_records = 10

    assert not agent.size.whole(10)


# --- with an order -----------------------------------------------------------------------------------------------


class Ordered:
    """The same of an agent with an order, with so many handlers."""

    def __init__(self, handlers: int, *, chain: int = 16) -> None:
        self.held = SimpleNamespace(outstanding=0, followers=0)
        self.prefetch = KeyPrefetch(handlers)
        reader = SimpleNamespace(batch_records=0)
        self.acks = SimpleNamespace(unconfirmed=0, leaves_soon=False)
        self.size = KeyFetchSize(self.prefetch, self.held, self.acks, reader, chain=chain)


def test_as_many_keys_as_handlers_are_begun_until_the_speed_is_known():
    assert Ordered(16).size.wanted() == 16


def test_quick_handlers_hold_nearly_as_many_keys_more_as_they_finish_in_50_ms():
    agent = Ordered(16)
    agent.prefetch.finished(1_000, 1.0)

    assert agent.size.wanted() == 16 + 48


def test_slow_handlers_hold_no_key_that_none_of_them_works_on():
    agent = Ordered(1)
    agent.prefetch.finished(3, 1.0)

    assert agent.size.wanted() == 1


def test_handlers_that_are_neither_slow_nor_quick_hold_one_key_ahead():
    agent = Ordered(1)
    agent.prefetch.finished(4, 1.0)

    assert agent.size.wanted() == 2


def test_no_more_keys_are_held_ahead_than_leave_the_next_fetch_in_few_pieces():
    agent = Ordered(16)
    agent.prefetch.finished(1_000_000, 1.0)

    assert agent.size.wanted() == 16 + BUFFER_KEYS_MAX


def test_a_member_that_is_quick_asks_for_more_keys_when_it_has_run_all_but_a_few():
    agent = Ordered(16)
    agent.prefetch.finished(100_000, 1.0)
    agent.held.outstanding = 16 + 801
    assert agent.size.wanted() == 0

    agent.held.outstanding = 16 + 800
    assert agent.size.wanted() == BUFFER_KEYS_MAX - 800


def test_it_asks_when_what_it_has_run_is_acknowledged_so_that_none_of_their_keys_is_left_behind():
    agent = Ordered(16)
    agent.prefetch.finished(100_000, 1.0)
    agent.acks.leaves_soon = True
    assert agent.size.wanted() == 0

    agent.acks.leaves_soon = False
    assert agent.size.wanted() == 16 + BUFFER_KEYS_MAX


def test_one_that_is_not_quick_asks_as_soon_as_a_quarter_of_its_handlers_have_nothing_to_do():
    agent = Ordered(16)
    agent.prefetch.finished(200, 1.0)
    agent.acks.leaves_soon = True
    agent.held.outstanding = 18

    assert agent.size.wanted() == 6


def test_what_waits_behind_a_record_of_its_key_takes_no_room():
    agent = Ordered(16)
    agent.held.outstanding, agent.held.followers = 60, 52

    assert agent.size.wanted() == 8


def test_nothing_is_held_beside_what_runs_when_no_handler_ends():
    agent = Ordered(16)
    agent.prefetch.finished(1_000, 1.0)
    agent.prefetch.still_running(16, 3.0, full=True)

    assert agent.size.wanted() == 16


@pytest.mark.parametrize(
    ("keys", "records"), [(1, 16), (5, 80), (20, 256), (300, 600)], ids=["one", "some", "many", "more than chains"]
)
def test_there_is_room_for_a_chain_behind_each_key_up_to_a_limit(keys, records):
    assert Ordered(16).size.asked(keys, None) == Asked(records, keys, 16)


def test_a_handler_with_outputs_gets_one_record_of_a_key_at_a_time():
    assert Ordered(16, chain=1).size.asked(7, None) == Asked(7, 7, 1)


def test_a_rate_limit_bounds_records_and_keys():
    assert Ordered(16).size.asked(7, 5) == Asked(5, 5, 16)
    assert Ordered(16).size.asked(7, 20) == Asked(20, 7, 16)
