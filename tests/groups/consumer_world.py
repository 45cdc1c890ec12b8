"""A group of Kafka's consumer protocol with members that use partitions, a store, and a network that loses
answers; and what must hold whatever happens."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from flowshare.core_errors import CoreError
from flowshare.groups.consumer_group import EPOCHS, ConsumerGroup
from flowshare.groups.consumer_member import MemberState
from flowshare.groups.consumer_stored import GroupEpochs, StoredConsumerGroup, decode_epochs, decode_member
from flowshare.groups.consumer_types import JOIN, LEAVE, LEAVE_FOR_NOW, Beat, ConsumerGroupConfig, check_beat

SESSION_MS = 45_000
REBALANCE_MS = 60_000


def topic_id(name):
    return uuid.uuid5(uuid.NAMESPACE_DNS, name)


def topic(name, count):
    return (name, topic_id(name), count)


def keys(name, *numbers):
    return {(topic_id(name), number) for number in numbers}


@dataclass
class Client:
    """A member as its process has it. `using` is what it reads records of."""

    member_id: str
    topics: tuple[str, ...] = ("t",)
    pattern: str | None = None
    instance_id: str | None = None
    assignor: str | None = None
    epoch: int = 0
    using: set = field(default_factory=set)
    wanted: set = field(default_factory=set)
    """Partitions that the client was told to use."""
    slow: bool = False
    """It takes its time before it gives up and takes over what it was told."""
    heard: bool = False
    """The answer to its last heartbeat came."""
    all_new: bool = True
    """It says everything in its next heartbeat: it joins, or does not know what the server knows."""
    said: set | None = None
    told: int = 0
    gone: bool = False
    sent: tuple[str, ...] | None = None
    """The subscription in its last heartbeat."""

    def subscribe(self, *topics):
        self.topics, self.all_new = topics, True

    def beat(self, epoch=None):
        if not self.slow:
            self.adopt()
        full, said = self.all_new, set(self.using)
        self.sent = self.topics
        return Beat(
            member_id=self.member_id,
            member_epoch=self.epoch if epoch is None else epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=REBALANCE_MS if full else -1,
            topics=self.topics if full else None,
            pattern=self.pattern if full else None,
            assignor=self.assignor if full else None,
            owned=tuple(sorted(said)) if full or said != self.said else None,
            heard=self.heard,
            client_id=self.member_id,
            client_host="h",
        )

    def adopt(self):
        self.using = set(self.wanted)

    def fenced(self):
        self.using, self.wanted, self.epoch, self.all_new, self.said, self.told = set(), set(), 0, True, None, 0

    def hear(self, beat, answer):
        assert answer.member_epoch >= self.told, "an epoch fell"
        self.epoch = self.told = answer.member_epoch
        self.heard = True
        self.all_new, self.said = self.sent != self.topics, set(self.using)
        if answer.assignment is not None:
            self.wanted = set(answer.assignment)


class ConsumerWorld:
    """The group, its store, its clients."""

    def __init__(self, *, partitions=6, **config) -> None:
        self.config = ConsumerGroupConfig(session_timeout_ms=SESSION_MS, **config)
        self.topics = {"t": topic("t", partitions)}
        self.store: dict[str, bytes] = {}
        self.now_ms = 1_000
        self.group = ConsumerGroup("g", config=self.config)
        self.clients: dict[str, Client] = {}
        self.deciding: list = []
        """Decided, not written yet."""
        self.epochs_told = 0

    def client(self, member_id, **fields):
        made = self.clients[member_id] = Client(member_id, **fields)
        return made

    # --- the network and the store --------------------------------------------------------------------------------

    def decide(self, client, beat=None):
        """The server takes a heartbeat; the answer waits for the write."""
        beat = client.beat() if beat is None else beat
        check_beat("g", beat, self.config.assignors)
        try:
            answer = self.group.heartbeat(beat, topics=self.topics, matching=self.matching, now_ms=self.now_ms)
        except CoreError as error:
            answer = error
        self.deciding.append((client, beat, answer))
        self.check()
        return answer

    def flush(self, *, deliver=True):
        """Write what was decided, and answer."""
        for name, entry in self.group.unwritten().items():
            if entry is None:
                self.store.pop(name, None)
            else:
                self.store[name] = entry
        for client, beat, answer in self.deciding:
            if isinstance(answer, CoreError):
                client.fenced()
            elif not deliver:
                client.all_new, client.heard = True, False
            elif not beat.leaves:
                client.hear(beat, answer)
        self.deciding.clear()
        self.check(written=True)

    def write_fails(self):
        """Nothing is written; whoever waits is told to try again."""
        names = self.group.unwritten()
        self.group.not_written(names)
        self.lose()

    def lose(self):
        """No answer arrives."""
        for client, _, _ in self.deciding:
            client.all_new, client.heard = True, False
        self.deciding.clear()

    def restart(self):
        """The server is killed: what was not written is gone."""
        self.lose()
        members = [decode_member(entry) for name, entry in self.store.items() if name != EPOCHS]
        epochs = decode_epochs(self.store[EPOCHS]) if EPOCHS in self.store else GroupEpochs()
        stored = StoredConsumerGroup(epochs=epochs, members=members)
        self.group = ConsumerGroup("g", config=self.config, stored=stored, now_ms=self.now_ms)
        assert not self.group.to_write
        self.check(written=True)

    def beat(self, client, **kw):
        """A heartbeat that is answered."""
        answer = self.decide(client, **kw)
        self.flush()
        if isinstance(answer, CoreError):
            raise answer
        return answer

    def leave(self, client, epoch=LEAVE):
        client.gone = True
        client.using = set()
        return self.beat(
            client, beat=Beat(member_id=client.member_id, member_epoch=epoch, instance_id=client.instance_id)
        )

    def pass_ms(self, ms):
        self.now_ms += ms
        gone = self.group.expire(self.now_ms)
        self.check()
        return gone

    def matching(self, pattern):
        """Of patterns there is one here: a beginning of names."""
        return {name for name in self.topics if name.startswith(pattern.removesuffix(".*"))}

    # --- what must hold -------------------------------------------------------------------------------------------

    def living(self):
        """Clients that the group knows, and what they may hold on to."""
        return [c for c in self.clients.values() if not c.gone and c.epoch > 0 and c.member_id in self.group.members]

    def check(self, *, written=False):
        group = self.group
        held = {}
        for member in group.members.values():
            for key in member.owned:
                assert held.setdefault(key, member.member_id) == member.member_id, "a partition is with two members"
            assert (member.state is MemberState.UNREVOKED) == bool(member.revoking)
            assert (member.revoke_due_ms is not None) == (member.state is MemberState.UNREVOKED)
            assert member.epoch <= group.assignment_epoch <= group.group_epoch
        assert held == group._owners
        users = {}
        for client in self.living():
            member = group.members[client.member_id]
            if client.epoch not in (member.epoch, member.previous_epoch):
                continue  # it is fenced at its next heartbeat
            for key in client.using:
                assert users.setdefault(key, client.member_id) == client.member_id, "two members use a partition"
            assert client.using <= set(member.owned), "a member uses what was taken away"
        if written:
            assert group.group_epoch >= self.epochs_told, "the group epoch fell"
            self.epochs_told = group.group_epoch

    def converge(self, rounds=24):
        """Nothing fails any more: when the dead have timed out, all have what they are to have."""
        living = [client for client in self.clients.values() if not client.gone]
        for _ in range(rounds):
            for client in living:
                client.slow = False
                self.decide(client)
                self.flush()
            self.pass_ms(5_000)
        self.check()
        assert self.group.state == ("Stable" if living else "Empty"), self.group.describe()
        read = {c.member_id: {*c.topics, *(self.matching(c.pattern) if c.pattern else ())} for c in living}
        for name, ident, count in self.topics.values():
            able = [c for c in living if name in read[c.member_id]]
            users = [c.member_id for number in range(count) for c in able if (ident, number) in c.using]
            assert len(users) == (count if able else 0), (name, users, able, self.group.describe())
        return living


__all__ = ["JOIN", "LEAVE", "LEAVE_FOR_NOW"]
