"""`Node`: one broker as one member sees it: its share session, and the requests that wait for it. No I/O: `core` sends.

At Kafka's brokers a session has one request after the other (`serial`): its epoch counts fetches and acknowledgements
together, and a broker fails a parked fetch whose epoch is no longer the last one. There acknowledgements are sent with
the next fetch; without one within `acknowledge_linger` they are sent alone. Renewals cannot be sent with a fetch that
wants records (KIP-1222) and go first. Flowshare's own servers take acknowledgements at once, beside a parked fetch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from flowshare.backoff import Backoff
from flowshare.client.errors import SESSION_GONE, ServerError
from flowshare.client.session.calls import Ack
from flowshare.client.session.commands import DEBUG, WARNING, Arrived, Note, Refresh, SendRequest
from flowshare.client.session.ranges import Fetched, number_of
from flowshare.protocol.compact import I64_MAX
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    AcknowledgedPartition,
    FetchedPartition,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    SharePartitionRequest,
    ShareSettleRequest,
    TopicPartition,
)
from flowshare.protocol.messages.share import SETTLE_WAIT_MS
from flowshare.share.session import EPOCH_CLOSE, EPOCH_OPEN, next_epoch
from flowshare.share.types import AcknowledgeType, AckRange, AcquireMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from flowshare.client.session.core import SessionCore
    from flowshare.protocol.messages import HeldRanges, ShareSettleResponse

REFUSED: Final = frozenset(
    {
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""Errors of a fetch that a retry does not cure."""
LEFT: Final = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.LEADER_NOT_AVAILABLE}
)
"""Errors of a node that did nothing, and does not lead the partition (any more)."""
MOVED: Final = LEFT | {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.OFFSET_NOT_AVAILABLE}
"""Errors after which the partition's leader is looked up."""
UNKNOWN: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_SERVER_ERROR}
)
"""Errors that hint at an assignment which is out of date."""
RELEASE: Final = bytes((AcknowledgeType.RELEASE,))

NEVER: Final = float("inf")
PAUSE_LEAST_S: Final = 0.05
TELL_AGAIN_S: Final = 60.0
LEFT_OUT: Final = "the server's answer leaves this partition out"
NO_SESSION: Final = "no session could be opened"
ALL: Final = ((0, I64_MAX),)
"""Ranges that have every offset."""
RESUME_S: Final = 6.0
"""The longest time, in seconds, that a server may take to report the member's records, and that an acknowledgement
waits for the next process to lead where there is one server."""
BUSY_WAITS: Final = Backoff(0.01, 0.08)
"""The times that a fetch is parked while records are held whose acknowledgements would wait for it."""
ANSWERED_S: Final = 1.0
"""The time, in seconds, in which a fetch is answered beyond its own wait. A server that reports when its locks began
needs no such guess. Another answer that is read later was there while this process stood still: its locks began about
here."""
TRICKLE_MAX: Final = 8
"""The most records a fetch that count as a trickle; with more, a second fetch would only cost, and bring half of
them."""


class Plan(NamedTuple):
    """The parameters of one fetch."""

    records_max: int
    batch_size: int
    max_wait_s: float
    bytes_max: int
    mode: AcquireMode
    beside: bool = False
    """True if a server may be asked for a part while it has a fetch parked (`Node.fetches_max`)."""
    heads: int = 0
    """In a group with an order, the most of the records that may begin a key; 0: all."""
    chain: int = 1
    """The most records of one key in a row."""

    def part(self, records_max: int) -> Plan:
        """Return the plan of one of several fetches, for at most `records_max` records."""
        if records_max == self.records_max:
            return self
        heads = max(1, self.heads * records_max // self.records_max) if self.heads else 0
        return self._replace(records_max=records_max, heads=heads)


NOTHING: Final = Plan(0, 1, 0.0, 0, AcquireMode.BATCH_OPTIMIZED)
"""A fetch that asks for no records: it opens a session, or has a server answer a parked fetch."""


class SessionEpoch:
    """The member's half of a share session (KIP-932): the epoch, and the partitions that the server knows of.

    ShareFetch and ShareAcknowledge share one counter. It is advanced when a request is made, not when it is answered:
    requests reach the server in the order they are made. `number` tells one session from the next.
    """

    __slots__ = ("epoch", "number", "partitions")

    def __init__(self) -> None:
        self.epoch = EPOCH_OPEN
        self.number = 0
        self.partitions: frozenset[TopicPartition] = frozenset()

    @property
    def open(self) -> bool:
        """True if a session was opened and its end is not known."""
        return self.epoch != EPOCH_OPEN

    def next_epoch(self) -> int:
        """Return the epoch for a request that is sent now."""
        epoch = self.epoch
        self.epoch = next_epoch(epoch)
        return epoch

    def change_to(
        self, wanted: AbstractSet[TopicPartition]
    ) -> tuple[tuple[TopicPartition, ...], tuple[TopicPartition, ...]]:
        """Return the partitions to add and to forget with the next fetch, so that the server knows exactly `wanted`."""
        if self.partitions == wanted:
            return (), ()
        added = tuple(sorted(wanted - self.partitions))
        forgotten = tuple(sorted(self.partitions - wanted))
        self.partitions = frozenset(wanted)
        return added, forgotten

    def reset(self, number: int | None = None) -> None:
        """Start over with epoch 0. With `number`, only if that session is still the current one."""
        if number is None or number == self.number:
            self.epoch = EPOCH_OPEN
            self.number += 1
            self.partitions = frozenset()


Kind = Literal["fetch", "open", "acknowledge", "settle", "resume", "close"]


class Sent(NamedTuple):
    """A request under way. session: the number of its session. due_s: the time when its answer is overdue (None: the
    connection watches this itself). partitions: the partitions that a fetch may bring records of."""

    kind: Kind
    session: int
    sent_s: float
    due_s: float | None
    plan: Plan = NOTHING
    acks: Sequence[Ack] = ()
    told: tuple[HeldRanges, ...] = ()
    partitions: frozenset[TopicPartition] = frozenset()
    number: int = 0


@dataclass(slots=True, eq=False)
class Node:
    """One broker. wanted: the member's partitions that are fetched there."""

    node_id: int
    owner: SessionCore
    acknowledge_linger: float
    connected: bool = False
    keeps_time: bool = False
    """True if the connection ends by itself when an answer is overdue."""
    serial: bool = False
    """True if the node takes one request of a session at a time."""
    session: SessionEpoch = field(default_factory=SessionEpoch)
    wanted: frozenset[TopicPartition] = frozenset()
    under_way: dict[int, Sent] = field(default_factory=dict[int, Sent])
    heard_s: float = 0.0
    """The time of the node's last answer."""
    asked_s: float = 0.0
    """The time of the last request while none was under way, or of the last order to fetch."""
    lock_timeout_ms: int = 0
    # a fetch: asked for (`plan`), waiting for the connection until `give_up_s`, under way, or resting after trouble
    plan: Plan | None = None
    trickles: bool = False
    """True if the last fetch got a few records, and these were all."""
    give_up_s: float | None = None
    rest_until_s: float | None = None
    strikes: int = 0
    trouble: str | None = None
    tell_quota_s: float = 0.0
    # acknowledgements that were not sent yet
    pile: list[Ack] = field(default_factory=list[Ack])
    ride_due_s: float | None = None
    # how long a fetch may be parked while records are in hand
    locked_until_s: float = 0.0
    quiet: int = 0
    # telling a new leader what is held
    resume_again_s: float | None = None
    resume_strikes: int = 0
    resumed: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    """By partition, the request that told this node over this connection what is held. Records of fetches sent before
    were not named in it, and so were given back, should the answer come later."""
    closing: Mapping[TopicPartition, Sequence[tuple[int, int]]] | None = None
    """The records to give back to the node when the session closes; None: no session is being closed."""

    @property
    def needed(self) -> bool:
        """True if there is anything to fetch, or partitions that the server must be told to stop fetching."""
        return bool(self.wanted or self.session.partitions)

    @property
    def may_bring(self) -> frozenset[TopicPartition]:
        """The partitions of which fetches may still bring records."""
        return self.session.partitions.union(*(sent.partitions for sent in self.under_way.values()))

    @property
    def busy(self) -> bool:
        """True if a fetch is requested, under way, or resting."""
        return self.plan is not None or self.rest_until_s is not None or self.sends("fetch") > 0

    def sends(self, kind: Kind) -> int:
        """Return the number of requests of this kind under way."""
        number = 0
        for sent in self.under_way.values():
            if sent.kind == kind:
                number += 1
        return number

    def fetches_max(self, plan: Plan, records_max: int) -> int:
        """Return the number of fetches that may be under way at the node, which together ask for `records_max`.

        Two if records trickle in and a fleet leads: new records need not wait while the first fetch's acquire is
        written to Kafka and its answer is on the way. A server by itself writes so quickly that a second fetch only
        costs; a broker takes one at a time.
        """
        return 2 if plan.beside and self.trickles and records_max > 1 and self.owner.fleet and self.connected else 1

    def silent(self, now_s: float, limit_s: float) -> bool:
        """Tell if answers are overdue by `limit_s` and nothing at all was heard meanwhile.

        A settle may take long, because its leader waits for a transaction: any other answer from the worker shows that
        it lives. If nothing else is under way, the settle's leader is looked up, and the worker is dropped only if it
        leads nothing any more.
        """
        if not self.connected or all(sent.kind == "resume" for sent in self.under_way.values()):
            return False  # a leader that takes over may need its time (RESUME_S)
        limit_s += 2 * max((sent.plan.max_wait_s for sent in self.under_way.values()), default=0.0)
        return now_s - max(self.asked_s, self.heard_s) > limit_s

    def take(self, *, renewal: bool) -> list[Ack]:
        """Take waiting acknowledgements for one request: of one kind, and no two for one partition, as a partition is
        refused as a whole."""
        if len(self.pile) == 1 and self.pile[0].call.renewal is renewal:
            taken, self.pile, self.ride_due_s = self.pile, [], None
            return taken
        taken, left = list[Ack](), list[Ack]()
        partitions: set[TopicPartition] = set()
        for ack in self.pile:
            fits = ack.call.renewal is renewal and ack.tp not in partitions
            (taken if fits else left).append(ack)
            partitions.add(ack.tp)
        self.pile = left
        if not left:
            self.ride_due_s = None
        return taken

    def wait_s(self, asked_s: float, now_s: float, *, with_acks: bool) -> float:
        """Return the time that the next fetch may be parked: short while an acknowledgement may come or goes with
        it."""
        if not self.serial or asked_s <= 0:
            return asked_s
        if not with_acks and (now_s >= self.locked_until_s or not self.owner.custody.holding.any_of(self.wanted)):
            return asked_s
        wait_s = BUSY_WAITS.after(self.quiet + 1)
        self.quiet = 0 if with_acks else self.quiet + 1
        return min(asked_s, wait_s)

    # --- one node's turn ----------------------------------------------------------------------------------------

    def pump(self, now_s: float) -> None:
        """Send the requests that the node can take now."""
        if not self.connected or (self.serial and self.under_way):
            return
        if self.closing is not None:
            self._close(now_s)
            return
        fetches = self.plan is not None
        if fetches and not self.needed:  # what was to be fetched there went elsewhere meanwhile
            self.fetch_ended()
            fetches = False
        if self.serial:
            self._pump_serial(now_s, fetches=fetches)
            return
        if fetches and not self.session.open:
            self._fetch((), now_s)
            fetches = False
        while self.pile:  # first, so that the fetch finds what they free
            if not self.session.open:
                self._open(now_s)  # what follows reaches the server behind it
            self._send_acks(self.take(renewal=True) or self.take(renewal=False), now_s)
        if fetches:
            self._fetch((), now_s)

    def _pump_serial(self, now_s: float, *, fetches: bool) -> None:
        renews = bool(self.pile) and any(ack.call.renewal for ack in self.pile)
        waits = bool(self.pile) and not renews and not fetches
        if waits and self.ride_due_s is None and self.acknowledge_linger:
            self.ride_due_s = now_s + self.acknowledge_linger
        if waits and self.ride_due_s is not None and now_s < self.ride_due_s:
            return
        if self.pile and not self.session.open:
            self._open(now_s)
        elif renews or waits:
            self._send_acks(self.take(renewal=True) or self.take(renewal=False), now_s)
        elif fetches:
            self._fetch(self.take(renewal=False), now_s)

    def due_s(self) -> float:
        """Return the time at which `tick` has something to do next; ask for it after each event."""
        due_s = NEVER
        for at_s in (self.give_up_s, self.rest_until_s, self.ride_due_s, self.resume_again_s):
            if at_s is not None and at_s < due_s:
                due_s = at_s
        for sent in self.under_way.values():
            if sent.due_s is not None and sent.due_s < due_s:
                due_s = sent.due_s
        return due_s

    def tick(self, now_s: float) -> None:
        if self.give_up_s is not None and now_s >= self.give_up_s:
            self.fetch_ended()
        if self.rest_until_s is not None and now_s >= self.rest_until_s:
            self.fetch_ended()
        if self.resume_again_s is not None and now_s >= self.resume_again_s:
            self.resume_again_s = None
            self.owner.resume(self, now_s)
        for sent in list(self.under_way.values()):
            if sent.due_s is not None and now_s >= sent.due_s:
                what = "does not say what is held" if sent.kind == "resume" else f"did not answer: {sent.kind}"
                self.owner.drop(
                    self, f"no answer within {sent.due_s - sent.sent_s:g} s: node {self.node_id} {what}", now_s
                )
                return
        if self.ride_due_s is not None and now_s >= self.ride_due_s:
            self.pump(now_s)
            self.ride_due_s = None  # who has the turn sees to the pile at its end

    def send(self, kind: Kind, request: Any, now_s: float, **fields: Any) -> None:
        ordered = kind == "settle" and request.ordered
        wait_s = (request.max_wait_ms if kind == "fetch" else SETTLE_WAIT_MS if ordered else 0) / 1000
        due_s = None if self.keeps_time else now_s + self.owner.settings.request_timeout + wait_s
        if kind == "resume":
            due_s = now_s + RESUME_S
        if not self.under_way:
            self.asked_s = now_s
        number = self.owner.next_number()
        self.under_way[number] = Sent(kind, self.session.number, now_s, due_s, number=number, **fields)
        self.owner.say(SendRequest(self.node_id, number, request))

    def _fetch(self, riding: Sequence[Ack], now_s: float) -> None:
        plan, self.plan, self.asked_s = self.plan, None, now_s
        assert plan is not None
        self._send_fetch("fetch", plan, riding, now_s)

    def _open(self, now_s: float) -> None:
        """Open the session without fetching, so that held records can be acknowledged."""
        self._send_fetch("open", NOTHING, (), now_s)

    def _send_fetch(self, kind: Kind, plan: Plan, riding: Sequence[Ack], now_s: float) -> None:
        """Send the fetch that brings the server's view of the session to `wanted`."""
        session, idle = self.session, not self.wanted
        added, forgotten = session.change_to(self.wanted)
        wait_s = 0.0 if idle else self.wait_s(plan.max_wait_s, now_s, with_acks=bool(riding))
        request = ShareFetchRequest(
            group_id=self.owner.group_id,
            member_id=self.owner.member_id,
            session_epoch=session.next_epoch(),
            max_wait_ms=round(wait_s * 1000),
            max_bytes=plan.bytes_max,
            max_records=0 if idle else plan.records_max,
            batch_size=plan.batch_size,
            acquire_mode=int(plan.mode),
            partitions=partition_requests(added, riding),
            forgotten=forgotten,
            heads=plan.heads,
            chain=plan.chain,
        )
        self.send(kind, request, now_s, plan=plan, acks=riding, partitions=session.partitions)

    def nudge(self, now_s: float) -> None:
        """Have the server answer a fetch that it has parked. Kafka's brokers cannot: their fetch ends by itself."""
        if self.connected and not self.serial and self.session.open:
            self._open(now_s)

    def _send_acks(self, acks: Sequence[Ack], now_s: float) -> None:
        for ack in acks:
            ack.tries += 1
        request = ShareAcknowledgeRequest(
            group_id=self.owner.group_id,
            member_id=self.owner.member_id,
            session_epoch=self.session.next_epoch(),
            is_renew_ack=acks[0].call.renewal,
            partitions=acknowledging(acks),
        )
        self.send("acknowledge", request, now_s, acks=acks)

    def settle(self, ack: Ack, now_s: float) -> None:
        """Send a settle at once: it belongs to no session, and goes beside all requests under way."""
        ack.tries += 1
        request = ShareSettleRequest(
            group_id=self.owner.group_id,
            member_id=self.owner.member_id,
            topic_id=ack.tp.topic_id,
            partition=ack.tp.partition,
            acks=ack.batches,
            outputs=ack.outputs or (),
            ordered=ack.ordered,
        )
        self.send("settle", request, now_s, acks=(ack,))

    def _close(self, now_s: float) -> None:
        """Give back records that never ran, without costing an attempt, and end the session, which releases the
        others."""
        unrun = self.closing or {}
        if self.sends("close"):
            return
        if not self.session.open:
            if not unrun:
                self.closing = None
                return
            self._open(now_s)  # it came home only now
            if self.serial:
                return
        back = [(tp, tuple(AckRange(*run, RELEASE, unrun=True) for run in sorted(unrun[tp]))) for tp in unrun]
        request = ShareAcknowledgeRequest(
            group_id=self.owner.group_id,
            member_id=self.owner.member_id,
            session_epoch=EPOCH_CLOSE,
            partitions=tuple(SharePartitionRequest(*tp, acks) for tp, acks in back),
        )
        self.send("close", request, now_s)
        self.session.reset()

    # --- fetches' answers ---------------------------------------------------------------------------------------

    def fetch_answered(self, sent: Sent, answer: ShareFetchResponse, now_s: float) -> None:
        if sent.acks:
            self.outcomes(sent, answer, now_s)  # the server decided them before it looked for records
        fetched = self._taken(sent, answer, now_s)
        if answer.error is not ErrorCode.NONE:
            self._fetch_refused(answer, sent.session)
        if sent.kind == "open":
            if fetched:
                self.owner.say(Arrived(fetched))
            if answer.error is not ErrorCode.NONE and self.serial:
                pile, self.pile, self.ride_due_s = self.pile, [], None
                for ack in pile:
                    self.owner.calls.told(ack, ErrorCode.SHARE_SESSION_NOT_FOUND, NO_SESSION)
                if not self.session.open:
                    self.closing = None
            return
        self.trickles = 0 < number_of(fetched) < min(sent.plan.records_max, TRICKLE_MAX + 1)
        if fetched or self.trouble is None:
            self.strikes = 0
            self.owner.say(Arrived(fetched))
        else:
            self.strikes += 1
            pause_s = min(self.owner.pause_s(self.strikes), max(sent.plan.max_wait_s, PAUSE_LEAST_S))
            self.rest_until_s = now_s + pause_s

    def fetch_ended(self) -> None:
        """End the fetch with no records."""
        self.plan = self.give_up_s = self.rest_until_s = None
        self.owner.say(Arrived([]))

    def _taken(self, sent: Sent, answer: ShareFetchResponse, now_s: float) -> list[Fetched]:
        """Take in a fetch's answer and return its records. Errors become `trouble`, a new leader, or the next call's
        refusal."""
        self.trouble = None
        if answer.error is not ErrorCode.NONE:
            return []
        if answer.throttle_ms > 0 and not answer.partitions:
            self._held_back(answer.throttle_ms, now_s)
            return []
        if answer.lock_timeout_ms > 0:
            self.lock_timeout_ms = answer.lock_timeout_ms
        lock_s = self.lock_timeout_ms / 1000
        # An answer that is read late, after a standstill, has locks that began long ago.
        deadline_s = min(now_s, sent.sent_s + max(sent.plan.max_wait_s, ANSWERED_S)) + lock_s
        fetched: list[Fetched] = []
        refused: list[FetchedPartition] = []
        for part in answer.partitions:
            tp = TopicPartition(part.topic_id, part.partition)
            if part.acquired and not (self.resumed and sent.number <= self.resumed.get(tp, 0)):
                generation = self.owner.custody.took(self.node_id, tp, part.acquired)
                if generation is not None:
                    name = self.owner.name_of(part.topic_id)
                    fence = None if part.fence is None else (part.fence[0], part.fence[1] - part.acquired[0].first)
                    after_ms = part.locked_after_ms
                    until_s = deadline_s if after_ms is None else min(now_s, sent.sent_s + after_ms / 1000) + lock_s
                    one = Fetched(name, *tp, part.records, part.acquired, until_s, generation, fence, part.following)
                    fetched.append(one)
            if part.error is not ErrorCode.NONE:
                refused.append(part)
        if fetched:
            self.locked_until_s = max(self.locked_until_s, deadline_s)
            self.quiet = 0
        for part in refused:
            self._partition_refused(part, answer, now_s)
        return fetched

    def _held_back(self, throttle_ms: int, now_s: float) -> None:
        """Report a fetch that a broker's quota held back: the broker answers without the records that it acquired
        meanwhile, and the member cannot give them back (seen on 4.3)."""
        self.trouble = (
            f"a quota of the brokers held back a fetch of group {self.owner.group_id} for {throttle_ms / 1000:g} s. "
            "What was acquired for it comes again when its lock is over, and each time counts as a delivery: raise "
            "consumer_byte_rate (or request_percentage) of this user or client id"
        )
        if now_s >= self.tell_quota_s:
            self.tell_quota_s = now_s + TELL_AGAIN_S
            self.owner.say(Note(WARNING, self.trouble))

    def _fetch_refused(self, answer: ShareFetchResponse, number: int) -> None:
        error = ServerError(answer.error, answer.message, about=f"fetch of group {self.owner.group_id}")
        self.trouble = str(error)
        if answer.error in SESSION_GONE:
            self.session.reset(number)
        elif answer.error in REFUSED:
            self.owner.refusal = error
        elif answer.error in UNKNOWN:  # brokers say so of the whole fetch when one topic is gone or not initialised yet
            self.owner.say(Refresh())
        self.owner.say(Note(WARNING if self.strikes == 0 else DEBUG, str(error)))

    def _partition_refused(self, part: FetchedPartition, answer: ShareFetchResponse, now_s: float) -> None:
        where = f"fetch of {self.owner.name_of(part.topic_id)}-{part.partition} for group {self.owner.group_id}"
        error = ServerError(part.error, part.message, about=where)
        if self.strikes == 0:
            self.owner.say(Note(WARNING, str(error)))
        self.trouble = str(error)
        if part.error in REFUSED:
            self.owner.refusal = error
        elif part.error in UNKNOWN:
            self.owner.say(Refresh())
        if part.error in MOVED or part.error in UNKNOWN:
            at = TopicPartition(part.topic_id, part.partition)
            self.owner.moved(self, at, part.error, part.current_leader, answer.node_endpoints, now_s)

    def outcomes(self, sent: Sent, answer: ShareAcknowledgeResponse | ShareFetchResponse, now_s: float) -> None:
        if answer.error is not ErrorCode.NONE:
            for ack in sent.acks:
                self.owner.outcome(ack, answer.error, answer.message, 0.0, now_s)
            self._calls_go_on(sent)
            return
        if answer.lock_timeout_ms > 0:
            self.lock_timeout_ms = answer.lock_timeout_ms
        deadline_s = sent.sent_s + self.lock_timeout_ms / 1000
        answered = {(part.topic_id, part.partition): part for part in answer.partitions}
        for ack in sent.acks:
            part = answered.get(ack.tp)
            code, message, refused = _said_of(part)
            if code is ErrorCode.NONE:
                renewed = ack.call.renewal
                self.owner.custody.ended(ack.tp, ack.batches, ack.since, renewed=renewed, refused=refused)
                if renewed:
                    self.locked_until_s = max(self.locked_until_s, deadline_s)
            elif code is ErrorCode.INVALID_RECORD_STATE:
                self.owner.custody.ended(ack.tp, ack.batches, ack.since, renewed=False, refused=ALL)
            elif part is not None and code in MOVED:
                self.owner.moved(self, ack.tp, code, part.current_leader, answer.node_endpoints, now_s)
            self.owner.outcome(ack, code, message, deadline_s, now_s, refused)
        self._calls_go_on(sent)

    def settled(self, sent: Sent, answer: ShareSettleResponse, now_s: float) -> None:
        """Take in the outcome of a settle, all or nothing. After an error the member still holds all records but those
        that the leader says it does not hold."""
        (ack,), custody, code = sent.acks, self.owner.custody, answer.error
        if answer.lock_timeout_ms > 0:
            self.lock_timeout_ms = answer.lock_timeout_ms
        refused: tuple[tuple[int, int], ...] = ()
        if code is ErrorCode.NONE:
            custody.ended(ack.tp, ack.batches, ack.since, renewed=False)
        elif code is ErrorCode.INVALID_RECORD_STATE:
            refused = answer.refused or tuple((batch.first, batch.last) for batch in ack.batches)
            custody.not_held(ack.tp, ack.batches, ack.since, refused)
        elif code in MOVED:
            self.owner.moved(self, ack.tp, code, answer.current_leader, answer.node_endpoints, now_s)
        self.owner.settle_outcome(ack, answer, refused, now_s)
        self._calls_go_on(sent)

    def _calls_go_on(self, sent: Sent) -> None:
        for ack in sent.acks:
            self.owner.calls.go_on(ack.call)

    def close_answered(self, answer: ShareAcknowledgeResponse) -> None:
        unrun, self.closing = self.closing or {}, None
        told = {(part.topic_id, part.partition): (part.error, part.message) for part in answer.partitions}
        for tp in unrun:
            code, message = told.get(tp, (ErrorCode.INVALID_RECORD_STATE, LEFT_OUT))
            if answer.error is not ErrorCode.NONE:
                code, message = answer.error, answer.message
            if code is not ErrorCode.NONE:
                where = f"group={self.owner.group_id} topic={self.owner.name_of(tp.topic_id)} partition={tp.partition}"
                self.owner.say(Note(WARNING, f"unrun records of {where} cost an attempt: {code.name} {message or ''}"))


def _said_of(
    part: AcknowledgedPartition | FetchedPartition | None,
) -> tuple[ErrorCode, str | None, tuple[tuple[int, int], ...]]:
    """Return error, message and refused ranges of a partition's acknowledgements."""
    if part is None:
        return ErrorCode.INVALID_RECORD_STATE, LEFT_OUT, ()
    if isinstance(part, FetchedPartition):
        return part.ack_error, part.ack_message, part.ack_refused
    return part.error, part.message, part.refused


def partition_requests(added: Iterable[TopicPartition], riding: Sequence[Ack]) -> tuple[SharePartitionRequest, ...]:
    """Build a fetch's partition list: partitions added to the session, and those with acknowledgements."""
    if not added:
        return acknowledging(riding)
    batches = {ack.tp: ack.batches for ack in riding}
    named = dict.fromkeys((*added, *batches))
    return tuple(SharePartitionRequest(*tp, batches.get(tp, ())) for tp in named)


def acknowledging(acks: Sequence[Ack]) -> tuple[SharePartitionRequest, ...]:
    """Build a request's partition list from acknowledgements; each partition is named once."""
    return tuple([SharePartitionRequest(*ack.tp, ack.batches) for ack in acks])
