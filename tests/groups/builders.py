"""A classic group with the time and the answers it has given, and short ways to talk to it."""

from __future__ import annotations

import itertools
import struct
from uuid import UUID

from flowshare.groups.expiry import expired, group_expires
from flowshare.groups.group import ClassicGroup
from flowshare.groups.offsets import Committed, OffsetPartition, Offsets, TransactionalProducer
from flowshare.groups.stored import decode_group
from flowshare.groups.types import ClassicConfig, Join, Supported
from tests.groups.invariants import check

SESSION_MS = 10_000
REBALANCE_MS = 60_000
TOPIC_ID = UUID(int=7)


def subscription(*topics, version=1):
    """A consumer's metadata."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", version, len(topics)) + names + struct.pack(">i", -1) + struct.pack(">i", 0)


class World:
    """One group, its offsets and the time; `answers` has what waiting requests got, by ticket."""

    def __init__(self, **config):
        self.config = ClassicConfig(**config)
        self.group = ClassicGroup("g", config=self.config)
        self.offsets = Offsets()
        self.now_ms = 1_000_000
        self.answers = {}
        self.stored = None
        self._tickets = itertools.count()
        self._ids = itertools.count(1)

    # --- membership ---------------------------------------------------------------------------------------------

    def ask(self, member_id="", **fields):
        """A join; its ticket. Raises what the group raises."""
        return self.join(self.request(member_id, **fields))

    def request(self, member_id="", *, instance=None, protocols=("range",), topics=("t",), kind="consumer", **fields):
        """Return the request of a client that joins."""
        protocols = [one if isinstance(one, Supported) else Supported(one, subscription(*topics)) for one in protocols]
        return Join(
            **{
                "member_id": member_id,
                "instance_id": instance,
                "client_id": "c",
                "client_host": "h",
                "protocol_type": kind,
                "protocols": tuple(protocols),
                "session_timeout_ms": SESSION_MS,
                "rebalance_timeout_ms": REBALANCE_MS,
                "known_id_required": False,
                **fields,
            }
        )

    def join(self, request):
        """The ticket of this join. Raises what the group raises."""
        ticket = next(self._tickets)
        self.settle(self.group.join(request, ticket=ticket, new_id=str(next(self._ids)), now_ms=self.now_ms))
        return ticket

    def sync_ask(self, member_id, generation=None, *, instance=None, assignments=None, **fields):
        """A sync; its ticket. Raises what the group raises."""
        ticket = next(self._tickets)
        step = self.group.sync(
            member_id=member_id,
            instance_id=instance,
            generation=self.group.generation if generation is None else generation,
            assignments=assignments or {},
            ticket=ticket,
            now_ms=self.now_ms,
            **fields,
        )
        self.settle(step)
        return ticket

    def settle(self, step, *, durable=True):
        """Do what a step leads to, writes at once."""
        if step.write is not None and durable:
            self.stored = step.write
        self.answers.update(step.answers)
        if step.assign is not None:
            done = self.group.assigned if durable else self.group.not_assigned
            self.settle(done(step.assign, self.now_ms))
        check(self.group)

    def members(self, *instances, **fields):
        """A Stable group of members with these group.instance.ids (None: dynamic ones), one a generation; their ids."""
        joined = {}
        for instance in instances:
            newcomer = self.ask(instance=instance, **fields)
            for member_id, known in joined.items():
                self.ask(member_id, instance=known, **fields)
            joined[self.answers[newcomer].member_id] = instance
        return self.synced(*joined)

    def dynamic(self, count=1, **fields):
        """A Stable group of so many members without group.instance.id; their ids."""
        return self.members(*[None] * count, **fields)

    def synced(self, *ids):
        """All of a generation's members ask for their assignments."""
        leader = self.group.leader
        for member_id in (leader, *(one for one in ids if one != leader)):
            self.sync_ask(member_id, instance=self.instance_of(member_id), assignments=dict.fromkeys(ids, b"a"))
        return ids

    def instance_of(self, member_id):
        """The group.instance.id of a member."""
        return next(one.instance_id for one in self.group.describe().members if one.member_id == member_id)

    def beat(self, member_id, generation=None, instance=None):
        self.group.heartbeat(
            member_id=member_id,
            instance_id=instance,
            generation=self.group.generation if generation is None else generation,
            now_ms=self.now_ms,
        )

    def leave(self, member_id="", instance=None):
        self.settle(self.group.leave(member_id=member_id, instance_id=instance, now_ms=self.now_ms))

    def wait(self, duration_ms, *alive):
        """Time passes; what falls due on the way happens; `alive` send heartbeats."""
        end_ms = self.now_ms + duration_ms
        while True:
            due_ms = self.group.next_deadline_ms()
            if due_ms is None or due_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, due_ms - 1)
            for member_id in alive:
                self.beat(member_id)
            if self.group.next_deadline_ms() == due_ms:
                self.now_ms = max(self.now_ms, due_ms)
                self.settle(self.group.expire(self.now_ms))
        self.now_ms = end_ms

    def restart(self):
        """Load the group from the store, as another server would, at once."""
        state = None if self.stored is None else decode_group(self.stored)
        self.group = ClassicGroup("g", config=self.config, state=state, now_ms=self.now_ms)

    # --- offsets ------------------------------------------------------------------------------------------------

    def commit(self, topic="t", number=0, offset=5, *, retention_ms=None, producer=None, topic_id=TOPIC_ID):
        value = Committed(
            offset=offset,
            commit_ms=self.now_ms,
            expire_ms=None if retention_ms is None else self.now_ms + retention_ms,
            topic_id=topic_id,
            order=self.offsets.next_order(),
        )
        self.offsets.apply(self.offsets.commit({OffsetPartition(topic, number): value}, producer))

    def complete(self, producer_id, *, committed, epoch=0):
        self.offsets.apply(self.offsets.complete(TransactionalProducer(producer_id, epoch), committed=committed))

    def sweep(self):
        """One sweep as the server does it; what went, and whether the group went too."""
        retention_ms = self.config.offsets_retention_ms
        looked_at = tuple(self.offsets.committed)
        gone = expired(self.group, self.offsets, looked_at, now_ms=self.now_ms, retention_ms=retention_ms)
        self.offsets.apply(self.offsets.expire(gone))
        return {(one.topic, one.number) for one in gone}, group_expires(self.group, self.offsets)
