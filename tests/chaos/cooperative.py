"""Chaos of cooperative groups: workers as processes, faults by seed, judged by their handlers' own journals.

    python -m tests.chaos.cooperative [--place embedded|fleet] [--kills 5] [--records 20000] [--seed N] [--runs 1]
                                      [--keep FOLDER]

As `tests.chaos.order`, with an agent of a cooperative group: workers are started, stopped by SIGTERM, killed, and
stopped by SIGSTOP past their lease (the first fault is that), by dice, until so many were killed. Without a place every
second run is a fleet on a real Kafka. The judge is `tests.chaos.judge`: nothing is lost, the records of a key
begin in the log's order, behind what was committed only, so that nothing that comes again comes behind another record
of its key; its handlers do not overlap but for one whose process stood still past its lease; each has a higher fence
than all before it; and what comes again a death explains.

Attempts are not stored in such a group, so each handler that began gets a number of its own there. One rule more:

kept    a record whose handler began before its process was stopped past its lease, and ended afterwards, never began
        again: the commit of who had lost its keys counted. Not judged where the process may have led the group itself,
        as leases are put off while the server stands still, so not in a fleet.

Exit code 0: no run had a violation.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flowshare.backend.base import BackendError
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.errors import ClientError
from flowshare.clock import LoopClock
from tests.chaos.cluster import MortalKafka
from tests.chaos.command import finish, parser_of
from tests.chaos.journal import Turn
from tests.chaos.judge import Fault, turns_in
from tests.chaos.judge import Processes as Known
from tests.chaos.order import SHOWN, Plan, Run, chaos
from tests.chaos.proxy import Wires
from tests.chaos.traffic import opened

EMBEDDED, FLEET = "embedded", "fleet"
BACKENDS = {EMBEDDED: "embedded", FLEET: "workers"}
LEASE_S = 3.0
FROZEN = "frozen past the locks"
KINDS = ("kill", "kill of two", FROZEN, "frozen for a moment", "rolling restart", "join and leave", "guests")
MORE_KINDS = {
    EMBEDDED: ("kill of the leader", "leader frozen past the locks"),
    FLEET: ("cut from each other", "cut from the broker"),
}
DEADLY = {EMBEDDED: ("kill", "kill of two", "kill of the leader"), FLEET: ("kill", "kill of two")}
DEADLY_PART = 0.5
"""About so many of the faults are kills; the last ones all are, where kills lack."""
FAULTS_PER_KILL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativePlan(Plan):
    """One run. kills: of processes, at least."""

    kills: int


class CooperativeRun(Run):
    """One run, on a path, or as a fleet."""

    plan: CooperativePlan
    environment = {"LEASE_S": str(LEASE_S)}  # noqa: RUF012 - read only
    chains = False
    leaderless_s = 20.0
    """A slot's group is led again, and its dead members are given up, within that."""

    def __init__(
        self, plan: CooperativePlan, folder: Path, kafka: MortalKafka | None = None, wires: Wires | None = None
    ) -> None:
        super().__init__(plan, folder, kafka, wires)
        self.place = EMBEDDED if kafka is None else FLEET
        self._led: dict[int, int | None] = {}
        """Who led the path when a fault began, by the place of the fault."""

    def _all_faults(self) -> None:
        kinds = [*KINDS, *MORE_KINDS[self.place]]
        piece = (self.plan.records - self.feed.up_to) // (FAULTS_PER_KILL * max(1, self.plan.kills)) + 1
        while (killed := sum(len(fault.killed) for fault in self.faults)) < self.plan.kills or not self.faults:
            self.feed.up_to = min(self.plan.records, self.feed.up_to + piece)
            few = self.plan.records - self.feed.up_to < piece * (self.plan.kills - killed)
            deadly = few or self.dice.random() < DEADLY_PART
            kind = self.dice.choice(DEADLY[self.place] if deadly else kinds)
            if not self.faults:
                kind = FROZEN  # once at least
            if self.leadership is not None:
                self._led[len(self.faults)] = self.leadership.leader()
            self._one(kind)

    def _lag(self) -> int:
        async def ask() -> int:
            async with opened(self.url) as backend:
                admin = ShareAdmin(lambda: backend.connect("chaos"), clock=LoopClock())
                try:
                    found = await admin.committed_offsets(f"{self.topic}.work")
                finally:
                    await admin.close()
                return self.plan.records - sum(max(0, one.offset) for one in found if one.topic == self.topic)

        try:
            return asyncio.run(ask())
        except (OSError, ClientError, BackendError) as error:
            print(f"  the lag is not known: {error!r}", flush=True)
            return -1

    def _turns(self, processes: Known) -> list[Turn]:
        turns = turns_in(self.journals.lines(), processes)
        self._found = list(turns)
        return numbered(turns)

    def _rejected(self, number: int) -> bool:
        return False

    def _letters(self) -> list[int]:
        return []

    def verdict(self) -> int:
        """As of an order, and what a process that had lost its keys may have committed."""
        violations = super().verdict()
        stopped = [
            fault
            for place, fault in enumerate(self.faults)
            if fault.kind == FROZEN and place in self._led and self._led[place] not in (None, *fault.pids)
        ]
        found = kept(self._found, stopped)
        print(f"stopped past their lease {len(stopped)}  kept {len(found)}", flush=True)
        for one in found[:SHOWN]:
            print(f"  kept: {one}")
        return violations + len(found)


def numbered(turns: Iterable[Turn]) -> list[Turn]:
    """The turns with attempts that grow in the order in which they began."""
    return [replace(turn, attempt=number) for number, turn in enumerate(sorted(turns, key=lambda one: one.begin))]


def kept(turns: Sequence[Turn], stopped: Iterable[Fault]) -> list[Turn]:
    """Turns that ended after their process had been stopped past its lease, of records that nobody began again."""
    begins: dict[tuple[int, int], float] = defaultdict(float)
    for turn in turns:
        begins[turn.partition, turn.offset] = max(begins[turn.partition, turn.offset], turn.begin)
    return [
        turn
        for fault in stopped
        for turn in turns
        if turn.pid in fault.still
        and turn.begin < fault.at
        and turn.decided
        and turn.end >= fault.until
        and begins[turn.partition, turn.offset] <= fault.at
    ]


def plan_of(place: str, *, seed: int, kills: int, records: int) -> CooperativePlan:
    """A run of `chaos`."""
    return CooperativePlan(seed=seed, backend=BACKENDS[place], records=records, lock_s=LEASE_S, kills=kills)


def main() -> None:
    """The command line."""
    parser = parser_of(__doc__, records=20_000)
    parser.add_argument("--place", choices=[EMBEDDED, FLEET], help="Both in turn without it.")
    parser.add_argument("--kills", type=int, default=5, help="Of each run.")
    options = parser.parse_args()
    places = [options.place] if options.place else [EMBEDDED, FLEET]
    plans = [
        plan_of(places[number % len(places)], seed=options.seed + number, kills=options.kills, records=options.records)
        for number in range(options.runs)
    ]
    finish(options, lambda folder: chaos(plans, folder, CooperativeRun))


if __name__ == "__main__":
    main()
