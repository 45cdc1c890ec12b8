"""One slot whose leaders settle apart: a log with claims, a coordinator of transactions, and a network that loses.

Leaders die at any step, or go on as zombies after another one has claimed the slot; requests arrive late, or after
whoever sent them has given up waiting. Everything is drawn from one seed.
"""

from __future__ import annotations

import json
import random
from collections import Counter

from flowshare.slots.placement import SHARE_PREFIX
from flowshare.slots.prepared import Fate, LaneBook, Prepared, decide, fate, rows_in

SHARE = SHARE_PREFIX + b"\0\1g" + bytes(16) + bytes(4)
LANES = 2
RECORDS = 8


class Lost(Exception):
    """No answer came."""


class Refused(Exception):
    """The broker says no: fenced, or not led any more."""


class Log:
    """The slot's log as all readers agree on it: what is written under the newest claim counts, each write once."""

    def __init__(self):
        self.epoch = 0
        self.table = {}
        self._written = set()

    def claim(self):
        self.epoch += 1
        return self.epoch

    def write(self, epoch, serial, entries):
        if epoch != self.epoch:
            raise Refused("not led")
        if (epoch, serial) in self._written:
            return
        self._written.add((epoch, serial))
        for key, value in entries:
            if value is None:
                self.table.pop(key, None)
            else:
                self.table[key] = value


class Coordinator:
    """One lane's transactional id and ledger, and the outputs that readers of committed records see."""

    def __init__(self, seen):
        self.epoch = 0
        self.ledger = -1
        self.open = None
        self.ended = None
        self.visible = []
        self._seen = seen

    def init(self):
        if self.open is not None:
            self._seen["aborted by a take-over"] += 1
        self.epoch, self.open, self.ended = self.epoch + 1, None, None
        return self.epoch

    def _check(self, epoch):
        if epoch != self.epoch:
            self._seen["fenced"] += 1
            raise Refused("fenced")

    def send(self, epoch, number, outputs):
        self._check(epoch)
        self.open = (number, outputs)
        self.ended = None

    def end(self, epoch):
        self._check(epoch)
        if self.open is None:
            if self.ended is None:
                raise Refused("nothing is open")
            return  # asked again: it is done
        self.ended, outputs = self.open
        self.open = None
        self.ledger = self.ended
        self.visible += outputs


class World:
    """The slot. `told`: what members were told of settles, by their ids."""

    def __init__(self, seed):
        self.source = random.Random(seed)
        self.seen = Counter()
        self.log = Log()
        self.lanes = [Coordinator(self.seen) for _ in range(LANES)]
        self.network = []
        self.runs = []
        self.frozen = {}
        self.steps = 0
        self.told = {}
        self.settles = 0
        for record in range(RECORDS):
            self.log.table[state_key(record)] = encode(["A", 1])

    def state(self, record):
        return json.loads(self.log.table[state_key(record)])

    # --- time -----------------------------------------------------------------------------------------------------

    def call(self, function, *arguments):
        """Have something carried out elsewhere, some time; its answer, unless that is lost."""
        box = []
        self.network.append((function, arguments, box))
        patience = self.source.choice([3, 10, 1000])
        while not box:
            yield
            patience -= 1
            if not patience:
                self.seen["lost"] += 1
                raise Lost
        error, value = box[0]
        if self.source.random() < 0.05:
            self.seen["answer lost"] += 1
            raise Lost
        if error is not None:
            raise error
        return value

    def deliver(self):
        function, arguments, box = self.network.pop(self.source.randrange(len(self.network)))
        try:
            box.append((None, function(*arguments)))
        except Refused as error:
            box.append((error, None))

    def step(self):
        """One of all that may happen next."""
        if self.network and (not self.runs or self.source.random() < 0.4):
            self.deliver()
            return
        self.steps += 1
        awake = [run for run in self.runs if self.frozen.get(id(run), 0) < self.steps]
        if not awake:
            return
        run = self.source.choice(awake)
        try:
            next(run)
        except StopIteration:
            self.runs.remove(run)

    def freeze(self):
        """Processes stand still, and go on much later without having heard of anything."""
        self.frozen = {id(run): self.steps + self.source.randrange(300) for run in self.runs}

    def start(self, leader):
        self.runs.append(leader.run())

    def kill(self):
        """Somebody dies between two steps; what it sent is still on its way."""
        if self.runs:
            self.runs.pop(self.source.randrange(len(self.runs)))
            self.seen["deaths"] += 1


def state_key(record):
    return SHARE + b"\0" + bytes((record,))


def encode(value):
    return json.dumps(value).encode()


class Leader:
    """One ownership, as the shell does it: take the lanes over, load, settle."""

    def __init__(self, world, *, rounds=6):
        self.world = world
        self.rounds = rounds
        self.books = []
        self.producers = [None] * LANES
        self.epoch = self.written = 0
        self.held = {}
        self.busy = set()

    def run(self):
        self.epoch = self.world.log.claim()
        self.books = [LaneBook(lane, self.epoch) for lane in range(LANES)]
        try:
            for lane in range(LANES):
                yield from self.take_over(lane)
            yield from self.load()
            runs = [self.use(lane) for lane in range(LANES)]
            while runs:
                run = self.world.source.choice(runs)
                try:
                    next(run)
                except StopIteration:
                    runs.remove(run)
                yield
        except Refused:
            self.world.seen["zombies stopped"] += 1

    def again(self, function, *arguments):
        """Ask until there is an answer."""
        while True:
            try:
                return (yield from self.world.call(function, *arguments))
            except Lost:
                continue

    def write(self, entries):
        self.written += 1
        yield from self.again(self.world.log.write, self.epoch, self.written, entries)

    def take_over(self, lane):
        coordinator, book = self.world.lanes[lane], self.books[lane]
        self.producers[lane] = yield from self.again(coordinator.init)
        ledger = yield from self.again(lambda: coordinator.ledger)
        begun = book.under_way
        found = None
        if begun is not None:
            found = yield from self.resolve(book, begun, ledger)
        book.taken_over([kept.row for kept in rows_in(self.world.log.table.items())], ledger)
        return found

    def resolve(self, book, begun, ledger):
        found = fate(begun.number, ledger)
        self.world.seen[f"resolved as {found.value}"] += 1
        if found is Fate.TAKEN:
            raise Refused("taken")
        (book.committed if found is Fate.COMMITTED else book.undone)()
        yield
        return found

    def load(self):
        """Load the log: apply committed rows before any record is handed out."""
        table = dict(self.world.log.table)
        kept = rows_in(sorted(table.items()))
        fates = decide(kept, {book.lane: book.ledger for book in self.books})
        writes = []
        for one in kept:
            if fates[one.row] is Fate.COMMITTED:
                writes += self.changes(one.prepared, table)
                self.world.seen["made by a successor"] += 1
            else:
                self.world.seen["dropped by a successor"] += 1
            writes.append((one.row.key, None))
        yield from self.write(writes)
        for record in range(RECORDS):
            kind, value = json.loads(self.world.log.table[state_key(record)])
            if kind == "A":
                self.held[record] = value + 1
                yield from self.write([(state_key(record), encode(["A", value + 1]))])

    def changes(self, prepared, table):
        """Made where records are acquired still, in that same delivery."""
        settle, records = json.loads(prepared.update)
        return [
            (state_key(record), encode(["D", settle]))
            for record, count in records
            if json.loads(table[state_key(record)]) == ["A", count]
        ]

    def use(self, lane):
        for _ in range(self.rounds):
            free = [record for record in self.held if record not in self.busy]
            if not free:
                return
            records = self.world.source.sample(free, min(len(free), self.world.source.choice([1, 2])))
            self.busy.update(records)
            yield from self.settle(lane, records)
            self.busy.difference_update(records)

    def settle(self, lane, records):
        """Each record a settle of its own, in one transaction."""
        book, world = self.books[lane], self.world
        settles = []
        for record in records:
            world.settles += 1
            settles.append((world.settles, record, self.held[record]))
        prepared = [Prepared(encode([settle, [[record, count]]])) for settle, record, count in settles]
        begun = book.begin([(SHARE, one) for one in prepared])
        outputs = [(settle, record) for settle, record, _ in settles]
        committed = yield from self.carry(lane, begun, outputs)
        for settle, *_ in settles:
            world.told[settle] = committed
        if not committed:
            return
        for record in records:
            del self.held[record]
        for row, one in zip(begun.rows, prepared, strict=True):  # each with the next write of its own
            yield
            yield from self.write([*self.changes(one, world.log.table), (row.key, None)])

    def carry(self, lane, begun, outputs):
        book, world, coordinator = self.books[lane], self.world, self.world.lanes[lane]
        steps = [
            lambda: self.write(begun.entries),
            lambda: world.call(coordinator.send, self.producers[lane], begun.number, outputs),
        ]
        world.source.shuffle(steps)
        try:
            for step in steps:
                yield from step()
            if world.source.random() < 0.1:
                raise Lost  # an output partition gives no answer
            book.prepared()
        except (Lost, Refused) as error:
            book.undone()
            if isinstance(error, Refused) and str(error) == "not led":
                raise
            yield from self.take_over(lane)
            return False
        try:
            yield from world.call(coordinator.end, self.producers[lane])
        except (Lost, Refused):
            return (yield from self.take_over(lane)) is Fate.COMMITTED
        book.committed()
        return True
