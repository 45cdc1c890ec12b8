"""Speed of the share-partition core: single acknowledgements in random order, and ranges.

    python benchmarks/core.py [--runs N] [--section NAME …]

Every acknowledgement is its own `acknowledge()` and `commit()`; windows are filled outside the measured time. The runs
of all cases are interleaved and seconds are CPU seconds of this process, so that a busy machine disturbs less (on an
idle one they are those of the clock); printed are median and best. Exits 1 if a claim does not hold. A section is a
function in `SECTIONS` that takes the number of runs and returns its lines.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from flowshare.share.partition import SharePartition
from flowshare.share.types import AcknowledgeType, AckRange, AcquireMode, Limits, LogBatch

MEMBER = "member-1"
ACCEPT = bytes([AcknowledgeType.ACCEPT])
RANGE = 500


class Line(NamedTuple):
    """One printed figure; `ok` None: no claim is made about it."""

    name: str
    median: float
    best: float
    unit: str
    ok: bool | None
    claim: str = ""


def open_partition() -> SharePartition:
    """An empty share-partition with room for every case."""
    return SharePartition(start_offset=0, limits=Limits(record_locks_max=1_000_000, window_max=1_000_000))


def acquire(partition: SharePartition, first: int, last: int) -> None:
    """Acquire one log batch."""
    partition.acquire(
        MEMBER,
        mode=AcquireMode.BATCH_OPTIMIZED,
        records_max=last - first + 1,
        batch_size=last - first + 1,
        fetch_offset=first,
        batches=[LogBatch(first, last)],
        now_ms=0,
    )


def acknowledge_all(partition: SharePartition, requests: list[list[AckRange]]) -> float:
    """Acknowledge and commit each request by itself; returns the seconds it took."""
    started = time.process_time()
    for request in requests:
        decision = partition.acknowledge(MEMBER, request, now_ms=0)
        assert decision.update is not None
        partition.commit(decision)
    return time.process_time() - started


def singles_per_second(window: int, total: int) -> float:
    """Accept every offset of full windows one by one, in random order, until `total` offsets are done."""
    chosen, seconds = random.Random(window), 0.0
    for first in range(0, total, window):
        partition = open_partition()
        for offset in range(0, window, RANGE):
            acquire(partition, offset, offset + RANGE - 1)
        offsets = list(range(window))
        chosen.shuffle(offsets)
        seconds += acknowledge_all(partition, [[AckRange(offset, offset, ACCEPT)] for offset in offsets])
        assert partition.start_offset == window, first
    return total / seconds


def ranges_per_second(total: int) -> float:
    """Acquire and accept ranges of 500 with four of them in flight; offsets a second."""
    partition = open_partition()
    started = time.process_time()
    for first in range(0, total, RANGE):
        acquire(partition, first, first + RANGE - 1)
        done = first - 3 * RANGE
        if done >= 0:
            request = [AckRange(done, done + RANGE - 1, ACCEPT)]
            partition.commit(partition.acknowledge(MEMBER, request, now_ms=0))
    seconds = time.process_time() - started
    assert partition.end_offset == total
    return total / seconds


def core(runs: int) -> list[Line]:
    """The three claims about the pure core."""
    small: list[float] = []
    large: list[float] = []
    wide: list[float] = []
    for _ in range(runs):
        small.append(singles_per_second(2_000, 20_000))
        large.append(singles_per_second(20_000, 20_000))
        wide.append(ranges_per_second(1_000_000))
    ratios = [high / low for low, high in zip(small, large, strict=True)]
    ratio = statistics.median(ratios)
    return [
        measured("single acknowledgements, random order, window 2,000", small, "/s", 200_000),
        measured("single acknowledgements, random order, window 20,000", large, "/s", None),
        Line("  … as a share of the window of 2,000", ratio, max(ratios), "", ratio >= 0.8, ">= 0.8"),
        measured("offsets acquired and accepted in ranges of 500", wide, "/s", 2_000_000),
    ]


def measured(name: str, samples: list[float], unit: str, least: int | None) -> Line:
    """Sum up the runs of one case, held against the least it must reach."""
    median = statistics.median(samples)
    claim = f">= {least:,}" if least is not None else ""
    return Line(name, median, max(samples), unit, None if least is None else median >= least, claim)


SECTIONS: dict[str, Callable[[int], list[Line]]] = {"core": core}


def main() -> int:
    """Run the chosen sections and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9, help="how often each case is measured (default 9)")
    parser.add_argument("--section", action="append", choices=sorted(SECTIONS), help="only this one; may be repeated")
    options = parser.parse_args()
    held = True
    for name in options.section or SECTIONS:
        print(f"{name}: median of {options.runs} runs (best), Python {sys.version.split()[0]}")
        for line in SECTIONS[name](options.runs):
            digits = 0 if line.median >= 100 else 2
            verdict = "" if line.ok is None else f"  {line.claim}: {'yes' if line.ok else 'NO'}"
            print(f"  {line.name:<54}{line.median:>12,.{digits}f}{line.unit} ({line.best:,.{digits}f}){verdict}")
            held = held and line.ok is not False
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
