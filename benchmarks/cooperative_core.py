"""Speed of the core of cooperative groups: one small commit, with few and with many committed ranges in the partition.

    python benchmarks/cooperative_core.py [--runs N]

A commit is of one offset in the middle of a gap, which makes a range more, or of one beside a range, which makes it
longer; it is decided, its mutations are made, and it is taken back outside of the measured time. `partition` is the
same through `CooperativePartition`: the claim is looked up, too. Seconds are CPU seconds of this process. Printed are
median and best of the runs, in microseconds a commit. Exits 1 if a claim does not hold.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable

from flowshare.cooperative.offsets import CommittedOffsets
from flowshare.cooperative.partition import CooperativePartition, PartitionState
from flowshare.cooperative.types import WHOLE, CommitEntry, Terms

COUNTS = (1, 1_000, 50_000)
GAP = 4
COMMITS = 500
MOST_US = 20.0


def offsets_of(count: int) -> CommittedOffsets:
    """So many ranges of one offset, in even gaps."""
    return CommittedOffsets(0, [(GAP * (at + 1), GAP * (at + 1) + 1) for at in range(count)], span_max=1_000_000)


def places(count: int, apart: int, seed: int) -> list[int]:
    """Where is committed: `apart` offsets behind the beginning of a range; at most once behind each."""
    chosen = random.Random(seed)
    return [GAP * (chosen.randrange(count) + 1) + apart for _ in range(COMMITS)]


def bare(count: int, apart: int, seed: int) -> float:
    """Microseconds a commit of the committed set by itself."""
    offsets, seconds = offsets_of(count), 0.0
    for place in places(count, apart, seed):
        started = time.process_time()
        change = offsets.commit(((place, place + 1),))
        written = change.mutations
        seconds += time.process_time() - started
        assert written
        offsets.undo(change)
    return seconds / COMMITS * 1e6


def whole(count: int, apart: int, seed: int) -> float:
    """Microseconds a commit through the partition."""
    partition = CooperativePartition(PartitionState.fresh(offsets_of(count)))
    partition.confirm(partition.hold("member-1", 1, 1, WHOLE, 0, terms=Terms()))
    seconds = 0.0
    for place in places(count, apart, seed):
        started = time.process_time()
        decision = partition.commit("member-1", 0, [CommitEntry(WHOLE[0], 1, ((place, place + 1),))], 0)
        seconds += time.process_time() - started
        assert decision.mutations
        partition.roll_back(decision)
    return seconds / COMMITS * 1e6


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9, help="how often each case is measured (default 9)")
    options = parser.parse_args()
    cases: list[tuple[str, Callable[[int, int, int], float], int, int]] = [
        (f"{name}, {what}", measure, count, apart)
        for name, measure in (("commit", bare), ("partition", whole))
        for what, apart in (("a range more", 2), ("a range longer", 1))
        for count in COUNTS
    ]
    samples: list[list[float]] = [[] for _ in cases]
    for run in range(options.runs):
        for taken, (_, measure, count, apart) in zip(samples, cases, strict=True):
            taken.append(measure(count, apart, run))
    held = True
    print(f"cooperative core: median of {options.runs} runs (best), Python {sys.version.split()[0]}")
    for taken, (name, measure, count, _) in zip(samples, cases, strict=True):
        median = statistics.median(taken)
        claim = ""
        if measure is bare:
            held = held and median < MOST_US
            claim = f"  < {MOST_US:.0f} µs: {'yes' if median < MOST_US else 'NO'}"
        print(f"  {name:<32}{count:>7,} ranges{median:>8.1f} µs ({min(taken):.1f}){claim}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
