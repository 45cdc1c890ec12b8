"""Runs scenarios beside each other on fleets of workers: most on one, some on fleets that they have for themselves.

by its sockets alone       the fleet of the test run
writes that fail or wait   a fleet of this process, one scenario after the other
stored state, or partitions that have to have one leader (`TOGETHER`)   a fleet with a single slot
settings of the servers    a fleet each
workers that end           processes of its own
"""

from __future__ import annotations

import asyncio

from tests.fleet.processes import FleetProcesses
from tests.scenarios import fleet_differences, runner
from tests.scenarios.fleet import FleetSubject
from tests.scenarios.fleet_local import LocalFleet
from tests.scenarios.fleet_mortal import MortalSubject
from tests.scenarios.kafka_run import AT_ONCE
from tests.scenarios.language import Scenario

LIMIT_S = 120.0
SLOTS = 6
TOGETHER = frozenset({"S22", "A24", "K29"})
"""One fetch or poll is to bring several partitions, or so much of several: then one worker has to lead all of them."""
ENDS = frozenset({"restart", "crash"})
HELD = frozenset({"persister", "settle"})

Case = tuple[str, Scenario]


def kind(name: str, scenario: Scenario) -> str:
    """Return the kind of fleet that a scenario runs on: `shared`, `one slot`, `held`, `mortal`, or its servers'
    settings."""
    operations = {step.operation for step in scenario.steps()}
    if scenario.config:
        return f"config {scenario.config}"
    if operations & ENDS:
        return "mortal"
    if operations & HELD:
        return "held"
    return "one slot" if "reload" in operations or name in TOGETHER else "shared"


async def run_all(fleet: FleetProcesses, chosen: list[Case]) -> list[str]:
    """Run these scenarios, a few at a time, and return the failures."""
    kinds: dict[str, list[Case]] = {}
    for name, scenario in chosen:
        kinds.setdefault(kind(name, scenario), []).append((name, scenario))
    found: list[str] = []
    for what, cases in kinds.items():
        found += await _run_kind(fleet, what, cases)
    return found


async def _run_kind(fleet: FleetProcesses, what: str, cases: list[Case]) -> list[str]:
    kafka = fleet.kafka.addresses[0]
    if what == "shared":
        return await _beside(cases, lambda scenario: FleetSubject(kafka, fleet.addresses, scenario))
    if what == "mortal":
        return await _beside(cases, lambda scenario: MortalSubject(fleet.kafka, scenario), at_once=2)
    config = what.removeprefix("config ") if what.startswith("config ") else ""
    async with LocalFleet(kafka, config, slots=1 if what == "one slot" else SLOTS) as local:
        return await _beside(
            cases,
            lambda scenario: FleetSubject(kafka, local.addresses, scenario, local),
            at_once=AT_ONCE if what == "one slot" else 1,
        )


async def _beside(cases: list[Case], subject: runner.SubjectFactory, *, at_once: int = AT_ONCE) -> list[str]:
    turn = asyncio.Semaphore(at_once)
    found = await asyncio.gather(*(_run(name, scenario, subject, turn) for name, scenario in cases))
    return [message for message in found if message is not None]


async def _run(name: str, scenario: Scenario, make: runner.SubjectFactory, turn: asyncio.Semaphore) -> str | None:
    """Run a scenario, and return its failure; None: there is none."""
    async with turn:
        subject = make(scenario)
        try:
            async with asyncio.timeout(LIMIT_S):
                failure = await runner.run_steps(subject, fleet_differences.on_fleet(name, scenario))
        except Exception as error:  # noqa: BLE001 - the others go on
            failure = runner.Failure(-1, f"{type(error).__name__}: {error}")
        finally:
            await subject.close()
    return None if failure is None else f"{name}: step {failure.step}: {failure.message}"
