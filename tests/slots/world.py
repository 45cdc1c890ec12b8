"""One slot, its log at a broker, and owners that freeze, lose answers, send twice and come back late.

The broker is a model of Kafka's idempotent producers: it forgets producer ids and transactional ids at any moment, so
that old owners' records are taken after a newer claim. Everything is drawn from one seed.
"""

from __future__ import annotations

import random
from collections import Counter, deque

from flowshare.slots.confirm import Confirming
from flowshare.slots.records import Claim, HandOver, Part, Tick, checksum_of, decode, encode_entries
from flowshare.slots.replay import SlotReader

KEYS = [b"g/%d" % n for n in range(6)]
WINDOW = 5
FENCED, OUT_OF_ORDER = "fenced", "out of order"


def everything(table):
    """All that a table keeps, the oldest write first."""
    return list(table.older(1 << 62))


class Oracle:
    """Says of each record of the log whether it counts, as plainly as that can be said."""

    def __init__(self):
        self.claim = None
        self.serial = 0
        self.given = False
        self.state = {}
        self.parts = []

    def judge(self, record):
        if isinstance(record, Claim):
            if self.claim is not None and record.epoch <= self.claim.epoch:
                return False
            self.claim, self.serial, self.given, self.parts = record, 1, False, []
            return True
        if self.claim is None or (record.epoch, record.serial) != (self.claim.epoch, self.serial) or self.given:
            return False
        self.serial += 1
        self.given = isinstance(record, HandOver)
        if isinstance(record, Part):
            self.parts.append(record.body)
            if record.last:
                for number in b"".join(self.parts).split(b";")[:-1]:
                    key, _, value = number.partition(b"=")
                    self.state[key] = value
                self.parts = []
        return True


class Broker:
    """The log of one partition, and what is known of producers."""

    def __init__(self, source, seen):
        self.source, self.seen = source, seen
        self.log = []
        self.counts = []
        self.higher = []
        self.oracle = Oracle()
        self.producers = {}
        self.transactional = None
        self.ids = 0

    def init(self):
        """InitProducerId for the slot's transactional id."""
        if self.transactional is None:
            self.ids += 1
            self.transactional = (self.ids, 0)
        else:
            self.transactional = (self.transactional[0], self.transactional[1] + 1)
        return self.transactional

    def append(self, producer, sequence, key, value):
        """Offset, None for a duplicate whose place is forgotten, or why it is refused."""
        number, epoch = producer
        known = self.producers.get(number)
        if known is not None:
            if epoch < known[0]:
                self.seen["refused as fenced"] += 1
                return FENCED
            if epoch > known[0]:
                known = (epoch, {}, -1)
            if sequence in known[1]:
                self.seen["sent twice, taken once"] += 1
                return known[1][sequence] if self.source.random() < 0.7 else None
            if sequence <= known[2]:
                return None
            if sequence != known[2] + 1:
                self.seen["refused as out of order"] += 1
                return OUT_OF_ORDER
        else:
            known = (epoch, {}, -1)
        offset = len(self.log)
        last = dict([*known[1].items(), (sequence, offset)][-WINDOW:])
        self.producers[number] = (epoch, last, sequence)
        record = decode(key, value)
        self.log.append((key, value, record))
        before = self.oracle.claim.epoch if self.oracle.claim else 0
        self.higher.append(before)
        self.counts.append(self.oracle.judge(record))
        if before > record.epoch:
            self.seen["taken from an old owner after a newer claim"] += 1
        return offset


class Owner:
    """One process that owns the slot now and then."""

    def __init__(self, name, broker, source, seen):
        self.name, self.broker, self.source, self.seen = name, broker, source, seen
        self.confirming = Confirming(SlotReader())
        self.producer = None
        self.sequence = 0
        self.lives = 0
        self.unanswered = deque()
        self.wire = deque()
        self.ghosts = deque()
        self.answers = deque()
        self.confirmed = []
        self.written = 0

    # --- steps --------------------------------------------------------------------------------------------------

    def read(self, count=None):
        """Read some of the log, or all of it."""
        reader = self.confirming.reader
        end = len(self.broker.log) if count is None else min(len(self.broker.log), reader.position + count)
        for offset in range(reader.position, end):
            _, value, record = self.broker.log[offset]
            ticket = self.confirming.read(offset, record, checksum_of(value))
            if ticket is not None:
                self.seen["confirmed by reading"] += 1
                self._confirmed([ticket])
        self._confirmed(self.confirming.settle())

    def claim(self):
        """Begin to own the slot, or claim anew."""
        if self.confirming.lost is None and self.confirming._open:
            return
        self.lives += 1
        if self.confirming.lost is not None or self.confirming.mine is None:
            self.confirming = Confirming(self.confirming.reader)
        self.ghosts += self.wire
        self.wire.clear()
        self.answers.clear()
        self.unanswered.clear()
        if self.source.random() < 0.7:
            self.read()
            if self.confirming.lost is not None:
                return
        self.producer, self.sequence = self.broker.init(), 0
        epoch = self.confirming.reader.epoch + 1
        self._send(Claim(epoch=epoch, node_id=1, owner=self.name, host="h", port=1, time_ms=self.lives))

    def write(self):
        """Send a record under the claim."""
        mine = self.confirming.mine
        if mine is None or self.confirming.lost is not None or len(self.unanswered) >= WINDOW:
            return
        serial, draw = self.confirming.serial, self.source.random()
        if draw < 0.05:
            self._send(Tick(epoch=mine.epoch, serial=serial))
        elif draw < 0.07:
            self._send(HandOver(epoch=mine.epoch, serial=serial, to="anyone"))
            self.confirming.give_up("handed over")
        else:
            self.written += 1
            key, value = self.source.choice(KEYS), f"{self.name}{self.lives}.{self.written}".encode()
            last = self.source.random() < 0.8
            self._send(Part(epoch=mine.epoch, serial=serial, body=key + b"=" + value + b";", last=last))

    def _send(self, record):
        ticket = self.confirming.sent(record)
        self.unanswered.append((ticket, self.producer, self.sequence))
        self.wire.append(self.unanswered[-1])
        self.sequence += 1

    def carry(self):
        """The broker gets the next request."""
        if self.wire:
            sent = self.wire.popleft()
            answer = self.broker.append(*sent[1:], sent[0].key, sent[0].value)
            self.answers.append((sent, answer))

    def haunt(self):
        """The broker gets a request of a connection that is broken."""
        if self.ghosts:
            ticket, producer, sequence = self.ghosts.popleft()
            self.broker.append(producer, sequence, ticket.key, ticket.value)

    def cut(self):
        """The connection breaks: answers are lost, requests too, or they arrive later; all is sent again."""
        self.answers.clear()
        while self.wire:
            request = self.wire.popleft()
            if self.source.random() < 0.5:
                self.ghosts.append(request)
        if self.confirming.lost is None:
            self.wire.extend(self.unanswered)

    def answer(self):
        """The owner gets the next answer."""
        if not self.answers:
            return
        sent, answer = self.answers.popleft()
        if answer == FENCED or (answer == OUT_OF_ORDER and self.unanswered and self.unanswered[0] is sent):
            self.confirming.give_up(answer)
        elif answer != OUT_OF_ORDER:
            if sent in self.unanswered:
                self.unanswered.remove(sent)
            self._confirmed(self.confirming.answered(sent[0], answer))
        if self.confirming.wanted:
            self.seen["gap"] += 1
            self.read()

    def _confirmed(self, tickets):
        for ticket in tickets:
            self.seen["confirmed"] += 1
            self.confirmed.append(ticket)
            self._check(ticket)

    def _check(self, ticket):
        """The invariant: it counts, and no newer claim lies before it."""
        log, record = self.broker.log, ticket.record
        found = [n for n, entry in enumerate(log) if entry[1] == ticket.value and self.broker.counts[n]]
        assert len(found) == 1, f"{record} was confirmed and counts {len(found)} times"
        newer = [n for n in range(found[0]) if isinstance(log[n][2], Claim) and self.broker.counts[n]]
        assert all(log[n][2].epoch <= record.epoch for n in newer), f"{record} was confirmed after a newer claim"


class World:
    """All of it, driven by one seed."""

    def __init__(self, seed):
        self.source = random.Random(seed)
        self.seen = Counter()
        self.broker = Broker(self.source, self.seen)
        self.owners = [Owner(name, self.broker, self.source, self.seen) for name in "abc"]
        self.frozen = set()
        self.rates = {
            "claim": self.source.uniform(0.01, 0.1),
            "forget": self.source.uniform(0, 0.05),
            "cut": self.source.uniform(0, 0.1),
            "freeze": self.source.uniform(0, 0.05),
        }

    def step(self):
        """One thing happens."""
        source, rates = self.source, self.rates
        if source.random() < rates["forget"]:
            if source.random() < 0.5:
                self.broker.producers.clear()
            else:
                self.broker.transactional = None
        owner = source.choice(self.owners)
        if source.random() < rates["freeze"]:
            self.frozen ^= {owner.name}
        if source.random() < 0.1:
            owner.haunt()
        if source.random() < rates["cut"]:
            owner.cut()
        owner.carry() if source.random() < 0.4 else None
        if owner.name in self.frozen:
            return
        if source.random() < rates["claim"] and (owner.confirming.lost is not None or owner.confirming.mine is None):
            owner.claim()
        elif source.random() < 0.01:
            owner.claim()  # a renewal
        action = source.choice([owner.write, owner.write, owner.answer, owner.answer, owner.carry])
        action()
        if source.random() < 0.05:
            owner.read(source.randrange(1, 5))

    def heal(self):
        """All faults end, one owner claims and writes."""
        for owner in self.owners:
            while owner.ghosts:
                owner.haunt()
            while owner.wire:
                owner.carry()
        owner = self.source.choice(self.owners)
        owner.confirming.give_up("a new life")
        for _ in range(20):
            owner.claim()
            owner.read()
            owner.carry()
            owner.answer()
            if owner.confirming.mine is not None and owner.confirming.lost is None:
                break
        before = len(owner.confirmed)
        owner._send(Tick(epoch=owner.confirming.mine.epoch, serial=owner.confirming.serial))
        owner.carry()
        owner.answer()
        assert len(owner.confirmed) == before + 1


def body(*entries):
    return encode_entries(entries)
