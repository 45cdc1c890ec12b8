"""Looks at very many groups: asked in turn, oldest first, within bounds; the end of a log is asked for once; members
and settings are asked for seldom."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flowshare.backend.base import NATIVE
from flowshare.client.admin.admin import BREAKER, PAUSED
from flowshare.client.errors import ConnectionLost, ServerError, Unsupported
from flowshare.ops import reading
from flowshare.ops.reading import LetterCounts
from flowshare.ops.watcher import DETAILS_AT_LEAST, SIDE_BY_SIDE, LookLimits, Watcher
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import SharePartitionOffsets
from tests.sim.clock import HandClock

pytestmark = pytest.mark.asyncio
LIMITS = LookLimits(seconds=2.0, slow_s=30.0)
PAUSING = SimpleNamespace(pausing=True, key_order=False)


class Admin:
    """Tells of groups that all read one topic, each after some time of the clock, and of topics of dead letters."""

    def __init__(self, clock: HandClock, takes_s: float = 0.0) -> None:
        self.clock, self.takes_s = clock, takes_s
        self.asked: list[str] = []
        self.described: list[str] = []
        self.states: dict[str, str] = {}
        self.ends = 0
        self.finished = 0
        self.letters = 1
        self.topics: list[SimpleNamespace] = []

    async def list_groups(self):
        return [SimpleNamespace(group_id=name, state=state) for name, state in self.states.items()]

    async def group_offsets(self, group):
        self.asked.append(group)
        self.clock.now_s += self.takes_s
        return [SharePartitionOffsets(topic="t", topic_id=None, partition=0, start_offset=self.finished, lag=100)]

    async def log_end(self, topic, partition):
        self.ends += 1
        return 100 + self.finished

    async def topic_configs(self, topic):
        return []

    async def peek(self, topic, partition, offset):
        return None

    async def describe_group(self, group):
        self.described.append(group)
        self.clock.now_s += self.takes_s
        return SimpleNamespace(state="Stable", members=[SimpleNamespace(assignment={"t": (0,)})])

    async def list_topics(self):
        return self.topics

    async def offsets(self, _topic, _number):
        self.clock.now_s += 0.02
        return SimpleNamespace(high_watermark=self.letters, log_start=0)


def names(count: int) -> list[str]:
    return [f"g{number:05}" for number in range(count)]


def shared(*groups: str) -> dict[str, str]:
    return dict.fromkeys(groups, "share")


async def test_the_end_of_a_log_is_asked_for_once_for_the_groups_that_are_asked_together():
    admin, groups = Admin(HandClock()), names(2 * reading.GROUPS_AT_ONCE)
    found = await reading.partitions(admin, shared(*groups), 0)

    assert ([part.group for part in found], admin.ends) == (groups, 2)


async def test_a_look_at_thousands_of_groups_takes_its_part_of_the_time_and_the_others_come_with_the_next_looks():
    clock = HandClock()
    admin, groups = Admin(clock, takes_s=0.01), names(1_000)
    watcher, looks = Watcher(clock, LIMITS, details=False), 0
    found = await watcher.look(admin, NATIVE, shared(*groups))
    first = 1_000 - found.unasked
    while found.unasked:
        looks += 1
        found = await watcher.look(admin, NATIVE, shared(*groups))

    chunk_s = reading.AT_ONCE * admin.takes_s
    assert LIMITS.seconds <= first * admin.takes_s <= LIMITS.seconds + chunk_s
    assert looks <= 1_000 // first
    assert admin.asked[:1_000] == groups  # nobody twice before everybody once
    assert found.oldest_s <= (looks + 1) * (LIMITS.seconds + chunk_s)


async def test_one_look_asks_for_a_bounded_number_of_groups_and_for_those_wanted_first_before_others():
    clock = HandClock()
    admin, watcher = Admin(clock), Watcher(clock, LookLimits(groups=100))
    for look in range(11):
        admin.asked.clear()
        admin.described.clear()
        clock.now_s += 1.0
        found = await watcher.look(admin, NATIVE, shared(*names(1_000)), first=["g00999", "gone"])
        assert (len(found.groups), len(admin.asked), admin.asked[0]) == (1_000, 100, "g00999")
        assert sorted(admin.described) == sorted(admin.asked), "members of the same groups"
        assert (found.unasked == 0) is (look == 10), "all had their turn"


async def test_a_group_that_had_no_turn_yet_has_no_figures_and_no_reason():
    clock = HandClock()
    found = await Watcher(clock, LookLimits(groups=1)).look(Admin(clock), NATIVE, shared("a", "b"))

    assert found.groups["a"].total.backlog == 100
    assert (found.groups["b"].total.backlog, found.groups["b"].stall) == (None, None)
    assert [part.group for part in found.partitions] == [topic.group for topic in found.topics] == ["a"]


async def test_the_rate_of_a_group_that_is_asked_seldom_is_of_the_time_between():
    clock = HandClock()
    admin, watcher = Admin(clock), Watcher(clock, LIMITS)
    await watcher.look(admin, NATIVE, shared("g"))
    clock.now_s += 60.0
    admin.finished = 30
    found = await watcher.look(admin, NATIVE, shared("g"))

    assert found.topics[0].rate == found.groups["g"].total.rate == 0.5
    assert watcher.finished_rate(found.partitions[0]) == 0.5


async def test_rates_go_on_over_a_new_session():
    clock = HandClock()
    watcher = Watcher(clock)
    for finished in (0, 30):
        admin = Admin(clock)
        admin.finished = finished
        found = await watcher.look(admin, NATIVE, shared("g"))
        clock.now_s += 10.0

    assert found.groups["g"].total.rate == 3.0


async def test_a_group_that_is_gone_is_forgotten():
    clock = HandClock()
    admin, watcher = Admin(clock), Watcher(clock)
    await watcher.look(admin, NATIVE, shared("a", "b"))

    assert list((await watcher.look(admin, NATIVE, shared("b"))).groups) == ["b"]


async def test_members_are_asked_for_seldom_at_once_when_the_groups_state_has_changed_and_when_somebody_hurries():
    clock = HandClock()
    admin, watcher = Admin(clock), Watcher(clock, LIMITS)
    admin.states = {"a": "Stable", "b": "Stable"}
    described = []
    for change in ("", "", "state", "hurry", "time"):
        admin.described.clear()
        if change == "state":
            admin.states["b"] = "Empty"
        elif change == "hurry":
            watcher.hurry()
        elif change == "time":
            clock.now_s += 31.0
        await watcher.look(admin, NATIVE)
        described.append(sorted(admin.described))

    assert described == [["a", "b"], [], ["b"], ["a", "b"], ["a", "b"]]


async def test_members_of_very_many_groups_take_a_bounded_part_of_a_look():
    clock = HandClock()
    admin, watcher = Admin(clock), Watcher(clock, LIMITS)
    groups, counts = shared(*names(300)), []
    await watcher.look(admin, NATIVE, groups)
    admin.described.clear()
    clock.now_s += 100.0
    admin.takes_s = 0.25
    for _ in range(3):
        admin.asked.clear()
        admin.described.clear()
        await watcher.look(admin, NATIVE, groups)
        counts.append(len(admin.described))

    assert counts == [max(10, DETAILS_AT_LEAST)] * 3, "one of 30 parts, as they are to be asked every 30 s"
    admin.described.clear()
    await Watcher(clock, LIMITS).look(admin, NATIVE, groups)
    assert LIMITS.seconds / 0.25 < len(admin.described) <= LIMITS.seconds / 0.25 + SIDE_BY_SIDE


async def test_members_of_a_group_whose_state_has_changed_are_asked_for_before_those_of_many_others():
    clock = HandClock()
    admin, watcher = Admin(clock), Watcher(clock, LIMITS)
    admin.states = dict.fromkeys(names(300), "Stable")
    await watcher.look(admin, NATIVE)
    clock.now_s += 100.0
    await watcher.look(admin, NATIVE)  # all are due, and the first have had their turn
    admin.described.clear()
    admin.states["g00000"] = "Empty"
    await watcher.look(admin, NATIVE)

    assert (admin.described[0], len(admin.described)) == ("g00000", 10)


def with_breakers(admin: Admin) -> list[str]:
    """Give each group a breaker, which is open; return the list of the groups whose breaker was asked for."""
    asked: list[str] = []

    async def configs(_group):
        return [SimpleNamespace(name=BREAKER, value="x")]

    async def breaker(group):
        asked.append(group)
        return SimpleNamespace(state="open", why="w", left_ms=5_000)

    admin.group_configs, admin.breaker = configs, breaker
    return asked


async def test_breakers_of_all_groups_are_told_unless_a_look_is_bounded():
    clock = HandClock()
    admin = Admin(clock)
    with_breakers(admin)
    found = await Watcher(clock).look(admin, PAUSING, shared(*names(150)))

    assert {one.breaker.state for one in found.groups.values()} == {"open"}


async def test_a_server_that_knows_no_question_about_breakers_leaves_the_rest_of_the_look():
    clock = HandClock()
    admin = Admin(clock)
    with_breakers(admin)

    async def unsupported(_group):
        raise Unsupported("no such API")

    admin.breaker = unsupported
    (group,) = (await Watcher(clock).look(admin, PAUSING, shared("g"))).groups.values()
    assert (group.total.backlog, group.members, group.breaker.state) == (100, 1, "closed")


@pytest.mark.parametrize("slow_s", [0.0, 30.0])
async def test_breakers_of_very_many_groups_are_asked_for_in_turn_and_the_last_answer_stands(slow_s):
    clock = HandClock()
    admin, watcher = Admin(clock), Watcher(clock, LookLimits(slow_s=slow_s, breakers=10))
    asked = with_breakers(admin)
    for look in range(1, 4):
        clock.now_s += 1.0
        found = await watcher.look(admin, PAUSING, shared(*names(30)))
        assert sum(one.breaker.state == "open" for one in found.groups.values()) == len(set(asked)) == 10 * look


async def test_what_may_not_be_seen_is_not_known_and_the_rest_is():
    clock = HandClock()
    admin = Admin(clock)

    async def refused(_group):
        raise ServerError(ErrorCode.GROUP_AUTHORIZATION_FAILED)

    admin.describe_group = refused
    (group,) = (await Watcher(clock).look(admin, NATIVE, shared("g"))).groups.values()

    assert (group.members, group.assigned, group.total.backlog) == (None, None, 100)


async def test_a_look_that_fails_forgets_nothing_about_a_group_and_the_next_one_asks_for_its_members_again():
    clock = HandClock()
    admin, watcher = Admin(clock), Watcher(clock, LIMITS)
    describe, value = admin.describe_group, "true"

    async def configs(_group):
        return [SimpleNamespace(name=PAUSED, value=value)]

    async def lost(_group):
        raise ConnectionLost("gone")

    admin.group_configs = configs
    await watcher.look(admin, PAUSING, shared("g"))
    clock.now_s += 31.0
    admin.describe_group = lost
    with pytest.raises(ConnectionLost):
        await watcher.look(admin, PAUSING, shared("g"))
    known = watcher._known["g"].figures("g")
    assert (known.paused, known.members) == (True, 1)

    admin.describe_group, value = describe, "false"
    clock.now_s += 1.0
    assert not (await watcher.look(admin, PAUSING, shared("g"))).groups["g"].paused


async def test_a_setting_that_is_changed_during_a_look_is_seen_by_the_next_one():
    clock = HandClock()
    admin, watcher, told = Admin(clock), Watcher(clock, LIMITS), ["false", "true"]

    async def configs(_group):
        watcher.hurry()
        return [SimpleNamespace(name=PAUSED, value=told.pop(0))]

    admin.group_configs = configs
    await watcher.look(admin, PAUSING, shared("g"))
    assert (await watcher.look(admin, PAUSING, shared("g"))).groups["g"].paused


async def test_letters_of_very_many_topics_are_counted_in_turn_and_again_and_again():
    clock = HandClock()
    admin, letters = Admin(clock), LetterCounts(clock)
    admin.topics = [SimpleNamespace(name=f"g{number:03}.dlq", partitions=1) for number in range(300)]
    counts = {}
    for admin.letters in (1, 7):
        for _ in range(20):
            counts = await letters.look(admin)
            clock.now_s += 5.0
        assert counts == {topic.name: admin.letters for topic in admin.topics}

    del admin.topics[1:]
    clock.now_s += 60.0
    assert await letters.look(admin) == {"g000.dlq": 7}
