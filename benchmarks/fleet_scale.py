"""How large fleets can be: up to 1,000 workers and 10,000 share-partitions on virtual time.

    python benchmarks/fleet_scale.py [--workers 10,50,100,300,1000] [--slots 32]

The slot groups, keepers, directories, calls and the share group are the real ones (`tests/fleet/scale.py`); Kafka is
our own server in memory, and the slots' logs are memory. Counts and bytes are of the run; CPU times are of this
machine. What it means stands in docs/scale.md.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from flowshare.slots.membership import SlotGroupMember, Told, encode_told
from flowshare.slots.planning import MEMBER_BYTES, plan
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.scale import GroupRun, SlotFleet

CALM_S = 5.0


def row(label: str, *values: object) -> None:
    """One line of a table."""
    print(f"{label:<22}" + "".join(f"{value:>14}" for value in values), flush=True)


def kilo(count: float) -> str:
    """Bytes as kB."""
    return f"{count / 1000:,.0f} kB"


async def phase(fleet: SlotFleet, label: str, act) -> None:
    """Print the cost of an event, until all slots are served as the new assignment says."""
    kafka = fleet.kafka
    kafka.bytes.clear()
    kafka.asked.clear()
    fleet.calls.clear()
    before, began_s = fleet.served(), fleet.clock.monotonic()
    await act()
    await fleet.settled()
    after, took_s = fleet.served(), fleet.clock.monotonic() - began_s
    requests, calls = sum(kafka.asked.values()), sum(fleet.calls.values())
    moved = sum(after[slot] != node for slot, node in before.items())
    row(f"  {label}", moved, f"{took_s:.2f} s", f"{requests:,}", kilo(sum(kafka.bytes.values())), f"{calls:,}")


async def slot_group(clock: LoopTimeClock, workers: int, slots: int) -> dict[int, int]:
    """The life of a fleet; who leads what at the end of its first sharing out."""
    async with SlotFleet(clock, workers=workers, slots=slots) as fleet:
        owners = fleet.served()
        counts = sorted(list(owners.values()).count(worker.place.node_id) for worker in fleet.workers)
        row(f"{workers} workers", "slots moved", "settled in", "to Kafka", "bytes", "calls")
        print(f"  slots a worker {counts[0]}–{counts[-1]}")
        await phase(fleet, f"{CALM_S:g} s of calm", lambda: clock.sleep(CALM_S))
        await phase(fleet, "one joins", fleet.add)
        await phase(fleet, "a leader leaves", fleet.workers[0].leave)
        await phase(fleet, "a leader is killed", fleet.workers[1].kill)
    return owners


def group_record(workers: int, slots: int) -> None:
    """Print the size of the slot group's record in Kafka, the size of one assignment, and the time to plan it."""
    told = [
        SlotGroupMember(
            f"{number:036d}-{number:036d}",
            encode_told(
                "__flowshare_state.shop",
                Told(
                    node_id=number * 2_097_593 % 2**31,
                    host=f"shop-{number}.workers.default.svc.cluster.local",
                    port=9092,
                    claims={slot: 7 for slot in range(slots) if slot % workers == number},
                    assigned=tuple(slot for slot in range(slots) if slot % workers == number),
                    generation=7,
                    stamp=f"{number * 2_097_593 % 2**31} shop-{number}.workers.default.svc.cluster.local:9092 0",
                    key=hashlib.sha256(b"%d" % number).hexdigest()[:32],
                ),
            ),
        )
        for number in range(workers)
    ]
    began_s = time.process_time()
    made = plan(told, topic="__flowshare_state.shop", slots=slots, generation=8)
    took_s = time.process_time() - began_s
    size = sum(MEMBER_BYTES + len(one.metadata) for one in told) + sum(len(data) for _, data in made.assignments)
    each = max(len(data) for _, data in made.assignments)
    print(f"  group's record {kilo(size)}, an assignment {each:,} B, planned in {took_s * 1000:.0f} ms")


def share_group(members: int, owners: dict[int, int]) -> None:
    """One share group of as many members over 10,000 share-partitions."""
    group = GroupRun(members=members)
    joining_s = group.cpu_s
    group.beat_all()
    group.beats = group.moves = group.writes = group.answered = 0
    group.cpu_s = 0.0
    group.beat_all()
    calm = group.beats * 1000 / group.interval_ms, group.cpu_s / group.beats * 1e6
    sizes, leaders = group.shares(), group.leaders(owners)
    began_s = time.process_time()
    record = len(group.group.encode())
    encode_ms = (time.process_time() - began_s) * 1000
    print(
        f"  share group: {min(sizes)}–{max(sizes)} share-partitions a member at {min(leaders)}–{max(leaders)} leaders, "
        f"{calm[0]:,.0f} heartbeats/s of {calm[1]:.0f} µs; all join: {joining_s:.2f} s of CPU"
    )
    for label, act in (("one joins", lambda: group.join(members)), ("one leaves", lambda: group.leave(0))):
        group.moves = group.writes = group.answered = 0
        group.cpu_s = 0.0
        act()
        group.beat_all()
        print(
            f"    {label}: {group.moves} share-partitions move, {group.cpu_s * 1000:.0f} ms of CPU, the group's record "
            f"({kilo(record)}, {encode_ms:.0f} ms) written {group.writes} times, answers {kilo(group.answered)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="10,50,100,300,1000")
    parser.add_argument("--slots", type=int, default=32)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    for workers in map(int, options.workers.split(",")):
        began_s = time.monotonic()
        owners = run(slot_group(LoopTimeClock(), workers, options.slots))
        group_record(workers, options.slots)
        share_group(workers, owners)
        print(f"  ({time.monotonic() - began_s:.0f} s)\n", flush=True)


if __name__ == "__main__":
    main()
