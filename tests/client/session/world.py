"""Members' session cores against the real cores of the server, in a world of requests that are late or lost.

Nothing here runs by itself: one queue of what happens next, virtual time, one seed. The nodes are built of
`share.session` and `share.partition`; a Kafka broker forgets who held what when it stops leading or loses a
connection, flowshare's servers keep it with the member.

In every other seed processes of members die as well, and what they had under way has no outcome. Another one with the
same id begins, hears of leaders and its assignment late and in any order, adopts a part of what the dead one worked on
(as much as that wrote down), and acknowledges it without a number.

In every third seed flowshare's members settle as well: some records, with an output for each that is accepted, which a
node may take seconds to write. What was not written when another one leads is never written.

Judged all the time:
- what arrives is held, and none of it is worked on already; what a member works on and holds is never handed back, nor
  what is written down for its next process where servers keep what members hold;
- an acknowledgement is applied to the delivery that it is about, once at most, and has one outcome, which is true;
- a settle is applied as a whole or not at all, and each output is written once where its record is accepted by it, else
  never;
- epochs are in order; a serial node has one request of a session under way;
In the end every record is accepted, and what members believe to hold is what the servers believe: what a dead process
did not write down went back before its lock was over.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from itertools import count, groupby

from flowshare.client.net.topology import NOBODY, Topology
from flowshare.client.session import core as c
from flowshare.client.session.custody import Generations
from flowshare.client.session.share_session import Plan
from flowshare.client.settings import LinkSettings
from flowshare.core_errors import CoreError, InvalidRecordState, InvalidShareSessionEpoch, ShareSessionNotFound
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.server.runtime.failures import failure
from flowshare.server.share.resume import merged, minus
from flowshare.share.partition import SharePartition
from flowshare.share.session import ShareSessions
from flowshare.share.types import AckRange, AcquireMode, Limits, LogBatch
from tests.sim.timeline import Timeline

TOPIC = uuid.UUID(int=7)
OUT = uuid.UUID(int=8)
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
NOT_LED = ErrorCode.NOT_LEADER_OR_FOLLOWER
LIMITS = Limits(lock_duration_ms=300_000, delivery_count_max=1_000)
KINDS = ("server", "brokers", "fleet")
PARTITIONS, STEPS, CALM_S, END_S = 3, 40, 40.0, 1_000.0


def runs(offsets):
    """Ascending offsets as (first, last)."""
    for _, group in groupby(enumerate(sorted(offsets)), key=lambda pair: pair[1] - pair[0]):
        found = [offset for _, offset in group]
        yield found[0], found[-1]


def offsets_of(ranges):
    return {offset for first, last in ranges for offset in range(first, last + 1)}


class Path:
    """One partition: its log's end, who leads it, the share-partition, and which delivery each offset is in."""

    def __init__(self, leader):
        self.leader, self.epoch, self.end = leader, 1, 0
        self.core = SharePartition(start_offset=0, limits=LIMITS)
        self.delivery = {}
        self.writing = []
        """Settles that take their time: by which share-partition, and until when."""

    def held_by(self, member_id):
        return {
            offset
            for one in self.core.in_flight()
            if one.member_id == member_id
            for offset in range(one.first, one.last + 1)
        }


class Line:
    """One connection: what was sent over it reaches the node in order, unless it breaks. `astray`: a session of it was
    forgotten, or a request skipped."""

    def __init__(self, member, node):
        self.member, self.node = member, node
        self.open, self.astray, self.real = True, False, self
        self.reaches_s = self.back_s = 0.0
        self.under_way = 0


class Node:
    """One server. `parked`: fetches that wait: (line, number, request, until)."""

    def __init__(self, world, node_id):
        self.world, self.node_id = world, node_id
        self.sessions, self.parked, self.up, self.gone = ShareSessions(), [], True, False

    def leads(self, partition):
        return self.up and self.world.paths[partition].leader == self.node_id

    def hint(self, partition):
        path = self.world.paths[partition]
        return (path.leader, path.epoch) if self.world.hints and path.leader > 0 else (-1, -1)

    def handle(self, line, number, request):
        answer = {
            m.ShareFetchRequest: self.fetch,
            m.ShareAcknowledgeRequest: self.acknowledge,
            m.ShareResumeRequest: self.resume,
            m.ShareSettleRequest: self.settle,
        }[type(request)](line, number, request)
        if answer is not None:
            self.world.answer(line, number, answer)

    def refuse(self, line, error, response):
        out_of_step = isinstance(error, InvalidShareSessionEpoch | ShareSessionNotFound)
        assert line.real.astray or not out_of_step, f"a session is out of step: {error}"
        code, message = failure(error)
        return response(error=code, message=message)

    def fetch(self, line, number, request):
        acks = [part for part in request.partitions if part.acks]
        added = [(part.topic_id, part.partition) for part in request.partitions]
        who = request.group_id, request.member_id
        try:
            turn = self.sessions.fetch(
                line.real, *who, request.session_epoch, added=added, forgotten=request.forgotten, has_acks=bool(acks)
            )
        except CoreError as error:
            return self.refuse(line, error, m.ShareFetchResponse)
        beside = 1 if request.max_records and request.session_epoch else 0
        mine = [one for one in self.parked if one[0].member is line.member]
        again = mine[: len(mine) - beside]
        self.parked = [one for one in self.parked if one not in again]
        for parked in again:
            self.world.answer(parked[0], parked[1], self.found(parked[2], (), {}))
        told = {part.partition: self.decide(line.member, part, renew=request.is_renew_ack) for part in acks}
        partitions = [partition for _, partition in turn.partitions]
        answer = self.found(request, partitions, told)
        if answer.partitions or not request.max_records or not request.max_wait_ms:
            return answer
        until_s = self.world.now_s + request.max_wait_ms / 1000
        self.parked.append((line, number, request, until_s))
        self.world.at(until_s, self.look)
        return None

    def found(self, request, partitions, told):
        """Return the answer to a fetch: the acquired records and the results of its acknowledgements."""
        parts = []
        left = request.max_records
        for partition in dict.fromkeys((*partitions, *told)):
            ack = told.get(partition, ErrorCode.NONE)
            error, acquired, data = ErrorCode.NONE, (), b""
            if partition in partitions and request.max_records:
                if not self.leads(partition):
                    error = NOT_LED
                elif left > 0:
                    acquired, data = self.world.acquire(request.member_id, partition, left)
                    left -= sum(one.last - one.first + 1 for one in acquired)
            if acquired or error or partition in told:
                leader = self.hint(partition) if NOT_LED in (error, ack) else (-1, -1)
                parts.append(
                    m.FetchedPartition(
                        topic_id=TOPIC,
                        partition=partition,
                        error=error,
                        ack_error=ack,
                        records=data,
                        acquired=acquired,
                        current_leader=leader,
                    )
                )
        return m.ShareFetchResponse(lock_timeout_ms=LIMITS.lock_duration_ms, partitions=tuple(parts))

    def look(self):
        """Answer the parked fetches that have something, or are over."""
        parked, self.parked = self.parked, []
        for one in parked:
            line, number, request, until_s = one
            session = self.sessions.get(request.group_id, request.member_id)
            partitions = [] if session is None else [partition for _, partition in session.partitions]
            answer = self.found(request, partitions, {})
            if answer.partitions or self.world.now_s >= until_s:
                self.world.answer(line, number, answer)
            else:
                self.parked.append(one)

    def decide(self, member, part, *, renew):
        path = self.world.paths[part.partition]
        if not self.leads(part.partition):
            return NOT_LED
        assert renew or not any(RENEW in one.types for one in part.acks), "a renewal in a request that is none"
        try:
            decision = path.core.acknowledge(member.core.member_id, part.acks, now_ms=self.world.now_ms)
        except CoreError as error:
            self.world.refused_to(part.partition, part.acks)
            return failure(error)[0]
        for one in part.acks:
            self.world.applied(member, part.partition, one)
        path.core.commit(decision)
        self.world.stir()
        return ErrorCode.NONE

    def acknowledge(self, line, number, request):
        del number
        try:
            closed = self.sessions.acknowledge(request.group_id, request.member_id, request.session_epoch)
        except CoreError as error:
            return self.refuse(line, error, m.ShareAcknowledgeResponse)
        told = []
        for part in request.partitions:
            code = self.decide(line.member, part, renew=request.is_renew_ack)
            leader = self.hint(part.partition) if code is NOT_LED else (-1, -1)
            told.append(
                m.AcknowledgedPartition(topic_id=TOPIC, partition=part.partition, error=code, current_leader=leader)
            )
        if closed is not None:
            self.release(closed)
        return m.ShareAcknowledgeResponse(lock_timeout_ms=LIMITS.lock_duration_ms, partitions=tuple(told))

    def settle(self, line, number, request):
        """Now, or after what a transaction takes; meanwhile the records are being written."""
        path = self.world.paths[request.partition]
        if not self.leads(request.partition):
            return self.does_not_lead(request.partition)
        batches = [AckRange(one.first, one.last, one.types, attempt=one.attempt) for one in request.acks]
        core = path.core
        try:
            decision = core.settle(line.member.core.member_id, batches, now_ms=self.world.now_ms)
        except InvalidRecordState as error:
            self.world.refused_to(request.partition, request.acks, offsets_of(error.ranges))
            return m.ShareSettleResponse(error=ErrorCode.INVALID_RECORD_STATE, refused=error.ranges)

        def write():
            if not self.leads(request.partition) or path.core is not core:
                core.abort(decision, now_ms=self.world.now_ms)
                return self.does_not_lead(request.partition)
            for one in request.acks:
                self.world.applied(line.member, request.partition, one)
            self.world.wrote(request.partition, request.outputs)
            core.commit(decision)
            self.world.stir()
            return m.ShareSettleResponse(lock_timeout_ms=LIMITS.lock_duration_ms)

        def written():
            answer = write()
            if self.up:
                self.world.answer(line, number, answer)

        if self.world.settling.random() < 0.5:
            return write()
        until_s = self.world.now_s + self.world.settling.choice((0.01, 0.5, 4.0))
        path.writing.append((core, until_s))
        self.world.at(until_s, written)
        return None

    def does_not_lead(self, partition):
        return m.ShareSettleResponse(error=NOT_LED, current_leader=self.hint(partition))

    def release(self, closed):
        for _, partition in closed.partitions:
            if self.leads(partition):
                self.world.paths[partition].core.release_member(closed.member_id)
        self.world.stir()

    def resume(self, line, number, request):
        """Answer a resume. While a write is under way that decides who owns a record, the answer waits for the write's
        outcome."""
        paths = [self.world.paths[part.partition] for part in request.partitions]
        writing = [until_s for path in paths for core, until_s in path.writing if core is path.core]
        if self.up and any(until_s >= self.world.now_s for until_s in writing):
            again_s = max(writing) + 0.001
            self.world.at(again_s, lambda: line.real.open and self.up and self.handle(line, number, request))
            return None
        if self.world.random.random() < self.world.trouble / 4:
            return m.ShareResumeResponse(error=ErrorCode.COORDINATOR_NOT_AVAILABLE, message="loading")
        kept, elsewhere = [], []
        for part in request.partitions:
            path = self.world.paths[part.partition]
            if not self.leads(part.partition):
                elsewhere.append(m.TopicPartition(TOPIC, part.partition))
                continue
            held = merged((one.first, one.last) for one in path.core.in_flight() if one.member_id == request.member_id)
            stray = minus(held, part.ranges)
            self.world.handed_back(line.member, part.partition, offsets_of(stray))
            if stray:
                back = [AckRange(first, last, bytes((RELEASE,)), 0, True) for first, last in stray]
                path.core.commit(path.core.acknowledge(request.member_id, back, now_ms=self.world.now_ms))
            left = minus(held, stray)
            if left:
                kept.append(m.HeldRanges(TOPIC, part.partition, tuple(left)))
        self.world.stir()
        return m.ShareResumeResponse(partitions=tuple(kept), elsewhere=tuple(elsewhere))

    def disconnected(self, line):
        self.parked = [one for one in self.parked if one[0].real is not line]
        for closed in self.sessions.close_connection(line):
            if not self.world.keeps:
                self.release(closed)


class Ack:
    """One acknowledgement of the application, by its number: about which deliveries, whether applied, its outcome.
    `adopted`: it is about what an earlier process acquired. `settles`: it is a settle's."""

    def __init__(self, member, partition, deliveries, kind, *, adopted, settles):
        self.member, self.partition, self.deliveries, self.kind = member, partition, deliveries, kind
        self.adopted, self.settles = adopted, settles
        self.applied, self.told = False, None
        self.outputs = set()
        """Of which records it has some."""


class Member:
    """A process of a member: its core, what carries out what it says, and an application that works on what arrives.

    written: what an earlier process of the member wrote down; the application works on it from when it is adopted.
    """

    def __init__(self, world, name, written=None):
        self.world = world
        self.topology = None if world.kind == "server" else Topology()
        self.core = c.SessionCore(
            group_id="g",
            member_id=name,
            generations=Generations(),
            name_of=lambda _: "orders",
            settings=LinkSettings(acknowledge_linger=world.random.choice((0.0, 0.002))),
            pause_s=lambda failures: min(2.0, 0.05 * 2 ** (failures - 1)) if failures else 0.0,
            adopts=written is not None,
        )
        self.number = self.core.custody.generation
        """Generation of the adopted records: they are lost when this generation is."""
        self.lines, self.opening = {}, {}
        self.partitions = ()
        """Its assignment."""
        self.begun = self.dead = False
        self.forsaken = False
        """True if the group gave the member up after the records to be adopted were written down."""
        self.heard = self.adopted = written is None
        self.doubts = 1 if written is None else 8
        """How often it releases and renews: what takes another one's place gives more back."""
        self.working = {at: (None, *found[1:]) for at, found in (written or {}).items()}
        self.attempts = {}
        self.acking = {}
        """Offsets that are being acknowledged -> their delivery."""
        self.twice = Counter()
        """How often it is beside that."""
        self.settles = []
        """Settles without an outcome."""
        self.ticking_s = None
        self.asked = False
        self.sent = 0
        if written is None:
            world.tell(self)
            self.begin()

    # --- a process ------------------------------------------------------------------------------------------------

    def begin(self):
        self.begun = True
        self.core.route(self.topology, keeps=self.world.keeps, now_s=self.world.now_s)
        if self.world.kind == "server":
            self.connect(c.LOCAL)

    def hear_leaders(self):
        self.world.tell(self)
        if self.heard:
            self.assign(self.partitions)

    def hear_assignment(self):
        self.heard = True
        self.assign(self.partitions)

    def assign(self, partitions):
        self.partitions = partitions
        if self.heard:
            self.core.assign(frozenset(m.TopicPartition(TOPIC, index) for index in partitions), self.world.now_s)
            self.act()

    def adopt(self):
        self.adopted = True
        held = {}
        for (partition, offset), found in self.working.items():
            if found[0] is None:
                held.setdefault(m.TopicPartition(TOPIC, partition), []).append(offset)
        self.core.adopt({tp: list(runs(offsets)) for tp, offsets in held.items()}, self.world.now_s)
        self.act()

    def reach(self):
        """It may be connected before it has anything to say."""
        if self.topology is not None:
            self.do_connect(c.Connect(self.world.fates.choice(list(self.world.nodes))))

    def break_line(self):
        if self.lines:
            self.world.cut(self.world.fates.choice(list(self.lines.values())))

    def die(self):
        """Kill the member and return the records that it wrote down: some that it worked on, or all it had not adopted
        yet."""
        fates = self.world.fates
        self.dead, self.ticking_s, self.lines, self.opening = True, None, {}, {}
        for line in [line for line in self.world.lines if line.member is self]:
            self.world.cut(line)
        if not self.adopted:
            return {at: found for at, found in self.working.items() if found[0] is None}
        share, with_acking = fates.choice((0.0, 0.5, 1.0)), fates.random() < 0.3
        works = {at: found for at, found in self.working.items() if self.works_on(*at)}
        return {
            at: found
            for at, found in works.items()
            if fates.random() < share and (with_acking or self.acking.get(at) != found[1])
        }

    # --- what carries out -----------------------------------------------------------------------------------------

    def act(self):
        while said := self.core.take():
            for one in said:
                getattr(self, "do_" + type(one).__name__.lower())(one)
        due_s = self.core.due_s()
        if due_s is not None and (self.ticking_s is None or due_s < self.ticking_s):
            self.ticking_s = due_s
            self.world.at(due_s, lambda: self.tick(due_s))

    def tick(self, due_s):
        if self.ticking_s == due_s:
            self.ticking_s = None
            self.core.tick(self.world.now_s)
            self.act()

    def do_sendrequest(self, one):
        line = self.lines.get(one.node_id)
        if line is None:
            return
        self.sent += 1
        self.world.send(line, one.number, one.request)

    def do_connect(self, one):
        if one.node_id not in self.lines:
            self.connect(one.node_id)

    def connect(self, node_id, failures=0):
        if self.opening.get(node_id) and not failures:
            return
        token = self.opening[node_id] = object()
        delay_s = self.world.random.uniform(0.001, 0.1) + min(2.0, 0.05 * failures)
        self.world.after(delay_s, lambda: self.tried(node_id, token, failures))

    def tried(self, node_id, token, failures):
        if self.opening.get(node_id) is not token:
            return
        node = self.world.node_of(node_id)
        if node is None or not node.up:
            self.core.unreachable(node_id, self.world.now_s)
            self.act()
            if self.opening.get(node_id) is token:
                self.connect(node_id, failures + 1)
            return
        del self.opening[node_id]
        self.lines[node_id] = line = Line(self, node)
        self.world.lines.append(line)
        self.core.opened(node_id, self.world.now_s, keeps_time=self.world.keeps_time, serial=not self.world.keeps)
        self.act()

    def do_rest(self, one):
        self.opening.pop(one.node_id, None)

    def do_forget(self, one):
        self.opening.pop(one.node_id, None)

    def do_drop(self, one):
        line = self.lines.get(one.node_id)
        if line is not None:
            self.world.cut(line)

    def do_look(self, one):
        def looked():
            if self.dead:
                return
            if self.world.random.random() >= self.world.trouble / 3:
                self.world.tell(self)
            self.core.looked(one.partitions, self.world.now_s)
            self.act()

        self.world.after(self.world.random.uniform(0.01, 0.3), looked)

    def do_refresh(self, _):
        if self.world.kind == "server" and c.LOCAL not in self.lines:
            self.connect(c.LOCAL)

    def do_note(self, _):
        """Nobody reads the log."""

    def do_stir(self, _):
        self.asked = False

    def do_broke(self, one):
        raise AssertionError(one.error)

    # --- the application ------------------------------------------------------------------------------------------

    def ask(self):
        if not self.asked:
            self.asked = True
            random_ = self.world.random
            size, wait_s = random_.randint(1, 20), random_.choice((0.05, 0.5))
            beside = self.world.seed % 2 == 0
            plan = Plan(size, 5, wait_s, 1 << 20, AcquireMode.RECORD_LIMIT, beside=beside)
            self.core.ask(plan, self.world.now_s)
            self.act()

    def do_arrived(self, one):
        self.asked = False
        for part in one.fetched:
            assert self.core.holds(part.tp, part.generation), "told under a number that is lost"
            lines = [[int(word) for word in line.split()] for line in part.records.decode().splitlines()]
            deliveries = {offset: (number, epoch) for offset, number, epoch in lines}
            self.world.arrived.update(number for _, number, _ in lines)
            held = offsets_of(self.core.custody.holding.of(part.tp))
            for run in part.acquired:
                for offset in range(run.first, run.last + 1):
                    at = part.partition, offset
                    old = self.working.get(at)
                    number, epoch = deliveries[offset]
                    anew = old is None or old[2] != epoch or old[1] in self.world.misled
                    anew |= old is not None and old[1] in self.world.refused
                    assert anew or not self.holds(part.partition, old[0]), f"{at} is told twice"
                    assert offset in held, f"{at} is told and not held"
                    self.working[at] = part.generation, number, epoch
                    self.attempts[at] = run.delivery_count

    def works_on(self, partition, offset):
        found = self.working.get((partition, offset))
        return found is not None and self.holds(partition, found[0])

    def holds(self, partition, number):
        """True if the member holds the records of this generation; None: records that were adopted, or are to be."""
        tp = m.TopicPartition(TOPIC, partition)
        if number is not None:
            return self.core.holds(tp, number)
        return self.world.keeps and not self.forsaken and self.core.holds(tp, self.number)

    def acknowledge(self, share):
        """Say something of some of what is worked on; sometimes of what is lost, too."""
        choose = self.world.random.random
        for at in [at for at in self.working if not self.works_on(*at)]:
            if choose() < 0.7:
                del self.working[at]
        chosen = [at for at, found in self.working.items() if self.acking.get(at) != found[1] and choose() < share]
        doubts = self.world.trouble * self.doubts
        kind = self.world.random.choices((ACCEPT, RELEASE, RENEW), (8, doubts, doubts))[0]
        calls = {}
        for partition, offset in chosen:
            generation = self.working[partition, offset][0]
            calls.setdefault(generation, {}).setdefault(partition, []).append(offset)
        settles = kind == ACCEPT and self.world.settles and self.world.settling.random() < 0.7
        for generation, parts in calls.items():
            if settles:
                for partition, offsets in parts.items():
                    self.settle(partition, offsets, generation)
            else:
                self.say_of(parts, generation, kind)

    def say_of(self, parts, generation, kind):
        """Acknowledge these offsets by partition."""
        acks = {}
        for partition, offsets in parts.items():
            numbered = self.numbered(partition, offsets, kind, adopted=generation is None)
            batches = [AckRange(first, last, bytes((kind,)), number) for first, last, number in numbered]
            acks[m.TopicPartition(TOPIC, partition)] = batches
            if kind == RELEASE:  # it may come again before the answer does
                for offset in offsets:
                    del self.working[partition, offset]
        late = self.world.random.random() < 0.5
        self.core.acknowledge(acks, generation, self.world.now_s, asker=self, tells_late=late)
        self.act()

    def numbered(self, partition, offsets, kind, *, adopted, settles=False):
        """Yield the offsets to acknowledge as ranges: first, last, and the number of the `Ack` about the range."""
        for first, last in runs(offsets):
            deliveries = {offset: self.working[partition, offset][1] for offset in range(first, last + 1)}
            self.acking.update({(partition, offset): delivery for offset, delivery in deliveries.items()})
            number = next(self.world.numbers)
            ack = self.world.acks[number] = Ack(self, partition, deliveries, kind, adopted=adopted, settles=settles)
            if settles:
                self.settles.append(ack)
            yield first, last, number

    def settle(self, partition, offsets, generation):
        """Accept and reject these, with an output for each that is accepted; now and then also one that is being
        settled already."""
        random_, told, outputs = self.world.settling, [], []
        under_way = [one for ack in self.settles if ack.partition == partition for one in ack.deliveries.items()]
        works = {one: self.working.get((partition, one), (None, 0))[:2] for one, _ in under_way if one not in offsets}
        twice = [one for one, delivery in under_way if works.get(one) == (generation, delivery)]
        if twice and random_.random() < 0.3:
            offsets = [*offsets, random_.choice(twice)]
            self.twice[partition, offsets[-1]] += 1
        for first, last, number in self.numbered(partition, offsets, ACCEPT, adopted=generation is None, settles=True):
            kinds = random_.choices((ACCEPT, REJECT), (9, 1), k=last - first + 1)
            attempts = {self.attempts.get((partition, offset), 0) for offset in range(first, last + 1)}
            attempt = attempts.pop() if len(attempts) == 1 and generation is not None else 0
            told.append(AckRange(first, last, bytes(kinds), number, attempt=attempt))
            for offset, kind in enumerate(kinds, first):
                if kind == ACCEPT:
                    self.world.acks[number].outputs.add(offset)
                    outputs.append(m.SettleOutput("out", OUT, partition, b"%d %d" % (offset, number)))
        tp, now_s, late = m.TopicPartition(TOPIC, partition), self.world.now_s, random_.random() < 0.5
        self.core.settle(tp, told, tuple(outputs), generation, now_s, asker=self, tells_late=late)
        self.act()

    def do_answered(self, one):
        for result in one.results:
            self.outcome(result)

    def do_late(self, one):
        self.outcome(one.result)

    def outcome(self, result):
        for batch in result.acks:
            ack = self.world.acks[batch.delay_ms]
            assert ack.told is None, "an outcome is told twice"
            ack.told = result
            if ack.settles:
                self.settles.remove(ack)
            unknown = "outcome unknown" in (result.message or "")
            if result.error is ErrorCode.NONE:
                assert ack.applied or ack.kind == RENEW, "confirmed, and not written"
            elif not unknown:
                assert not ack.applied, f"refused, and written: {result}"
            for offset, delivery in ack.deliveries.items():
                at = result.partition, offset
                if self.twice[at]:
                    self.twice[at] -= 1
                elif self.acking.get(at) == delivery:
                    del self.acking[at]
                over = ack.kind == ACCEPT and result.error is not NOT_LED
                if ack.settles and result.error is ErrorCode.INVALID_RECORD_STATE:
                    over = offset in offsets_of(result.refused)  # the rest is held, and settled another time
                over |= ack.adopted and result.error is ErrorCode.INVALID_RECORD_STATE  # the dead one may have ended it
                if over and self.working.get(at, (0, None, 0))[1] == delivery:
                    del self.working[at]


class World:
    """Everything, and what goes wrong with it. `trouble`: how often, from 0 to 1."""

    def __init__(self, seed, kind):
        self.seed, self.random = seed, random.Random(f"{kind} {seed}")
        self.fates = random.Random(f"fates {kind} {seed}")
        """Which processes die, and what becomes of the next ones."""
        self.settling = random.Random(f"settles {kind} {seed}")
        """Random source for settles: which records are settled, and how long a settle takes."""
        self.mortal = seed % 2 == 0
        self.kind, self.keeps = kind, kind != "brokers"
        self.settles = self.keeps and seed % 3 == 0
        self.written = {}
        """Partition and offset of a record that has an output -> the number of what accepted it."""
        self.keeps_time = self.random.random() < 0.5
        self.timeline = Timeline(0.0)
        self.at, self.after, self.advance = self.timeline.at, self.timeline.after, self.timeline.advance
        self.numbers, self.deliveries = count(1), count(1)
        self.acks, self.lines = {}, []
        self.trouble, self.hints, self.old_news = self.random.random(), True, None
        ids = [1] if kind == "server" else [1, 2, 3]
        self.nodes = {node_id: Node(self, node_id) for node_id in ids}
        self.paths = [Path(self.random.choice(ids)) for _ in range(PARTITIONS)]
        self.members = [Member(self, f"m{index}") for index in range(self.random.randint(1, 3))]
        self.arrived = set()
        """Deliveries that some application was told of."""
        self.refused = set()
        """Deliveries whose acknowledgement was refused, perhaps for that of a neighbour: they count as lost, though
        nobody was told yet."""
        self.misled = set()
        """Deliveries that an acknowledgement of an earlier one counted for: a broker that led, did not, and leads again
        forgot who held what, and its members do not hear of it."""
        self.digest = 0

    # --- time -----------------------------------------------------------------------------------------------------

    @property
    def now_s(self):
        return self.timeline.now

    @property
    def now_ms(self):
        return round(self.now_s * 1000)

    # --- the network ----------------------------------------------------------------------------------------------

    def node_of(self, node_id):
        return self.nodes[max(self.nodes)] if node_id == c.LOCAL else self.nodes.get(node_id)

    def send(self, line, number, request):
        line.under_way += 1
        assert self.keeps or line.under_way == 1, "a session's request was sent beside another one"
        line.reaches_s = max(line.reaches_s, self.now_s + self.random.uniform(0, 0.01))
        fate = self.random.random() / max(self.trouble, 1e-9)

        def reach():
            if not line.open or not line.node.up:
                return
            if fate < 0.01:  # lost on its way
                self.cut(line)
            elif fate < 0.02 and not self.keeps:  # a broker that forgot the session
                line.node.sessions.close("g", request.member_id)
                line.astray = True
                self.handle(line, number, request)
            elif fate < 0.03 and not line.member.world.keeps_time:  # carried out or not, and never answered
                if self.random.random() < 0.5:
                    line.node.handle(Swallow(line), number, request)
                else:
                    line.astray = True  # what follows has the wrong epoch
            else:
                self.handle(line, number, request)

        self.at(line.reaches_s, reach)

    def handle(self, line, number, request):
        line.node.handle(line, number, request)

    def answer(self, line, number, answer):
        if isinstance(line, Swallow):
            return
        lost = self.random.random() < 0.02 * self.trouble
        back_s = self.now_s + self.random.uniform(0, 1.0 if self.random.random() < 0.1 * self.trouble else 0.01)
        if not self.keeps:  # flowshare's servers answer in any order
            back_s = line.back_s = max(line.back_s, back_s)

        def come():
            if not line.open:
                return
            if lost:
                self.cut(line)
                return
            line.under_way -= 1
            member = line.member
            node_id = c.LOCAL if self.kind == "server" else line.node.node_id
            member.core.answered(node_id, number, answer, self.now_s)
            member.act()

        self.at(back_s, come)

    def cut(self, line):
        """The connection ends, for both ends."""
        if not line.open:
            return
        line.open = False
        self.lines.remove(line)
        line.node.disconnected(line)
        member = line.member
        node_id = c.LOCAL if self.kind == "server" else line.node.node_id
        if member.lines.get(node_id) is line:
            del member.lines[node_id]
            member.core.lost(node_id, self.now_s)
            member.act()

    def tell(self, member):
        """Tell the member the leaders, as a broker knows them."""
        if member.topology is None:
            return
        known = self.old_news or self.news()
        topic = m.TopicMetadata(
            name="orders",
            topic_id=TOPIC,
            partitions=len(known),
            leaders=tuple(leader for leader, _ in known),
            leader_epochs=tuple(epoch for _, epoch in known),
        )
        nodes = {node_id: ("node", node_id) for node_id, node in self.nodes.items() if node.up}
        member.topology.apply(m.MetadataResponse(topics=(topic,), nodes=nodes))

    def news(self):
        return [(path.leader if self.leads(path) else NOBODY, path.epoch) for path in self.paths]

    def leads(self, path):
        node = self.nodes.get(path.leader)
        return node is not None and node.up

    # --- the servers' side ----------------------------------------------------------------------------------------

    def acquire(self, member_id, partition, most):
        path = self.paths[partition]
        path.core.lapse(self.now_ms)
        start = path.core.next_fetch_offset(path.end)
        batches = [LogBatch(start, path.end - 1)] if start < path.end else []
        found = path.core.acquire(
            member_id,
            mode=AcquireMode.RECORD_LIMIT,
            records_max=most,
            batch_size=5,
            fetch_offset=start,
            batches=batches,
            now_ms=self.now_ms,
        )
        given = []
        for first, last, _ in found.ranges:
            for offset in range(first, last + 1):
                self.check_given(partition, offset)
                path.delivery[offset] = number = next(self.deliveries)
                given.append(f"{offset} {number} {0 if self.keeps else path.epoch}")
        return tuple(found.ranges), "\n".join(given).encode()

    def check_given(self, partition, offset):
        """Where members keep what they hold, nothing is given to one that another works on."""
        if self.keeps:
            busy = [one.core.member_id for one in self.members if one.works_on(partition, offset)]
            assert not busy, f"{partition, offset} is given out while {busy} works on it"

    def handed_back(self, member, partition, offsets):
        for offset in offsets:
            assert not member.works_on(partition, offset), f"{partition, offset} is handed back while it is worked on"

    def applied(self, member, partition, batch):
        if batch.unrun:
            return
        ack = self.acks[batch.delay_ms]
        assert ack.member is member
        if ack.kind == RENEW:
            return
        path = self.paths[partition]
        now = {path.delivery[offset] for offset in ack.deliveries if offset >= path.core.start_offset}
        if ack.applied and ack.kind == RELEASE and self.arrived.isdisjoint(now):
            return  # what was written, and given again in an answer that was lost with it, is released once more
        assert not ack.applied, "an acknowledgement is applied twice"
        assert ack.told is None or "outcome unknown" in (ack.told.message or ""), "applied after its outcome was told"
        ack.applied = True
        wrong = now.difference(ack.deliveries.values())
        lost = ack.adopted and not member.holds(partition, None)  # nobody can know it for what was acquired since
        # What was settled twice at a time, and refused the second time, came back for the same attempt.
        lost |= ack.settles and self.refused.issuperset(set(ack.deliveries.values()).difference(now))
        assert not self.keeps or not wrong or lost, "it counts for another delivery"
        self.misled |= wrong

    def wrote(self, partition, outputs):
        for output in outputs:
            offset, number = map(int, output.records.split())
            assert (partition, offset) not in self.written, "the output of a record is written twice"
            self.written[partition, offset] = number

    def refused_to(self, partition, batches, only=None):
        """only: offsets of those that are refused, where they are told."""
        for one in batches:
            if not one.unrun:
                deliveries = self.acks[one.delay_ms].deliveries
                self.refused.update(
                    delivery for offset, delivery in deliveries.items() if only is None or offset in only
                )

    def stir(self):
        self.after(0.0, lambda: [node.look() for node in self.nodes.values()])

    def lead(self, partition, node_id):
        """Another node leads it: a broker knows what is finished, one of flowshare's own what members hold as well."""
        path = self.paths[partition]
        path.leader = node_id
        path.epoch += 1
        living = [member.core.member_id for member in self.members] if self.keeps else ()
        path.core = SharePartition(
            start_offset=path.core.start_offset,
            limits=LIMITS,
            runs=path.core.state() if not self.keeps else _with_members(path.core),
            living=living,
            now_ms=self.now_ms,
        )
        self.stir()

    # --- faults ---------------------------------------------------------------------------------------------------

    def break_line(self):
        if self.lines:
            self.cut(self.random.choice(self.lines))

    def move(self):
        up = [node_id for node_id, node in self.nodes.items() if node.up]
        self.lead(self.random.randrange(PARTITIONS), self.random.choice(up))

    def orphan(self):
        if self.kind != "server":
            self.paths[self.random.randrange(PARTITIONS)].leader = NOBODY

    def die(self):
        """A node ends, one of three for good; what it led has no leader until `claim`. Of a single server a new process
        takes over."""
        up = [node for node in self.nodes.values() if node.up]
        if self.kind == "server":
            (old,) = up
            new = self.nodes[old.node_id + 1] = Node(self, old.node_id + 1)
            del self.nodes[old.node_id]
            for line in [line for line in self.lines if line.node is old]:
                self.cut(line)
            for partition in range(PARTITIONS):
                self.lead(partition, new.node_id)
        elif len(up) > 1:
            node = self.random.choice(up)
            node.up = False
            node.sessions, node.parked = ShareSessions(), []
            for line in [line for line in self.lines if line.node is node]:
                self.cut(line)
            node.gone = len(up) == len(self.nodes) and self.random.random() < 0.3
            self.after(self.random.uniform(0.1, 5.0), lambda: self.come_up(node))

    def freeze(self):
        """A node answers nothing and ends no connection, one of a fleet's for good. What it led has no leader until
        `claim`."""
        up = [node for node in self.nodes.values() if node.up]
        if len(up) > 1:
            node = self.random.choice(up)
            node.up, node.parked = False, []
            node.gone = self.kind == "fleet" and len(up) == len(self.nodes)
            if node.gone:
                node.sessions = ShareSessions()
            self.after(self.random.uniform(0.1, 20.0), lambda: self.come_up(node))

    def tell_old_news(self):
        """Whoever is asked who leads answers as of now, until it hears of what came since."""
        self.old_news = self.news()
        self.after(self.random.uniform(0.1, 5.0), self.tell_news)

    def tell_news(self):
        self.old_news = None

    def come_up(self, node):
        if node.gone or node.up:
            return
        for line in [line for line in self.lines if line.node is node]:  # of one that was frozen
            self.cut(line)
        node.up = True
        for partition, path in enumerate(self.paths):
            if path.leader == node.node_id:
                self.lead(partition, node.node_id)

    def claim(self):
        up = [node_id for node_id, node in self.nodes.items() if node.up]
        for partition, path in enumerate(self.paths):
            if not self.leads(path):
                self.lead(partition, self.random.choice(up))

    def reassign(self):
        for member in self.members:
            some = [index for index in range(PARTITIONS) if self.random.random() < 0.8]
            member.assign(some)

    def restart(self):
        """A member's process dies, and another one begins after a while."""
        index = self.fates.randrange(len(self.members))
        old = self.members[index]
        new = self.members[index] = Member(self, old.core.member_id, old.die())
        new.partitions, new.forsaken = old.partitions, old.forsaken and not old.adopted
        begins_s = self.fates.uniform(0.05, 3.0)
        self.unless_dead(new, begins_s, new.begin)
        for what in self.fates.sample((new.hear_leaders, new.hear_assignment, new.adopt), 3):
            self.unless_dead(new, begins_s + self.fates.choice((0.0, self.fates.uniform(0.0, 3.0))), what)
        for what in self.fates.choices((new.reach, new.break_line), k=self.fates.randrange(6)):
            self.unless_dead(new, begins_s + self.fates.uniform(0.0, 4.0), what)

    def unless_dead(self, member, delay_s, what):
        self.after(delay_s, lambda: member.dead or what())

    def give_up(self):
        """The group gives a member up; it hears of it at once."""
        member = self.random.choice(self.members)
        if self.kind != "fleet":
            return
        for node in self.nodes.values():
            node.sessions.close("g", member.core.member_id)
            node.parked = [one for one in node.parked if one[0].member is not member]
        member.forsaken = True
        if member.begun:
            member.core.given_up(self.now_s)
            member.act()
        for path in self.paths:
            path.core.release_member(member.core.member_id)
        self.stir()

    # --- a life ---------------------------------------------------------------------------------------------------

    def live(self):
        self.heal()
        faults = (
            self.break_line,
            self.move,
            self.orphan,
            self.die,
            self.freeze,
            self.tell_old_news,
            self.reassign,
            self.give_up,
        )
        for _ in range(STEPS):
            self.paths[self.random.randrange(PARTITIONS)].end += self.random.randint(1, 10)
            self.stir()
            self.hints = self.random.random() < 0.5
            if self.random.random() < self.trouble:
                self.random.choice(faults)()
            if self.mortal and self.fates.random() < 0.05:
                self.restart()
            if self.random.random() < 0.4:
                self.claim()
            self.step(self.random.random() * 0.7, self.random.choice((0.0, 0.003, 0.02, 0.3, 1.0)))
        self.calm()
        self.end()
        return self.digest

    def step(self, share, seconds):
        for member in self.members:
            if not member.adopted:
                continue
            if share:
                member.acknowledge(share)
            member.ask()
        self.advance(seconds)
        self.digest = hash((self.digest, self.now_s, sum(member.sent for member in self.members)))

    def heal(self):
        for node in self.nodes.values():
            if not node.up:
                self.come_up(node)
        self.claim()
        for member in self.members:
            member.assign(range(PARTITIONS))

    def calm(self):
        """Nothing goes wrong any more: what a member holds is what the servers have as its own."""
        self.trouble = 0.0
        self.tell_news()
        self.heal()
        for node in self.nodes.values():  # of one session nobody knows any more
            node.sessions.close("g", self.members[0].core.member_id)
        for line in self.members[0].lines.values():
            line.astray = True
        for _ in range(int(CALM_S / 0.5)):
            self.step(0, 0.5)
        for member in self.members:
            assert member.core.all_told, "an acknowledgement has no outcome"
            for node in member.core.nodes.values():
                session = self.node_of(node.node_id).sessions.get("g", member.core.member_id)
                assert session is not None or not node.wanted, "a session is not opened anew"
            for partition, path in enumerate(self.paths):
                held = offsets_of(member.core.custody.holding.of(m.TopicPartition(TOPIC, partition)))
                extra = held - path.held_by(member.core.member_id)
                unknown = path.held_by(member.core.member_id) - held
                unknown = {offset for offset in unknown if path.delivery[offset] not in self.refused}
                assert not (self.keeps and unknown), (
                    f"{member.core.member_id} does not know that it holds {unknown} of {partition}"
                )
                works = {offset: member.working.get((partition, offset), (0, 0, 0)) for offset in extra}
                if not self.keeps:
                    extra = {one for one in extra if works[one][2] == path.epoch and works[one][1] not in self.misled}
                assert not extra, f"{member.core.member_id} believes to hold {extra} of {partition}"
        unsaid = [number for number, ack in self.acks.items() if ack.told is None and not ack.member.dead]
        assert not unsaid, f"no outcome was told of {unsaid}"
        accepted = {
            (ack.partition, offset): number
            for number, ack in self.acks.items()
            if ack.applied
            for offset in ack.outputs
        }
        assert self.written == accepted, "an output of nothing that was accepted, or none of what was"

    def end(self):
        """Everything is accepted, soon; then everybody closes."""
        until_s = self.now_s + END_S
        while any(path.core.start_offset < path.end for path in self.paths):
            assert self.now_s < until_s, f"not finished: {[(path.core.start_offset, path.end) for path in self.paths]}"
            self.step(1.0, 0.5)
        sent = sum(member.sent for member in self.members)
        self.advance(10.0)
        assert sum(member.sent for member in self.members) - sent < 200, "a storm of requests"
        for line in [line for line in self.lines if not line.node.up]:  # a shell ends it when the time to close is over
            self.cut(line)
        for member in self.members:
            member.core.end_fetches(self.now_s)
            member.act()
        self.advance(5.0)
        for member in self.members:
            assert not member.core.busy
            member.core.close_sessions({}, self.now_s)
            member.act()
        self.advance(1.0)
        assert all(member.core.ended for member in self.members)
        assert not any(len(node.sessions) for node in self.nodes.values()), "a session is left open"


def _with_members(partition):
    return partition.state()


class Swallow:
    """A line whose answers nobody gets."""

    def __init__(self, line):
        self.member, self.node, self.open, self.real = line.member, line.node, True, line
