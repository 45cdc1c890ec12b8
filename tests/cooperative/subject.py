"""The core of cooperative groups as a subject of scenarios: one partition, its store, and a clock that steps set.

Keys are told in eighths of all hashes: `[0,4)` is the lower half. A step is written to the store before its outcome is
told, mutation by mutation; `crash n …` writes the first n of the step only, and loads the partition from the store.

    begin S [a,b)…                      a partition with these ranges; `m` holds all keys (epoch 1), but with free=yes
    commit [a,b)… by=m keys=[0,8) epoch=1 e=0 end=   => s= r= m= e= log=
    hold M [a,b)… g=1 mode=strict       => held=[0,4)M@1,… blocked=[4,8)M1,… taken= superseded=
    sequential, logstart, truncate, reset, lapse, leave, wait ms, restart
    reserve M pid epoch [a,b)… / complete pid epoch commit|abort / park pid [a,b)… g=1 / expire / rebalance g
    open [a,b)                          => free=[a,b)…
    claims                              => held=…, of all members
    assign m n                          => pa=M1[0,4)/M4[4,8) pb=…
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from flowshare.cooperative.assignor import Subscriber, TopicPartition, assign
from flowshare.cooperative.decisions import Decision
from flowshare.cooperative.offsets import CommittedOffsets
from flowshare.cooperative.partition import CooperativePartition, PartitionState
from flowshare.cooperative.pending import StableWait
from flowshare.cooperative.ranges import assigned
from flowshare.cooperative.stored import encode, load
from flowshare.cooperative.types import (
    HASHES,
    CommitEntry,
    DrainMode,
    DropPending,
    DropRange,
    KeyRange,
    Mutation,
    PutPending,
    PutRange,
    PutStable,
    Terms,
)
from flowshare.core_errors import CoreError
from flowshare.protocol.errors import error_code
from tests.scenarios.language import BadStep, Outcome, Scenario, Step

UNIT = HASHES // 8
LEASE_MS = 10_000
DRAIN_MS = 5_000


def pairs(words: Sequence[str]) -> list[tuple[int, int]]:
    """The ranges in words as `[45,48)`, or `[0,100000)step2`: every second one of these."""
    found = []
    for word in words:
        match = re.fullmatch(r"\[(-?\d+),(-?\d+)\)(?:step(\d+))?", word)
        if match is None:
            raise BadStep(f"no range: {word}")
        first, end = int(match[1]), int(match[2])
        if match[3]:
            found += [(at, at + 1) for at in range(first, end, int(match[3]))]
        else:
            found.append((first, end))
    return found


def told(ranges: Sequence[tuple[int, ...]]) -> str:
    """Ranges as a word."""
    return "".join(f"[{one[0]},{one[1]})" for one in ranges) or "none"


def eighths(first: int, end: int) -> str:
    """A range of keys as a word."""
    if first % UNIT or end % UNIT:
        return f"[{first},{end})"
    return f"[{first // UNIT},{end // UNIT})"


def logged(mutations: Sequence[Mutation]) -> str:
    """Return the writes as words."""
    words = []
    for mutation in mutations:
        match mutation:
            case PutRange(first, end, _):
                words.append(f"put[{first},{end})")
            case PutStable(stable, _):
                words.append(f"stable{stable}")
            case DropRange(first):
                words.append(f"del{first}")
            case PutPending(producer_id, _):
                words.append(f"pending{producer_id}")
            case DropPending(producer_id):
                words.append(f"ended{producer_id}")
            case _:
                words.append("table")
    return ",".join(words) or "none"


class CooperativeSubject:
    """Runs steps on the core."""

    def __init__(self, scenario: Scenario) -> None:
        self.now_ms = 0
        self.store: dict[bytes, bytes] = {}
        self.partition = CooperativePartition.new(0)
        self.sequence = 0
        self.crash_after: int | None = None
        self.parked: StableWait[str] = StableWait(waiting_max=2, wait_ms=1_000)
        self.owned: dict[str, dict[TopicPartition, tuple[KeyRange, ...]]] = {}

    async def close(self) -> None:
        """Nothing is open."""

    async def perform(self, step: Step) -> Outcome:
        """Do one step."""
        operation, words = step.operation, list(step.words)
        self.crash_after = None
        if operation == "crash":
            self.crash_after = int(words.pop(0))
            operation = words.pop(0)
        method = getattr(self, f"do_{operation}", None)
        if method is None:
            raise BadStep(f"unknown operation {operation}")
        try:
            return method(words, dict(step.options))
        except CoreError as error:
            return Outcome(f"error {error_code(error).name}", self.fields())

    # -- the store

    def write(self, decision: Decision[Any]) -> str:
        """Write a decision and confirm it; what was written."""
        mutations = decision.mutations[: self.crash_after]
        for mutation in mutations:
            key, value = encode(mutation)
            if value is None:
                self.store.pop(key, None)
            else:
                self.store[key] = value
        if self.crash_after is None:
            self.partition.confirm(decision)
        else:
            self.load()
        return logged(mutations)

    def load(self) -> None:
        """The owner is another process, which knows the store only."""
        loaded = load(self.store.items(), now_ms=self.now_ms)
        assert loaded is not None
        self.partition = CooperativePartition(loaded.state)

    def fields(self, **more: object) -> dict[str, str]:
        """Return the fields that every outcome has."""
        offsets = self.partition.offsets
        count = offsets.count
        known = {
            "s": offsets.stable,
            "r": told(offsets.ranges()) if count < 10 else f"{count}-ranges",
            "m": offsets.furthest,
            "e": offsets.reset_epoch,
        }
        return {name: str(value) for name, value in {**known, **more}.items()}

    # -- committing

    def do_begin(self, words: list[str], options: dict[str, str]) -> Outcome:
        offsets = CommittedOffsets(
            int(words[0]), pairs(words[1:]), ranges_max=int(options.get("ranges", 60_000)), span_max=200_000
        )
        self.partition = CooperativePartition(PartitionState.fresh(offsets))
        if options.get("free") != "yes":
            self.sequence += 1
            hold = self.partition.hold("m", 1, self.sequence, [(0, HASHES)], 0, terms=Terms(lease_ms=600_000))
            self.partition.confirm(hold)
        self.store = {key: value for key, value in map(encode, self.partition.snapshot()) if value is not None}
        return Outcome("ok", self.fields())

    def entries(self, words: list[str], options: dict[str, str]) -> list[CommitEntry]:
        ranges, epoch = pairs(words), int(options.get("epoch", 1))
        first, end = pairs([options.get("keys", "[0,8)")])[0]
        return [CommitEntry(KeyRange(first * UNIT, end * UNIT), epoch, ranges)]

    def do_commit(self, words: list[str], options: dict[str, str]) -> Outcome:
        log_end = int(options["end"]) if "end" in options else None
        decision = self.partition.commit(
            options.get("by", "m"),
            int(options.get("e", self.partition.offsets.reset_epoch)),
            self.entries(words, options),
            self.now_ms,
            log_end=log_end,
        )
        log = self.write(decision)
        return Outcome("ok" if not decision.answer.fenced else "FENCED", self.fields(log=log))

    def do_twice(self, words: list[str], options: dict[str, str]) -> Outcome:
        self.do_commit(words, options)
        return self.do_commit(words, options)

    def do_sequential(self, words: list[str], options: dict[str, str]) -> Outcome:
        decision = self.partition.sequential(int(words[0]), self.now_ms)
        return Outcome("ok", self.fields(log=self.write(decision)))

    def do_logstart(self, words: list[str], options: dict[str, str]) -> Outcome:
        decision = self.partition.move_log_start(int(words[0]), self.now_ms)
        return Outcome("ok", self.fields(log=self.write(decision), lost=decision.answer.lost))

    def do_truncate(self, words: list[str], options: dict[str, str]) -> Outcome:
        return Outcome("ok", self.fields(log=self.write(self.partition.truncate(int(words[0]), self.now_ms))))

    def do_reset(self, words: list[str], options: dict[str, str]) -> Outcome:
        return Outcome("ok", self.fields(log=self.write(self.partition.reset(int(words[0]), self.now_ms))))

    def do_open(self, words: list[str], options: dict[str, str]) -> Outcome:
        (first, end), *_ = pairs(words)
        return Outcome("ok", {"free": told(self.partition.offsets.uncommitted(first, end))})

    def do_restart(self, words: list[str], options: dict[str, str]) -> Outcome:
        self.load()
        return Outcome("ok", self.fields())

    def do_stale(self, words: list[str], options: dict[str, str]) -> Outcome:
        """Entries that were deleted are there again: a loader that is slow reads what is gone since."""
        for first, end in pairs(words):
            key, value = encode(PutRange(first, end, int(options.get("e", 0))))
            assert value is not None
            self.store[key] = value
        return self.do_restart([], {})

    def do_spoil(self, words: list[str], options: dict[str, str]) -> Outcome:
        """The entries of ranges cannot be read."""
        self.store = {key: value if key[:1] != b"\x01" else b"spoilt" for key, value in self.store.items()}
        return self.do_restart([], {})

    def do_delete(self, words: list[str], options: dict[str, str]) -> Outcome:
        """The group is deleted, but for orphans; its name is used again."""
        self.store.clear()
        self.partition = CooperativePartition.new(int(words[0]), reset_epoch=int(options["e"]))
        self.store = {key: value for key, value in map(encode, self.partition.snapshot()) if value is not None}
        return Outcome("ok", self.fields())

    def do_bytes(self, words: list[str], options: dict[str, str]) -> Outcome:
        sizes = [len(key) + len(value) for key, value in self.store.items() if key[:1] == b"\x01"]
        return Outcome("ok", {"bytes": str(sum(sizes)), "ranges": str(len(sizes))})

    # -- holding

    def do_hold(self, words: list[str], options: dict[str, str]) -> Outcome:
        self.sequence += 1
        terms = Terms(lease_ms=LEASE_MS, mode=DrainMode(options.get("mode", "strict")), drain_timeout_ms=DRAIN_MS)
        decision = self.partition.hold(
            words[0],
            int(options.get("g", 1)),
            self.sequence,
            [(first * UNIT, end * UNIT) for first, end in pairs(words[1:])],
            self.now_ms,
            terms=terms,
        )
        self.write(decision)
        answer, counts = decision.answer, self.partition.claims.state.counts
        return Outcome(
            "ok" if not answer.superseded else "SUPERSEDED",
            {
                "held": ",".join(f"{eighths(*one[:2])}@{one.epoch}" for one in answer.held) or "none",
                "blocked": ",".join(f"{eighths(*one[:2])}{one.holder.replace(' ', '-')}" for one in answer.blocked)
                or "none",
                "taken": ",".join(f"{eighths(*one[:2])}{one.member}" for one in answer.taken) or "none",
                "attempts": str(counts.blocked),
                "overlaps": str(counts.taken),
                "s": str(answer.progress.stable),
            },
        )

    def do_claims(self, words: list[str], options: dict[str, str]) -> Outcome:
        claims = self.partition.claims.state.claims
        return Outcome(
            "ok",
            {
                "held": ",".join(f"{eighths(*one[:2])}{one.member}" for one in claims) or "none",
                "unowned": str(self.partition.claims.unowned // UNIT),
            },
        )

    def do_leave(self, words: list[str], options: dict[str, str]) -> Outcome:
        self.write(self.partition.leave(words[0], self.now_ms))
        return self.do_claims([], {})

    def do_wait(self, words: list[str], options: dict[str, str]) -> Outcome:
        self.now_ms += int(words[0])
        self.write(self.partition.lapse(self.now_ms))
        return self.do_claims([], {})

    def do_manual(self, words: list[str], options: dict[str, str]) -> Outcome:
        keys = assigned([(first * UNIT, end * UNIT) for first, end in pairs(words)])
        return Outcome("ok", {"keys": "".join(eighths(*one) for one in keys)})

    # -- transactions

    def do_reserve(self, words: list[str], options: dict[str, str]) -> Outcome:
        member, producer_id, epoch, *ranges = words
        decision = self.partition.reserve(
            member,
            self.partition.offsets.reset_epoch,
            (int(producer_id), int(epoch)),
            self.entries(ranges, options),
            self.now_ms,
        )
        return Outcome("ok", self.fields(log=self.write(decision), p=told(self.partition.pending.ranges())))

    def do_complete(self, words: list[str], options: dict[str, str]) -> Outcome:
        decision = self.partition.complete(int(words[0]), int(words[1]), self.now_ms, committed=words[2] == "commit")
        log = self.write(decision)
        if "g" in options and words[2] == "commit":
            self.parked.park(words[0], decision.answer.ranges, int(options["g"]), self.now_ms)
        released = ",".join(self.parked.release(self.partition.offsets.stable)) or "none"
        pending = told(self.partition.pending.ranges())
        return Outcome("ok", self.fields(log=log, p=pending, released=released, parked=len(self.parked)))

    def do_expire(self, words: list[str], options: dict[str, str]) -> Outcome:
        return Outcome("ok", {"failed": ",".join(self.parked.expire(self.now_ms)) or "none"})

    def do_rebalance(self, words: list[str], options: dict[str, str]) -> Outcome:
        return Outcome("ok", {"failed": ",".join(self.parked.fail_older(int(words[0]))) or "none"})

    def do_release(self, words: list[str], options: dict[str, str]) -> Outcome:
        return Outcome("ok", {"released": ",".join(self.parked.release(self.partition.offsets.stable)) or "none"})

    def do_stable(self, words: list[str], options: dict[str, str]) -> Outcome:
        decision = self.partition.read(ranges=True)
        self.write(decision)
        return Outcome("UNSTABLE" if decision.answer.unstable else "ok", self.fields())

    # -- assigning

    def do_assign(self, words: list[str], options: dict[str, str]) -> Outcome:
        """members partitions, without=M4: as before but for that member; unshared=u: topic `u` is not to be split."""
        names = [f"M{number}" for number in range(1, int(words[0]) + 1) if f"M{number}" != options.get("without")]
        topics = {name: int(words[1]) for name in options.get("topics", "t").split(",")}
        unshared = frozenset(options.get("unshared", "").split(","))
        unwilling = options.get("unwilling", "").split(",")
        members = {
            name: Subscriber(topics=frozenset(topics), shares=name not in unwilling, unshared=unshared)
            for name in names
        }
        self.owned = assign(members, topics, self.owned if options.get("fresh") != "yes" else {})
        found: dict[str, list[tuple[int, str]]] = {}
        for member, parts in self.owned.items():
            for (topic, partition), keys in parts.items():
                name = ("p" if len(topics) == 1 else topic) + "abcd"[partition]
                found.setdefault(name, []).append((keys[0].first, f"{member}{eighths(*keys[0])}"))
        fields = {name: "/".join(word for _, word in sorted(parts)) for name, parts in found.items()}
        counts = [len(found[name]) for name in sorted(found)]
        idle = [name for name in names if not self.owned[name]]
        return Outcome("ok", {**fields, "shares": ",".join(map(str, counts)), "idle": ",".join(idle) or "none"})
