"""Group coordinator, share sessions and assignor, driven directly: the part of the core subject that knows members."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable

from flowshare.core_errors import CoreError, GroupIdNotFound
from flowshare.protocol.errors import error_code
from flowshare.share.assignor import Key, assign
from flowshare.share.config import GroupConfig
from flowshare.share.group import ShareGroup, TopicInfo, check_heartbeat
from flowshare.share.session import ShareSessions
from tests.scenarios import words
from tests.scenarios.language import Outcome, Scenario, Step
from tests.scenarios.settings import server_config
from tests.scenarios.words import Place


def topic_id(name: str) -> uuid.UUID:
    """The same id for the same name, always."""
    return uuid.uuid5(uuid.NAMESPACE_OID, name)


class Coordinator:
    """The core of a group coordinator: groups, topics and what each member was told last."""

    def __init__(self, scenario: Scenario, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.server = server_config(scenario.config)
        self.topics: dict[str, TopicInfo] = {}
        self.groups: dict[str, ShareGroup] = {}
        self.told: dict[tuple[str, str], tuple[int, tuple[Place, ...]]] = {}

    def heartbeat(self, step: Step, epoch: int, topics: tuple[str, ...] | None) -> Outcome:
        """One heartbeat, its answer and what to remember of it."""
        group_id, member_id = words.member(step.words[0])
        rack = step.options.get("rack")
        check_heartbeat(group_id, member_id, epoch, rack, topics)
        config = GroupConfig.parse({}, self.server)
        if epoch == 0:
            self.groups.setdefault(group_id, ShareGroup(group_id, config=config))
        elif group_id not in self.groups:
            raise GroupIdNotFound(group_id)
        answer = self.groups[group_id].heartbeat(
            member_id=member_id,
            member_epoch=epoch,
            rack_id=rack,
            subscribed_topics=topics,
            client_id="scenario",
            client_host="here",
            topics=self.topics,
            now_ms=self.clock(),
        )
        assigned = None if answer.assignment is None else tuple(sorted(self.place(key) for key in answer.assignment))
        before = self.told.get((group_id, member_id), (0, ()))[1]
        self.told[group_id, member_id] = (answer.member_epoch, before if assigned is None else assigned)
        shown = "same" if assigned is None else words.show_places(assigned)
        return Outcome(
            "ok",
            {"epoch": str(answer.member_epoch), "assigned": shown, "interval": str(config.heartbeat_interval_ms)},
        )

    def place(self, key: Key) -> Place:
        """A topic's partition by name."""
        return Place(next(info.name for info in self.topics.values() if info.topic_id == key[0]), key[1])


class CoreGroups:
    """Steps about members, sessions and assignments."""

    def __init__(self, scenario: Scenario, clock: Callable[[], int]) -> None:
        self.coordinator = Coordinator(scenario, clock)
        self.sessions = ShareSessions(self.coordinator.server.share_sessions_max)

    def set_topic(self, name: str, partitions: int) -> None:
        """A topic exists with this many partitions."""
        self.coordinator.topics[name] = TopicInfo(name, topic_id(name), partitions)

    def do_join(self, step: Step) -> Outcome:
        """`join M1 topics=foo [rack=r]`: a heartbeat with epoch 0."""
        return self._beat(step, 0)

    def do_leave(self, step: Step) -> Outcome:
        """`leave M1`."""
        return self._beat(step, -1)

    def do_beat(self, step: Step) -> Outcome:
        """`beat M1 [epoch=3] [topics=foo,bar]`: a heartbeat with the epoch told last."""
        known = self.coordinator.told.get(words.member(step.words[0]), (1, ()))[0]
        return self._beat(step, int(step.options.get("epoch", known)))

    def _beat(self, step: Step, epoch: int) -> Outcome:
        for group in self.coordinator.groups.values():
            group.expire(self.coordinator.clock())
        named = step.options.get("topics")
        topics = None if named is None else tuple(filter(None, named.split(",")))
        try:
            return self.coordinator.heartbeat(step, epoch, topics)
        except CoreError as error:
            return Outcome(f"error {error_code(error).name}")

    def do_assigned(self, step: Step) -> Outcome:
        """`assigned`: what the members were told last, together."""
        return show_assigned([places for _, places in self.coordinator.told.values()])

    def do_restart(self, step: Step) -> Outcome:
        """The coordinator is gone; the next one reads what was written."""
        groups, now_ms = self.coordinator.groups, self.coordinator.clock()
        for name, group in groups.items():
            config = GroupConfig.parse({}, self.coordinator.server)
            groups[name] = ShareGroup.decode(group.encode(), group_id=name, config=config, now_ms=now_ms)
        return Outcome()

    def do_session(self, step: Step) -> Outcome:
        """`session M1 epoch=0 add=0,1 forget=2 => partitions=…`; `skip=9`: the session is at that epoch now."""
        group_id, member_id = words.member(step.words[0])
        if "skip" in step.options:
            session = self.sessions.get(group_id, member_id)
            assert session is not None
            session.expected_epoch = int(step.options["skip"])
            return Outcome()
        added, forgotten = (
            [(topic_id(words.TOPIC), int(p)) for p in step.options.get(name, "").split(",") if p]
            for name in ("add", "forget")
        )
        epoch = int(step.options["epoch"], 0)
        try:
            turn = self.sessions.fetch("c1", group_id, member_id, epoch, added=added, forgotten=forgotten)
        except CoreError as error:
            return Outcome(f"error {error_code(error).name}")
        return Outcome("ok", {"partitions": ",".join(str(p) for _, p in turn.partitions) or "none"})

    def do_assign(self, step: Step) -> Outcome:
        """`assign members=A:T1,T2;B:T3 partitions=T1:0,1,2;T3:0,1`: the assignor alone."""
        subscriptions = {
            member: [topic_id(name) for name in names.split(",")] for member, names in _pairs(step.options["members"])
        }
        numbers = dict(_pairs(step.options["partitions"]))
        partitions = {topic_id(name): [int(p) for p in ps.split(",")] for name, ps in numbers.items()}
        target = assign(subscriptions, partitions, {})
        wanted = {(topic, p) for topic, ps in partitions.items() for p in ps}
        outside = sum(topic not in subscriptions[member] for member, keys in target.items() for topic, _ in keys)
        strangers = {key for keys in target.values() for key in keys} - wanted
        covered = {key for keys in target.values() for key in keys} & wanted
        return Outcome(
            "ok",
            {
                "covered": f"{len(covered)}/{len(wanted)}",
                "outside": str(outside),
                "unknown": str(len(strangers)),
                "sizes": ",".join(str(len(keys)) for keys in target.values()),
            },
        )

    def do_assign_walk(self, step: Step) -> Outcome:
        """`assign_walk partitions=24 from=1 to=101`: assign at every number of members on the way."""
        count, first, last = (int(step.options[name]) for name in ("partitions", "from", "to"))
        topic = topic_id("T")
        current: dict[str, tuple[Key, ...]] = {}
        uncovered = spread = 0
        sizes: list[int] = []
        for members in range(first, last + 1) if first <= last else range(first, last - 1, -1):
            names = [f"M{i}" for i in range(members)]
            current = assign({name: [topic] for name in names}, {topic: range(count)}, current)
            held = Counter(partition for keys in current.values() for _, partition in keys)
            sizes = [len(keys) for keys in current.values()]
            uncovered += count - len(held)
            spread = max(spread, max(sizes) - min(sizes))
        return Outcome("ok", {"uncovered": str(uncovered), "spread": str(spread), "last": f"{min(sizes)}-{max(sizes)}"})


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(name, rest) for name, _, rest in (pair.partition(":") for pair in text.split(";"))]


def show_assigned(told: list[tuple[Place, ...]]) -> Outcome:
    """All partitions that any member has, and how many each has."""
    union = sorted({place for places in told for place in places})
    return Outcome("ok", {"union": words.show_places(union), "sizes": ",".join(map(str, sorted(map(len, told))))})


__all__ = ["CoreGroups", "show_assigned", "topic_id"]
