"""Steps of members: fetches, acknowledgements and the end of a share session, with the epochs that a member counts."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    Connection,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupHeartbeatRequest,
    SharePartitionRequest,
    TopicPartition,
)
from flowshare.share.types import AckRange, AcquireMode
from tests.scenarios import records, words
from tests.scenarios.language import Outcome, Step
from tests.scenarios.words import Place
from tests.scenarios.world import World


@dataclass(slots=True)
class Session:
    """One member as its peer would be: a connection, the next session epoch, the partitions it asked for."""

    connection: Connection
    epoch: int = 0
    asked: set[Place] = field(default_factory=set)


class MemberSteps:
    """The part of the server subject that knows members; what else it needs of the subject is declared here."""

    world: World
    topics: dict[str, int]
    sessions: dict[tuple[str, str], Session]
    founded: set[str]

    async def ask(self, request: Any) -> Any:
        """Send a request that belongs to no member."""
        raise NotImplementedError

    async def ensure(self) -> None:
        """Make the usual topic if there is none."""
        raise NotImplementedError

    async def ensure_group(self, group: str) -> None:
        """Groups of scenarios start at the log's beginning unless they say otherwise."""
        raise NotImplementedError

    def topic_id(self, topic: str) -> uuid.UUID:
        """A topic's id."""
        raise NotImplementedError

    def place(self, topic_id: uuid.UUID, partition: int) -> Place:
        """A topic's partition by name."""
        raise NotImplementedError

    def places(self) -> list[Place]:
        """All partitions of all topics."""
        raise NotImplementedError

    def alone(self, places: list[Place]) -> bool:
        """True if only one share-partition is in play."""
        raise NotImplementedError

    def lasting(self, delay_ms: int) -> int:
        """How long a delay of so many milliseconds is here."""
        return delay_ms

    async def session(self, member: str) -> Session:
        """The member's side of its share session; a connection is made when there is none."""
        key = words.member(member)
        if key not in self.sessions:
            self.sessions[key] = Session(await self.world.connect(key[1]))
        return self.sessions[key]

    async def ready(self, step: Step) -> Session:
        """The session of a member that fetches or acknowledges without having joined: its group must exist."""
        await self.ensure()
        await self.found(words.member(step.words[0])[0])
        return await self.session(step.words[0])

    async def found(self, group: str) -> None:
        """Let somebody join the group and leave it again, so that it exists."""
        await self.ensure_group(group)
        if group not in self.founded:
            self.founded.add(group)
            for epoch in (0, -1):
                await self.ask(
                    ShareGroupHeartbeatRequest(
                        group_id=group, member_id="founder", member_epoch=epoch, subscribed_topics=tuple(self.topics)
                    )
                )

    async def do_fetch(self, step: Step) -> Outcome:
        """`fetch M1 max=10 mode=record_limit wait=500 epoch=3 add=1 forget=0 ack=0-9:accept;10-19:release …`.

        `heads=2 chain=3`: in a group with an order begin so many keys at most, each with so many of its records.
        """
        session = await self.ready(step)
        acked = words.acks(step.options.get("ack", "").split(";") if "ack" in step.options else ())
        request = self.fetch_request(step, session, acked)
        sent_s = self.world.clock.monotonic()
        answer = await self.sent(session, request)
        waited_ms = round((self.world.clock.monotonic() - sent_s) * 1000)
        outcome = self.show_fetch(answer, {ack.place for ack in acked}, waited_ms)
        if not any("records" in dict(expected.fields) for expected in step.expected):
            return outcome
        came = [offset for part in answer.partitions for offset in records.offsets_of_records(part.records)]
        return Outcome(outcome.main, {**outcome.fields, "records": words.show_offsets(came)})

    def fetch_request(self, step: Step, session: Session, acked: list[words.Ack]) -> ShareFetchRequest:
        """The request that a step describes."""
        options = step.options
        group, member = self.names(step)
        epoch = int(options.get("epoch", session.epoch))
        renewing = any(4 in ack.types for ack in acked)
        forgotten = [words.place(text) for text in options.get("forget", "").split(",") if text]
        return ShareFetchRequest(
            group_id=group,
            member_id=member,
            session_epoch=epoch,
            max_wait_ms=int(options.get("wait", "0")),
            min_bytes=int(options.get("min", "1")),
            max_bytes=int(options.get("bytes", 0x7FFFFFFF)),
            max_records=int(options.get("max", "500")),
            batch_size=int(options.get("batch", options.get("max", "500"))),
            acquire_mode=AcquireMode[options.get("mode", "batch_optimized").upper()],
            is_renew_ack=options.get("renew", str(renewing).lower()) == "true",
            partitions=self.entries(self.added(step, session, epoch), acked, twice="twice" in options),
            forgotten=tuple(TopicPartition(self.topic_id(topic), p) for topic, p in forgotten),
            version=int(options.get("version", "2")),
            heads=int(options.get("heads", "0")),
            chain=int(options.get("chain", "1")),
        )

    def names(self, step: Step) -> tuple[str | None, str | None]:
        """Group and member id of a request; options make them wrong on purpose."""
        group, member = words.member(step.words[0])
        return (
            None if step.options.get("group_id") == "null" else group,
            step.options.get("member_id", member),
        )

    def added(self, step: Step, session: Session, epoch: int) -> list[Place]:
        """Partitions to add to the session: those the step names, else all that the session does not know yet."""
        if epoch == 0:
            session.asked.clear()
        if "add" in step.options:
            places = [words.place(text) for text in step.options["add"].split(",")]
        elif "epoch" in step.options and epoch != 0:
            places = []
        else:
            places = [place for place in self.places() if place not in session.asked]
        session.asked.update(places)
        return places

    def entries(
        self, added: list[Place], acked: list[words.Ack], *, twice: bool = False
    ) -> tuple[SharePartitionRequest, ...]:
        """Partitions of a request with their acknowledgements."""
        by_place: dict[Place, list[AckRange]] = {place: [] for place in added}
        apart = [SharePartitionRequest(self.topic_id(topic), p) for topic, p in added] if twice else []
        for ack in acked:
            batch = AckRange(ack.first, ack.last, ack.types, self.lasting(ack.delay_ms), ack.unrun)
            by_place.setdefault(ack.place, []).append(batch)
        named = [
            SharePartitionRequest(self.topic_id(topic), p, tuple(batches))
            for (topic, p), batches in by_place.items()
            if batches or not twice
        ]
        return (*apart, *named)

    async def sent(self, session: Session, request: ShareFetchRequest | ShareAcknowledgeRequest) -> Any:
        """Send over the member's connection and follow the session's epoch as the member would."""
        epoch, before = request.session_epoch, session.epoch
        session.epoch = 0 if epoch == -1 else epoch + 1
        answer = await session.connection.send(request)
        if answer.error is not ErrorCode.NONE:
            session.epoch = before
        return answer

    def show_fetch(self, answer: ShareFetchResponse, acked: set[Place], waited_ms: int) -> Outcome:
        """A fetch's answer in words."""
        fields = {"lock": str(answer.lock_timeout_ms), "waited": str(waited_ms)}
        if answer.error is not ErrorCode.NONE:
            return Outcome(f"error {answer.error.name}", fields)
        found: dict[Place, str] = {}
        carried: list[int] = []
        listed = sorted(self.place(part.topic_id, part.partition) for part in answer.partitions)
        for part in sorted(answer.partitions, key=lambda part: self.place(part.topic_id, part.partition)):
            where = self.place(part.topic_id, part.partition)
            said = [f"ack {part.ack_error.name}"] if where in acked else []
            said += [f"error {part.error.name}"] if part.error is not ErrorCode.NONE else []
            said += [words.show_ranges(part.acquired)] if part.acquired else []
            carried += records.offsets_in(part.records)
            if said:
                found[where] = " ".join(said)
        fields |= {"listed": words.show_places(listed), "bytes": words.show_offsets(carried)}
        return Outcome(words.show_by_place(found, alone=self.alone(listed), empty="nothing"), fields)

    async def do_ack(self, step: Step) -> Outcome:
        """`ack M1 0-4:accept 5-9:release [epoch=2] [renew=false] [version=1]`."""
        session = await self.ready(step)
        if "epoch" not in step.options and session.epoch == 0:
            await self.open(step, session)
        return await self.acknowledge(step, session, int(step.options.get("epoch", session.epoch)))

    async def open(self, step: Step, session: Session) -> None:
        """Open a session that fetches nothing."""
        group, member = words.member(step.words[0])
        request = ShareFetchRequest(
            group_id=group,
            member_id=member,
            session_epoch=0,
            max_records=0,
            max_wait_ms=0,
            partitions=self.entries(self.added(step, session, 0), []),
        )
        answer = await self.sent(session, request)
        assert answer.error is ErrorCode.NONE, answer

    async def acknowledge(self, step: Step, session: Session, epoch: int) -> Outcome:
        """Send a ShareAcknowledge; its answer in words."""
        acked = words.acks(step.words[1:])
        group, member = self.names(step)
        renewing = any(4 in ack.types for ack in acked)
        answer: ShareAcknowledgeResponse = await self.sent(
            session,
            ShareAcknowledgeRequest(
                group_id=group,
                member_id=member,
                session_epoch=epoch,
                is_renew_ack=step.options.get("renew", str(renewing).lower()) == "true",
                partitions=self.entries([], acked),
                version=int(step.options.get("version", "2")),
            ),
        )
        if answer.error is not ErrorCode.NONE:
            return Outcome(f"error {answer.error.name}")
        found = {self.place(part.topic_id, part.partition): part.error.name for part in answer.partitions}
        shown = dict(sorted(found.items()))
        return Outcome(words.show_by_place(shown, alone=self.alone(list(shown)), empty="nothing"))

    async def do_close(self, step: Step) -> Outcome:
        """`close M1 [0-9:accept] [via=fetch]`: close the share session, with last acknowledgements."""
        session = await self.session(step.words[0])
        if step.options.get("via") != "fetch":
            return await self.acknowledge(step, session, -1)
        acked = words.acks(step.words[1:])
        group, member = words.member(step.words[0])
        request = ShareFetchRequest(
            group_id=group, member_id=member, session_epoch=-1, partitions=self.entries([], acked)
        )
        return self.show_fetch(await self.sent(session, request), {ack.place for ack in acked}, 0)

    async def do_disconnect(self, step: Step) -> Outcome:
        """`disconnect M1`: the connection is closed, without a word."""
        await self.sessions.pop(words.member(step.words[0])).connection.close()
        return Outcome()
