"""The core as a subject: `SharePartition` and its neighbours driven directly, without server, loop or clock.

What a leader would do around the core is kept to the least: it reads the log from `next_fetch_offset`, writes what the
core decides, and tells the core whether that worked. `persister` says how writes end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flowshare.core_errors import CoreError, InvalidRecordState
from flowshare.protocol.errors import error_code
from flowshare.share.allotment import Allotment
from flowshare.share.heads import KeyedBatch
from flowshare.share.partition import Decision, SharePartition
from flowshare.share.types import AckRange, AcquireMode, Limits, LogBatch, PartitionUpdate, Priority, StateRun
from tests.scenarios import words
from tests.scenarios.composite import ranges
from tests.scenarios.core_groups import CoreGroups
from tests.scenarios.core_state import CoreState
from tests.scenarios.language import BadStep, Outcome, Scenario, Step, parse_step
from tests.scenarios.words import Batch, Place


def _is_true(value: str) -> bool:
    return value == "true"


LIMIT_NAMES: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "lock": ("lock_duration_ms", int),
    "delivery": ("delivery_count_max", int),
    "locks": ("record_locks_max", int),
    "window": ("window_max", int),
    "renew": ("renew_enabled", _is_true),
    "paused": ("paused", _is_true),
    "priority": ("priority", Priority),
}
HEADER = "header:h"


@dataclass(slots=True)
class CoreLog:
    """A log as far as the core sees it: batches by offset, and where it starts."""

    batches: list[Batch] = field(default_factory=list)
    start: int = 0
    end: int = 0

    def append(self, batch: Batch) -> None:
        """Add a batch at its place; offsets left out are holes, and a log that begins later starts there."""
        if not self.batches:
            self.start = batch.first
        self.batches.append(batch)
        self.end = batch.last + 1

    def read(self, offset: int, *, committed: bool) -> list[Batch]:
        """Batches from the one that holds `offset` on; with `committed` not past the first open transaction."""
        found = []
        for batch in self.batches:
            if committed and batch.kind == "o":
                break
            if batch.last >= max(offset, self.start):
                found.append(batch)
        return found

    def keyed(self, offset: int, order: str, *, committed: bool) -> list[KeyedBatch]:
        """The same with the keys of their records, as a group with this order has them."""
        found = []
        for batch in self.read(offset, committed=committed):
            left_out = batch.kind == "c" or (committed and batch.kind == "x")
            offsets = () if left_out else range(batch.first, batch.last + 1)
            found.append(KeyedBatch(batch.first, batch.last, offsets, [_hash(batch, at, order) for at in offsets]))
        return found

    def without_records(self, offset: int, *, committed: bool) -> bool:
        """True if there is no record to hand out at an offset."""
        return not any(offset in (batch.offsets or ()) for batch in self.keyed(offset, "", committed=committed))


def _hash(batch: Batch, offset: int, order: str) -> int:
    """A number for each key; 0: the record has none."""
    letters = batch.headers if order == HEADER else batch.keys
    if not letters:
        return 0 if order == HEADER else 1 << 20 | offset
    letter = letters[offset - batch.first]
    return 0 if letter == words.ABSENT else ord(letter)


@dataclass(slots=True)
class CoreGroup:
    """One group's settings and loaded share-partitions."""

    limits: Limits = field(default_factory=lambda: Limits(window_max=None))
    committed: bool = False
    reset: str = "earliest"
    order: str = ""
    quota: Allotment | None = None
    partitions: dict[Place, SharePartition] = field(default_factory=dict)
    stored: dict[Place, PartitionUpdate] = field(default_factory=dict)


@dataclass(slots=True)
class Held:
    """An acknowledgement whose write is under way."""

    partition: SharePartition
    decision: Decision
    save: Callable[[PartitionUpdate], None]
    outcome: Outcome = field(default_factory=lambda: Outcome("pending"))


class CoreSubject:
    """Runs steps on the core."""

    def __init__(self, scenario: Scenario) -> None:
        self.now_ms = 0
        self.topics = {words.TOPIC: 1}
        self.apart: set[str] = set()
        self.logs: dict[Place, CoreLog] = {}
        self.groups: dict[str, CoreGroup] = {}
        self.persister = "ok"
        self.persister_error = "UNKNOWN_SERVER_ERROR"
        self.held: dict[str, Held] = {}
        self.members = CoreGroups(scenario, self.clock)
        self.parts = (self.members, CoreState())

    def clock(self) -> int:
        """The time that steps have moved to."""
        return self.now_ms

    async def close(self) -> None:
        """Nothing to let go of."""

    async def perform(self, step: Step) -> Outcome:
        """Do one step."""
        for part in (self, *self.parts):
            method = getattr(part, f"do_{step.operation}", None)
            if method is not None:
                return method(step)
        raise BadStep(f"the core knows no step {step.operation!r}")

    # --- what there is ---

    def do_topic(self, step: Step) -> Outcome:
        """`topic name partitions=3 [fetched=no]`; members do not fetch from a topic that is not."""
        name, partitions = step.words[0], int(step.options.get("partitions", "1"))
        if step.options.get("fetched") == "no":
            self.apart.add(name)
            return Outcome()
        self.topics[name] = partitions
        self.members.set_topic(name, partitions)
        return Outcome()

    def do_log(self, step: Step) -> Outcome:
        """`log 0-9 10-14x 1@0-4 [keys=aab-] [headers=xx-y]`: batches at these offsets."""
        for where, batch in words.logged(step):
            self.log(where).append(batch)
        return Outcome()

    def do_transactions(self, step: Step) -> Outcome:
        """`transactions 10 abort_every=5`: that many transactions of one record, each ended by its marker."""
        log, every = self.log(Place(words.TOPIC, 0)), int(step.options.get("abort_every", "0"))
        for number in range(1, int(step.words[0]) + 1):
            kind = "x" if every and number % every == 0 else "k"
            log.append(Batch(log.end, log.end, kind))
            log.append(Batch(log.end, log.end, "c"))
        return Outcome()

    def do_resolve(self, step: Step) -> Outcome:
        """`resolve 5-9k`: the open transaction of this batch is committed (`k`) or aborted (`x`)."""
        for where, ended in words.batches(step.words):
            log = self.log(where)
            log.batches = [
                batch._replace(kind=ended.kind) if batch[:2] == ended[:2] else batch for batch in log.batches
            ]
        return Outcome()

    def do_compact(self, step: Step) -> Outcome:
        """`compact 5-9`: these batches are gone from the log."""
        for where, gone in words.batches(step.words):
            log = self.log(where)
            log.batches = [batch for batch in log.batches if not gone.first <= batch.first <= gone.last]
        return Outcome()

    def do_logstart(self, step: Step) -> Outcome:
        """`logstart 20`: the log starts later; the share-partitions notice at their next fetch."""
        where, start = words.placed(step.words[0])
        self.log(where).start = int(start)
        return Outcome()

    def do_config(self, step: Step) -> Outcome:
        """`config [group] delivery=2 locks=20 lock=15000 isolation=read_committed reset=latest order=key …`."""
        group = self.group(step.words[0] if step.words else words.GROUP)
        for name, value in step.options.items():
            if name in LIMIT_NAMES:
                field_name, read = LIMIT_NAMES[name]
                group.limits = replace(group.limits, **{field_name: read(value)})
            elif name == "dead_letters":
                group.limits = replace(group.limits, dead_letter_on_limit=True, dead_letter_on_reject=True)
            elif name == "isolation":
                group.committed = value == "read_committed"
            elif name == "reset":
                group.reset = value
            elif name == "in_flight":
                group.quota = Allotment(int(value)) if int(value) else None
            elif name == "order":
                group.order = value
                for where, partition in group.partitions.items():
                    self.load(group, where, partition.start_offset, list(partition.state()))
            else:
                raise BadStep(f"the core has no setting {name!r}")
        for partition in group.partitions.values():
            partition.limits = group.limits
            partition.allowance.quota = group.quota
        return Outcome()

    def do_reload(self, step: Step) -> Outcome:
        """`reload 10 15-18A2 20-22R1`: a share-partition as it comes back from storage."""
        group = self.group(words.GROUP)
        where, start = words.placed(step.words[0])
        return self.attempt(lambda: self.load(group, where, int(start), words.runs(step.words[1:])))

    def do_crash(self, step: Step) -> Outcome:
        """The leader is gone; the next one knows only what was written."""
        for group in self.groups.values():
            group.partitions = {}
            for where, update in group.stored.items():
                self.load(group, where, update.start_offset, list(update.runs))
        return Outcome()

    def do_persister(self, step: Step) -> Outcome:
        """`persister ok|fail|hold [error=NAME]`: how writes end from now on."""
        self.persister = step.words[0]
        self.persister_error = step.options.get("error", "UNKNOWN_SERVER_ERROR")
        return Outcome()

    def do_settle(self, step: Step) -> Outcome:
        """`settle ok|fail`: how the writes under way end."""
        for held in self.held.values():
            held.outcome = self.settle(held.partition, held.decision, step.words[0], held.save)
        return Outcome()

    def do_await(self, step: Step) -> Outcome:
        """Return the outcome of a step in the background."""
        return self.held[step.words[0]].outcome

    # --- members ---

    def do_fetch(self, step: Step) -> Outcome:
        """`fetch M1 max=10 batch=2 mode=record_limit log=10-49,50-59`: one acquire on each share-partition.

        `heads=2 chain=3`: in a group with an order begin so many keys at most, each with so many of its records.
        """
        group_id, member_id = words.member(step.words[0])
        group = self.group(group_id)
        budget = int(step.options.get("max", "500"))
        mode = AcquireMode[step.options.get("mode", "batch_optimized").upper()]
        size = int(step.options.get("batch", step.options.get("max", "500")))
        found: dict[Place, str] = {}
        if group.order:
            return self.fetch_by_key(group, member_id, step)
        for where in self.places():
            partition = self.partition(group, where)
            visible, aborted, offset = self.read(group, where, partition, step.options.get("log"))
            if not visible:
                continue
            acquisition = partition.acquire(
                member_id,
                mode=mode,
                records_max=budget,
                batch_size=size,
                fetch_offset=offset,
                batches=visible,
                now_ms=self.now_ms,
                aborted=aborted,
            )
            self.save(group, where, acquisition.update)
            if acquisition.ranges:
                found[where] = words.show_ranges(acquisition.ranges)
                budget -= sum(last - first + 1 for first, last, _ in acquisition.ranges)
            if budget <= 0:
                break
        return Outcome(words.show_by_place(found, alone=self.alone, empty="nothing"))

    def fetch_by_key(self, group: CoreGroup, member_id: str, step: Step) -> Outcome:
        """The same in the order of keys: learn the next keys until enough is free, pick, look for what was picked."""
        budget = int(step.options.get("max", "500"))
        heads = min(int(step.options.get("heads", "0")) or budget, budget)
        found: dict[Place, str] = {}
        came: list[int] = []
        for where in self.places():
            log, partition = self.log(where), self.partition(group, where)
            if partition.start_offset < log.start:
                self.save(group, where, partition.move_log_start(log.start))
            self.learn(group, where, partition, heads)
            if budget <= 0 or not partition.can_acquire():
                if budget > 0 and partition.has_records(log.end):
                    partition.may_acquire(member_id, budget, self.now_ms)  # it waits for a limit from now on
                continue
            picked = partition.pick(
                member_id,
                records_max=budget,
                heads_max=min(heads, budget),
                chain=int(step.options.get("chain", "1")),
                now_ms=self.now_ms,
            )
            offsets = [offset for first, last, _ in picked.ranges for offset in range(first, last + 1)]
            gone = [offset for offset in offsets if log.without_records(offset, committed=group.committed)]
            acquisition = partition.confirm(member_id, picked, missing=gone)
            self.save(group, where, acquisition.update)
            if acquisition.ranges:
                found[where] = words.show_ranges(acquisition.ranges)
                came += [offset for first, last, _ in acquisition.ranges for offset in range(first, last + 1)]
                budget -= picked.size
        main = words.show_by_place(found, alone=self.alone, empty="nothing")
        return Outcome(main, {"records": words.show_offsets(came)})

    def learn(self, group: CoreGroup, where: Place, partition: SharePartition, heads: int) -> None:
        """Learn keys of the log until so many heads are free."""
        log = self.log(where)
        still_open = (batch.first for batch in log.batches if group.committed and batch.kind == "o")
        end = min(still_open, default=log.end)
        while partition.can_acquire() and partition.available_count < heads:
            at = partition.next_place_offset(end)
            if at < 0:
                return
            self.save(group, where, partition.place(log.keyed(at, group.order, committed=group.committed)))
            if partition.next_place_offset(end) == at:
                return

    def do_ack(self, step: Step) -> Outcome:
        """`ack M1 0-4:accept 5-9:release`."""
        group_id, member_id = words.member(step.words[0])
        group = self.group(group_id)
        found = {}
        for where, batches in words.by_place(words.acks(step.words[1:])).items():
            named = [AckRange(ack.first, ack.last, ack.types, ack.delay_ms, ack.unrun) for ack in batches]
            partition = self.partition(group, where)
            try:
                decision = partition.acknowledge(member_id, named, now_ms=self.now_ms)
            except CoreError as error:
                found[where] = error_code(error).name
                continue
            outcome = self.write(group, where, decision, step.background)
            found[where] = outcome.main
        return Outcome(words.show_by_place(found, alone=self.alone, empty="nothing"))

    def do_share_settle(self, step: Step) -> Outcome:
        """`share_settle M1 0:accept 1:reject +out.0:3 [attempt=2]`: records and their outputs, all or none."""
        group_id, member_id = words.member(step.words[0])
        group = self.group(group_id)
        where, acked, sent = words.settled(step)
        attempt = int(step.options.get("attempt", "1"))
        batches = [AckRange(ack.first, ack.last, ack.types, attempt=attempt) for ack in acked]
        try:
            decision = self.partition(group, where).settle(member_id, batches, now_ms=self.now_ms)
        except InvalidRecordState as error:
            return Outcome(error_code(error).name, {"refused": words.show_spans(error.ranges)})
        except CoreError as error:
            return Outcome(error_code(error).name, {"refused": "none"})
        outcome = self.write(group, where, decision, step.background, sent)
        return Outcome(outcome.main, {"refused": "none"})

    def do_consume(self, step: Step) -> Outcome:
        """`consume M1`: fetch until nothing comes; accept records, acknowledge control records as gaps."""
        control = {batch.first for batch in self.log(Place(words.TOPIC, 0)).batches if batch.kind == "c"}
        records = 0
        while taken := ranges(self.do_fetch(parse_step(f"fetch {step.words[0]}")).main):
            offsets = [offset for first, last, _ in taken for offset in range(first, last + 1)]
            records += sum(offset not in control for offset in offsets)
            said = " ".join(f"{offset}:{'gap' if offset in control else 'accept'}" for offset in offsets)
            answer = self.do_ack(parse_step(f"ack {step.words[0]} {said}"))
            if answer.main != "NONE":
                return answer
        return Outcome("ok", {"records": str(records)})

    def do_close(self, step: Step) -> Outcome:
        """`close M1`: the member's session is closed, what it holds goes back."""
        group_id, member_id = words.member(step.words[0])
        group = self.group(group_id)
        for where, partition in group.partitions.items():
            self.save(group, where, partition.release_member(member_id))
        return Outcome()

    def do_disconnect(self, step: Step) -> Outcome:
        """`disconnect M1`: the member is gone without a word."""
        group_id, member_id = words.member(step.words[0])
        group = self.group(group_id)
        for where, partition in group.partitions.items():
            self.save(group, where, partition.release_member(member_id, died=True))
        return Outcome()

    def do_time(self, step: Step) -> Outcome:
        """`time 15000`: that many milliseconds pass; locks lapse when they are due."""
        until = self.now_ms + int(step.words[0])
        while (due := self.next_deadline()) is not None and due <= until:
            self.now_ms = max(self.now_ms, due)
            self.expire()
        self.now_ms = until
        self.expire()
        return Outcome()

    # --- looking ---

    def do_describe(self, step: Step) -> Outcome:
        """`describe [partition] [group=g]`: start offset, lag, end offset, next fetch, delivery-complete count."""
        group = self.group(step.options.get("group", words.GROUP))
        where = words.place(step.words[0]) if step.words else Place(words.TOPIC, 0)
        partition = self.partition(group, where)
        complete = partition.delivery_complete_count
        figures = {
            "start": partition.start_offset,
            "lag": self.log(where).end - partition.start_offset - complete,
            "end": partition.end_offset,
            "next": partition.next_fetch_offset(),
            "complete": complete,
            "acquired": partition.acquired_count,
            "delayed": partition.delayed_count,
        }
        return Outcome("ok", {name: str(value) for name, value in figures.items()})

    def do_outputs(self, step: Step) -> Outcome:
        """`outputs out [partition=1]`: how many records a topic has."""
        only = step.options.get("partition")
        logs = [log for at, log in self.logs.items() if at.topic == step.words[0] and only in (None, str(at.partition))]
        return Outcome(
            "ok", {"records": str(sum(batch.last - batch.first + 1 for log in logs for batch in log.batches))}
        )

    def do_state(self, step: Step) -> Outcome:
        """`state`: the window's runs."""
        return Outcome(words.show_runs(self.partition(self.group(words.GROUP), Place(words.TOPIC, 0)).state()))

    def do_locks(self, step: Step) -> Outcome:
        """`locks`: who holds what until when."""
        runs = self.partition(self.group(words.GROUP), Place(words.TOPIC, 0)).in_flight()
        return Outcome(
            " ".join(f"{run.first}-{run.last}:{run.member_id}@{run.deadline_ms}" for run in runs) or "nothing"
        )

    def do_archiving(self, step: Step) -> Outcome:
        """`archiving`: what waits for its dead letter."""
        runs = self.partition(self.group(words.GROUP), Place(words.TOPIC, 0)).archiving()
        shown = (f"{run.first}-{run.last}c{run.delivery_count}:{'limit' if run.by_limit else 'reject'}" for run in runs)
        return Outcome(" ".join(shown) or "nothing")

    def do_archived(self, step: Step) -> Outcome:
        """`archived 0-4`: the dead letters of these are written."""
        group, where = self.group(words.GROUP), Place(words.TOPIC, 0)
        self.save(group, where, self.partition(group, where).finish_archiving(*words.span(step.words[0])))
        return Outcome()

    # --- the least of a leader ---

    @property
    def alone(self) -> bool:
        """True if there is only one share-partition."""
        return sum(self.topics.values()) == 1

    def places(self) -> list[Place]:
        """All share-partitions, in order."""
        return [Place(topic, partition) for topic, count in self.topics.items() for partition in range(count)]

    def log(self, where: Place) -> CoreLog:
        """The log of a partition."""
        return self.logs.setdefault(where, CoreLog())

    def group(self, group_id: str) -> CoreGroup:
        """A group by id."""
        return self.groups.setdefault(group_id, CoreGroup())

    def load(self, group: CoreGroup, where: Place, start: int, runs: list[StateRun]) -> Outcome:
        """Make a share-partition from stored state."""
        partition = SharePartition(
            start_offset=start, limits=group.limits, runs=runs, now_ms=self.now_ms, ordered=bool(group.order)
        )
        partition.allowance.quota = group.quota
        group.partitions[where] = partition
        return Outcome()

    def attempt(self, work: Callable[[], Outcome]) -> Outcome:
        """Do it; a core error is an outcome."""
        try:
            return work()
        except CoreError as error:
            return Outcome(f"error {error_code(error).name}")

    def partition(self, group: CoreGroup, where: Place) -> SharePartition:
        """The share-partition, started where the group's reset says."""
        if where not in group.partitions:
            log = self.log(where)
            self.load(group, where, log.end if group.reset == "latest" else log.start, [])
        return group.partitions[where]

    def read(
        self, group: CoreGroup, where: Place, partition: SharePartition, visible: str | None
    ) -> tuple[list[LogBatch], list[LogBatch], int]:
        """Return a fetch's view of the log now: batches, batches of aborted transactions, and the first offset."""
        log = self.log(where)
        if partition.start_offset < log.start:
            self.save(group, where, partition.move_log_start(log.start))
        if not partition.can_acquire():
            return [], [], 0
        offset = partition.next_fetch_offset()
        if visible is not None:
            return [batch.offsets for _, batch in words.batches(visible.split(","))], [], offset
        batches = log.read(offset, committed=group.committed)
        aborted = [batch.offsets for batch in batches if batch.kind == "x"] if group.committed else []
        return [batch.offsets for batch in batches], aborted, offset

    def save(self, group: CoreGroup, where: Place, update: PartitionUpdate | None) -> None:
        """Write an update unless the persister is down: the stored state is what the core says now."""
        if update is None or self.persister == "fail":
            return
        partition = group.partitions[where]
        group.stored[where] = replace(update, runs=partition.state())

    def write(
        self,
        group: CoreGroup,
        where: Place,
        decision: Decision,
        background: str | None,
        sent: Sequence[words.Sent] = (),
    ) -> Outcome:
        """Persist a decision, and outputs in one step with it, the way the persister works now."""
        partition = group.partitions[where]
        if decision.update is None:
            return Outcome("NONE")

        def save(update: PartitionUpdate) -> None:
            self.save(group, where, update)
            for output in sent:
                log = self.log(output.place)
                log.append(Batch(log.end, log.end + output.records - 1))

        if background is not None:
            held = Held(partition, decision, save)
            self.held[background] = held
            return held.outcome
        return self.settle(partition, decision, self.persister, save)

    def settle(
        self, partition: SharePartition, decision: Decision, how: str, save: Callable[[PartitionUpdate], None]
    ) -> Outcome:
        """End a write."""
        if how == "fail":
            partition.abort(decision, now_ms=self.now_ms)
            return Outcome(self.persister_error)
        assert decision.update is not None
        partition.commit(decision)
        save(decision.update)
        return Outcome("NONE")

    def loaded(self) -> list[tuple[CoreGroup, Place, SharePartition]]:
        """Every share-partition there is."""
        return [(group, where, it) for group in self.groups.values() for where, it in group.partitions.items()]

    def next_deadline(self) -> int | None:
        """The earliest lock or delay."""
        due = [
            found for _, _, it in self.loaded() if (found := it.next_deadline_ms()) is not None and found > self.now_ms
        ]
        return min(due, default=None)

    def expire(self) -> None:
        """Let lapsed locks go."""
        for group, where, partition in self.loaded():
            self.save(group, where, partition.lapse(self.now_ms))
