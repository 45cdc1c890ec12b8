"""The workloads: each runs one trial of one arm and returns its figures. Numbers as in docs/modes.md."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from benchmarks.modes import judge
from benchmarks.modes.arms import AT_MOST, EXACTLY, WORKERS
from benchmarks.modes.journal import Kind
from benchmarks.modes.places import PARTITIONS, Broken
from benchmarks.modes.trial import Trial
from benchmarks.modes.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.modes.arms import Arm
    from benchmarks.modes.places import Sending, Site

WARM_PART: Final = 0.2
JOIN_S: Final = 15.0
PREFILL: Final = 40
"""Records that say that a group is at work, before others are sent."""
RATE_MOST: Final = 5_000.0
"""Highest even rate, in records a second, of one sender beside broker and members on two processors."""
LEASE_S: Final = 3.0
RETRY_S: Final = 1.0
OUTPUTS_S: Final = 10.0


@dataclass(slots=True)
class Sample:
    """Result of one trial. raw: samples behind the figures. complaints: reasons why the trial does not count."""

    workload: str
    variant: str
    arm: str
    turn: int
    figures: dict[str, float] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Input of a workload. scale: 1, less for a quick try. rates: records a second (W3), by the variant's name."""

    site: Site
    arm: Arm
    variant: str
    scale: float
    rates: Mapping[str, float]


Measure = tuple[dict[str, float], dict[str, Any], list[str]]
"""Figures, raw samples, complaints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """lanes: arms that run side by side; 1 where the processor is what limits them. turns: how often at most. cannot:
    why an arm cannot do a variant of it.
    """

    number: str
    title: str
    measure: Callable[[Case], Measure]
    variants: tuple[str, ...] = ("",)
    lanes: int = 1
    turns: int = 3
    cannot: Callable[[Arm, str], str | None] = lambda *_: None


def _judged(trial: Trial, *, crashed: bool = False) -> list[str]:
    return judge.complaints(trial.arm, trial.look(), trial.records, trial.keys, crashed=crashed)


def _outputs_judged(trial: Trial) -> list[str]:
    """Wait until all outputs of an exactly-once arm can be read, and return the complaints about them."""
    if trial.arm.delivery != EXACTLY:
        return []
    deadline_s = time.monotonic() + OUTPUTS_S
    while len(outputs := trial.outputs()) < trial.records and time.monotonic() < deadline_s:
        time.sleep(0.2)
    return judge.output_complaints(trial.arm, outputs, trial.records)


# --- W1 -----------------------------------------------------------------------------------------------------------


def throughput(case: Case) -> Measure:
    """Handlers that do nothing, on records that are there."""
    with Trial(case.site, case.arm, records=int(case.arm.records * case.scale)) as trial:
        trial.start()
        join = trial.wait_first(JOIN_S)
        trial.wait_ended()
        rate = judge.rate_after(trial.look(), WARM_PART)
        return {"rate": rate, "join": join}, {}, _judged(trial)


# --- W3 -----------------------------------------------------------------------------------------------------------

LATENCY_S: Final = 1.6
COMMON, OWN = "50 % of the slowest", "80 % of its own"


def latency(case: Case) -> Measure:
    """From when a record is due to its handler, at an even rate."""
    figures: dict[str, float] = {}
    raw: dict[str, Any] = {}
    records = int(case.rates[OWN] * LATENCY_S + case.rates[COMMON] * LATENCY_S)
    with Trial(case.site, case.arm, records=PREFILL, room=records + PREFILL, keys=10_000) as trial:
        trial.start()
        trial.wait_first(JOIN_S)
        trial.wait_ended()
        for short, name in (("common", COMMON), ("own", OWN)):
            rate = case.rates[name]
            sending = trial.send(rate, int(rate * LATENCY_S * max(case.scale, 0.5)))
            time.sleep(max(0.0, sending.over - time.monotonic()))
            trial.wait_ended()
            times = _latencies(trial, sending)
            figures |= {f"{short} rate": rate, f"{short} sender late": 1000 * sending.lateness()}
            for label, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0)):
                figures[f"{short} {label}"] = judge.quantile(times, part)
            raw[short] = [round(one, 3) for one in times]
        return figures, raw, _judged(trial)


def _latencies(trial: Trial, sending: Sending) -> list[float]:
    """Milliseconds, sorted, of the records behind the first fifth."""
    ends = judge.first_ends(trial.look())
    counted = sending.records[int(len(sending.records) * WARM_PART) :]
    return sorted(1000 * (ends[record] - sending.due(record)) for record in counted)


# --- W4 -----------------------------------------------------------------------------------------------------------

HEAD_RATE, HEAD_S = 300.0, 3.0
HEAD = Work(sleep_ms=1, slow_every=100, slow_ms=1_000)


def head_of_line(case: Case) -> Measure:
    """4 members, 1,000 keys; 1 of 100 handlers takes a second: how late the others end."""
    room = int(HEAD_RATE * HEAD_S) + PREFILL
    with Trial(case.site, case.arm, work=HEAD, records=PREFILL, room=room, members=4, concurrency=16) as trial:
        trial.start()
        trial.wait_first(JOIN_S)
        trial.wait_ended()
        sending = trial.send(HEAD_RATE, int(HEAD_RATE * HEAD_S))
        time.sleep(max(0.0, sending.over - time.monotonic()))
        trial.wait_ended()
        ends = judge.first_ends(trial.look())
        fast = sorted(1000 * (ends[one] - sending.due(one)) for one in sending.records if not HEAD.slow(one))
        figures = {"p50": judge.quantile(fast, 0.5), "p99": judge.quantile(fast, 0.99), "max": fast[-1]}
        return figures, {"fast": [round(one, 3) for one in fast]}, _judged(trial)


# --- W5 -----------------------------------------------------------------------------------------------------------

MEMBERS = ("1", "2", "4", "8", "16")
BEYOND = Work(sleep_ms=50)
ALONE = 20.0
"""Records a second of one such handler."""
SETTLE_S, IDLE_SETTLE_S, WINDOW_S = 0.5, 3.0, 1.5
"""Where some members stay idle, nobody sees that they have all joined: the others get longer."""
BEYOND_JOIN_S = 8.0


def beyond_partitions(case: Case) -> Measure:
    """So many members, one handler of 50 ms each, on 4 partitions: records a second."""
    members = int(case.variant)
    wanted = members if case.arm.sharing else min(members, PARTITIONS)
    settle_s = SETTLE_S if wanted == members else IDLE_SETTLE_S
    records = int(ALONE * wanted * (BEYOND_JOIN_S + settle_s + WINDOW_S))
    with Trial(case.site, case.arm, work=BEYOND, records=records, members=members, concurrency=1) as trial:
        trial.start()
        trial.wait_first(JOIN_S)
        at_work = trial.wait_members(wanted, BEYOND_JOIN_S)
        join = time.monotonic() - trial.begun_at
        figures = {"rate": _windowed(trial, settle_s, WINDOW_S), "at work": at_work, "join": join}
        figures["speed-up"] = figures["rate"] / ALONE
        return figures, {}, _judged(trial)


def _windowed(trial: Trial, settle_s: float, window_s: float) -> float:
    """Records a second in a window; then the rest is let through. Raises: Broken when records ran out before."""
    time.sleep(settle_s)
    begin = time.monotonic()
    time.sleep(window_s)
    end = time.monotonic()
    trial.look()
    if len(trial.ended) >= trial.records:
        raise Broken("all records were handled before the window was over")
    trial.hurry()
    trial.wait_ended()
    return judge.rate_within(trial.look(), begin, end)


# --- W6 -----------------------------------------------------------------------------------------------------------

CONCURRENCY = ("100", "1000")
INSIDE = Work(sleep_ms=100)
INSIDE_SETTLE_S, INSIDE_WINDOW_S, INSIDE_ALL_S = 1.5, 1.0, 3.6


def inside_one_member(case: Case) -> Measure:
    """One member with so many handlers of 100 ms at once: records a second of the ideal."""
    concurrency = int(case.variant)
    ideal = concurrency / (INSIDE.sleep_ms / 1000)
    records = int(ideal * INSIDE_ALL_S)
    with Trial(case.site, case.arm, work=INSIDE, records=records, keys=10_000, concurrency=concurrency) as trial:
        trial.start()
        trial.wait_first(JOIN_S)
        rate = _windowed(trial, INSIDE_SETTLE_S, INSIDE_WINDOW_S)
        return {"rate": rate, "of ideal": rate / ideal}, {}, _judged(trial)


def _one_at_a_time(arm: Arm, variant: str) -> str | None:
    concerned = variant != IN_ORDER and not arm.concurrent
    return "a plain loop handles one record after the other" if concerned else None


# --- W7 -----------------------------------------------------------------------------------------------------------

FAILING = Work(sleep_ms=1, fail_every=10)
FAILING_RATE, FAILING_S = 200.0, 2.0


def redelivery(case: Case) -> Measure:
    """1 of 10 handlers fails at first; it is to be tried again after a second."""
    count = int(FAILING_RATE * FAILING_S)
    with Trial(case.site, case.arm, work=FAILING, records=4, room=count + 4, retry_s=RETRY_S) as trial:
        trial.start()
        trial.wait_first(JOIN_S)
        sending = trial.send(FAILING_RATE, count)
        time.sleep(max(0.0, sending.over - time.monotonic()))
        if case.arm.delivery == AT_MOST:
            trial.wait("all records", lambda: _begun(trial) >= trial.records)
        else:
            trial.wait_ended()
        events = trial.look()
        begun = sum(one.kind == Kind.BEGUN for one in events)
        figures = {"attempts": begun / trial.records}
        again = judge.redeliveries(events)
        if again:
            figures |= {"again p50": judge.quantile(again, 0.5), "again max": again[-1]}
        figures["failed for good"] = trial.records - len(trial.ended)
        return figures, {"again": [round(one, 4) for one in again]}, _judged(trial) + _outputs_judged(trial)


def _begun(trial: Trial) -> int:
    return len({one.record for one in trial.look() if one.kind == Kind.BEGUN})


# --- W8 -----------------------------------------------------------------------------------------------------------

CRASHING = Work(sleep_ms=5)
CRASH_RATE, CRASH_BEFORE_S = 100.0, 1.0
CRASH_AFTER_S, SLOWER_AFTER_S = 6.0, 14.0
"""Longer where the death is found out by a membership whose session agents cannot set: 10 s, a fleet's as well."""
CRASH_JOIN_TURNS = 10


def crash(case: Case) -> Measure:
    """One of two processes is killed; leases, locks, sessions, redelivery times are 3 s."""
    slower = case.arm.kind in ("kmq", "cooperative") or case.arm.query == WORKERS
    lasts_s = CRASH_BEFORE_S + (SLOWER_AFTER_S if slower else CRASH_AFTER_S)
    room = int(CRASH_RATE * (CRASH_JOIN_TURNS + lasts_s)) + PREFILL
    times = {"lease_s": LEASE_S, "retry_s": LEASE_S}
    with Trial(case.site, case.arm, work=CRASHING, records=PREFILL, room=room, concurrency=16, **times) as trial:
        trial.start(1)
        trial.wait_first(JOIN_S)
        trial.start(1)
        for _ in range(CRASH_JOIN_TURNS):
            warm = trial.send(CRASH_RATE, int(CRASH_RATE))
            time.sleep(max(0.0, warm.over - time.monotonic()))
            if len({one.member for one in trial.look()}) > 1:
                break
        else:
            raise Broken("the second process never got a record")
        sending = trial.send(CRASH_RATE, int(CRASH_RATE * lasts_s))
        time.sleep(max(0.0, sending.due(sending.records[0]) + CRASH_BEFORE_S - time.monotonic()))
        killed_at = trial.kill(1 if case.arm.embedded else 0)
        time.sleep(max(0.0, sending.over - time.monotonic()))
        at_most = case.arm.delivery == AT_MOST
        with suppress(Broken):
            trial.wait_ended(LEASE_S if at_most else 4 * LEASE_S)
        figures = _after_crash(trial, sending, killed_at)
        return figures, {}, _judged(trial, crashed=True) + _outputs_judged(trial)


def _after_crash(trial: Trial, sending: Sending, killed_at: float) -> dict[str, float]:
    events = trial.look()
    ends = judge.first_ends(events)
    late = [ends[one] for one in sending.records if sending.due(one) < killed_at and one in ends]
    return {
        "twice": judge.duplicates(events),
        "lost": sum(one not in ends for one in range(trial.records)),
        "back": judge.back_after(ends, sending.due, sending.records, killed_at),
        "last": max(0.0, max(late, default=killed_at) - killed_at),
    }


# --- W10 ----------------------------------------------------------------------------------------------------------

IN_ORDER, RANDOM = "in order", "random"
ORDERLY, SHUFFLED = Work(sleep_ms=1), Work(jitter_ms=50)
SHUFFLED_CONCURRENCY = 25
WRITTEN = 1_500
STILL_S, STILL_LIMIT_S = 0.7, 6.0
SLOW_COMMIT_S = 5.2
"""parallel-consumer commits every 5 s unless it is told otherwise."""


def bytes_written(case: Case) -> Measure:
    """About 1,000 records a second, handled one by one, or 25 at once that end in any order."""
    work, concurrency = (ORDERLY, 1) if case.variant == IN_ORDER else (SHUFFLED, SHUFFLED_CONCURRENCY)
    count = int(WRITTEN * max(case.scale, 0.5))
    with Trial(case.site, case.arm, work=work, records=count, keys=10_000, concurrency=concurrency) as trial:
        trial.start()
        trial.wait_first(JOIN_S)
        before, done = trial.bytes_kept(), len(trial.ended)
        trial.wait_ended()
        if case.arm.kind == "parallel":
            time.sleep(SLOW_COMMIT_S)
        after = _when_still(trial)
        return {"bytes": (after - before) / (trial.records - done)}, {}, _judged(trial)


def _when_still(trial: Trial) -> int:
    """Bytes when nothing is written any more."""
    limit_s = time.monotonic() + STILL_LIMIT_S
    kept, since = trial.bytes_kept(), time.monotonic()
    while time.monotonic() < min(limit_s, since + STILL_S):
        time.sleep(0.1)
        now = trial.bytes_kept()
        if now != kept:
            kept, since = now, time.monotonic()
    return kept


# --- W13 ----------------------------------------------------------------------------------------------------------

RESTARTING = Work(sleep_ms=10)
UNFINISHED = 100_000
FIRST_LIFE_S = 1.0
DRAIN_S = 60.0
QUIET_S = 1.0


def restart(case: Case) -> Measure:
    """The only process is killed with so many records left, and another one is started."""
    count = int(UNFINISHED * case.scale)
    times = {"lease_s": LEASE_S, "retry_s": LEASE_S}
    with Trial(case.site, case.arm, work=RESTARTING, records=count, keys=10_000, **times) as trial:
        trial.start()
        trial.wait_first(JOIN_S)
        time.sleep(FIRST_LIFE_S)
        trial.kill(0)
        before = len(trial.look())
        trial.start()
        trial.wait("the first record after the restart", lambda: len(trial.look()) > before, DRAIN_S)
        first = next(one.at for one in trial.events if one.at >= trial.begun_at) - trial.begun_at
        trial.hurry()
        _drained(trial)
        figures = {"first": first, "twice": judge.duplicates(trial.look())}
        return figures, {}, _judged(trial, crashed=True)


def _drained(trial: Trial) -> None:
    """Wait until each record was handled; at most once, until none comes any more."""
    if trial.arm.delivery != AT_MOST:
        trial.wait_ended(DRAIN_S)
        return
    seen = -1
    while len(trial.look()) != seen:
        seen = len(trial.events)
        time.sleep(QUIET_S)


WORKLOADS = (
    Workload(number="W1", title="no-op handlers", measure=throughput),
    Workload(number="W3", title="latency at an even rate", measure=latency),
    Workload(number="W4", title="head of line", measure=head_of_line, lanes=2),
    Workload(number="W5", title="members beyond partitions", measure=beyond_partitions, variants=MEMBERS, lanes=4),
    Workload(
        number="W6",
        title="concurrency in one member",
        measure=inside_one_member,
        variants=CONCURRENCY,
        lanes=2,
        cannot=_one_at_a_time,
    ),
    Workload(number="W7", title="redelivery", measure=redelivery, lanes=4),
    Workload(number="W8", title="crash", measure=crash, lanes=4),
    Workload(
        number="W10",
        title="bytes written for acknowledgements",
        measure=bytes_written,
        variants=(IN_ORDER, RANDOM),
        turns=1,
        cannot=_one_at_a_time,
    ),
    Workload(number="W13", title="restart", measure=restart, lanes=4, turns=1),
)


def sampled(workload: Workload, case: Case, turn: int) -> Sample:
    """One trial; what goes wrong in it makes it void."""
    sample = Sample(workload.number, case.variant, case.arm.name, turn)
    try:
        sample.figures, sample.raw, sample.complaints = workload.measure(case)
    except Exception as error:  # noqa: BLE001 - one trial that goes wrong must not end the run
        sample.complaints = [str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"]
    return sample
