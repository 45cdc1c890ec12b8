"""Runs scenarios on subjects, and proves itself: a scenario with one expectation flipped must fail at that step.

A subject is anything with `perform(step)` and `close()`; how it does the step is its own business. The steps of one
scenario run in order on a fresh subject; the first wrong outcome ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tests.scenarios.composite import COMPOSITES
from tests.scenarios.language import BadStep, Outcome, Scenario, Step, flips


class Subject(Protocol):
    """Interface of the subject that a scenario runs on."""

    async def perform(self, step: Step) -> Outcome:
        """Do one step. Raises: BadStep when the operation is unknown here."""
        ...

    async def close(self) -> None:
        """Let go of everything."""


SubjectFactory = Callable[[Scenario], "Subject"]
Factories = Mapping[str, SubjectFactory]


@dataclass(frozen=True, slots=True)
class Failure:
    """A step whose outcome was wrong."""

    step: int
    message: str


async def run_steps(subject: Subject, steps: Sequence[Step]) -> Failure | None:
    """Run the steps in order; the first wrong outcome, or None."""
    for index, step in enumerate(steps):
        composite = COMPOSITES.get(step.operation)
        outcome = await (subject.perform(step) if composite is None else composite(subject.perform, step))
        wrong = step.check(outcome)
        if wrong is not None:
            return Failure(index, wrong)
    return None


def run(scenario: Scenario, factory: SubjectFactory, steps: Sequence[Step] | None = None) -> Failure | None:
    """Run one scenario on a fresh subject in a fresh event loop."""

    async def main() -> Failure | None:
        subject = factory(scenario)
        try:
            return await run_steps(subject, scenario.steps() if steps is None else steps)
        finally:
            await subject.close()

    with asyncio.Runner(loop_factory=getattr(factory, "new_loop", None)) as loop:
        return loop.run(main())


def attempt(scenario: Scenario, factory: SubjectFactory) -> Failure | None:
    """As `run`; an exception out of the subject is a failure too."""
    try:
        return run(scenario, factory)
    except Exception as error:  # noqa: BLE001  a report goes on
        return Failure(-1, f"{type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class Flip:
    """One flipped expectation and what came of it. `caught`: the runner went red at exactly that step."""

    scenario: str
    subject: str
    text: str
    caught: bool


def flip_all(scenario: Scenario, subject: str, factory: SubjectFactory) -> Iterator[Flip]:
    """Run the scenario once for every way to make one of its expectations wrong."""
    steps = scenario.steps()
    for index, step in enumerate(steps):
        for wrong in flips(step):
            changed = (*steps[:index], wrong, *steps[index + 1 :])
            failure = run(scenario, factory, changed)
            yield Flip(scenario.id, subject, wrong.text, failure is not None and failure.step == index)


def flip_last(scenario: Scenario, subject: str, factory: SubjectFactory) -> Iterator[Flip]:
    """Run the scenario once, with its last expectation made wrong: cheap, where the same steps are proven elsewhere."""
    steps = scenario.steps()
    index, step = [(index, step) for index, step in enumerate(steps) if step.expected][-1]
    wrong = next(flips(step))
    failure = run(scenario, factory, (*steps[:index], wrong, *steps[index + 1 :]))
    yield Flip(scenario.id, subject, wrong.text, failure is not None and failure.step == index)


def expectations(scenario: Scenario) -> int:
    """How many steps of the scenario say what must come of them."""
    return sum(1 for step in scenario.steps() if step.expected)


def subject_factories() -> Factories:
    """The subjects by name."""
    from tests.scenarios.core import CoreSubject
    from tests.scenarios.server import ServerSubject
    from tests.scenarios.server_tcp import TcpSubject

    return {"core": CoreSubject, "server": ServerSubject, "tcp": TcpSubject}


__all__ = [
    "BadStep",
    "Factories",
    "Failure",
    "Flip",
    "Outcome",
    "Subject",
    "SubjectFactory",
    "attempt",
    "expectations",
    "flip_all",
    "flip_last",
    "run",
    "run_steps",
    "subject_factories",
]
