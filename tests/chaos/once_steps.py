"""Steps of a settle at which a run may stop one of its workers, to have somebody killed right there.

A worker's app calls `patch` when it is imported: with STEP_FOLDER in its environment it wraps the product's functions
where the steps are, in this process alone. The run lays down a file `armed` that names a step; whoever comes to that
step first takes the file and waits until the run has killed whom it wanted and takes the file `reached-<pid>` away.
Nothing of it is in the product; where a step is there is the table `POINTS`.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tests.chaos.once_judge import AT_LEAST_ONCE, EXACTLY_ONCE

LOOK_S = 0.005
DECIDE = "before decide"
SENDING = "while outputs are written"
WRITTEN = "between write and answer"
ANSWER = "before the answer leaves"
OUTPUTS_WRITTEN = "between outputs and end of transaction"
ENDED = "between end of transaction and settle"
FOLLOWING = "between settle and its state"


class Point(NamedTuple):
    """A function, `module:Class.method`, and whether the step is before it or after it (when it did not raise)."""

    where: str
    when: Literal["before", "after"]
    with_outputs: bool = False
    """True if only calls with outputs count: those whose first argument is not empty."""


SETTLE = "flowshare.server.share.settle:ShareSettling._settle"
ACKNOWLEDGE = "flowshare.server.share.acknowledge:ShareAcknowledging.acknowledge"

POINTS: Mapping[tuple[str, str], Mapping[str, Point]] = {
    ("embedded", EXACTLY_ONCE): {
        DECIDE: Point(SETTLE, "before"),
        WRITTEN: Point("flowshare.log.storage:BrokerStorage.settle", "after", with_outputs=True),
        ANSWER: Point(SETTLE, "after"),
    },
    ("workers", EXACTLY_ONCE): {
        DECIDE: Point(SETTLE, "before"),
        SENDING: Point("flowshare.fleet.state.lane:Lane._count", "before"),
        OUTPUTS_WRITTEN: Point("flowshare.fleet.state.lane:Lane.end", "before"),
        ENDED: Point("flowshare.fleet.state.lane:Lane.end", "after"),
        FOLLOWING: Point("flowshare.fleet.storage:FleetStorage.settle_apart", "after"),
        ANSWER: Point(SETTLE, "after"),
    },
    # What an agent without the promise does at these steps: there the judge has to find duplicates.
    ("embedded", AT_LEAST_ONCE): {
        DECIDE: Point(ACKNOWLEDGE, "before"),
        ANSWER: Point(ACKNOWLEDGE, "after"),
    },
    ("workers", AT_LEAST_ONCE): {
        DECIDE: Point(ACKNOWLEDGE, "before"),
        ANSWER: Point(ACKNOWLEDGE, "after"),
    },
}
"""By backend and promise."""


def steps(backend: str, promise: str) -> list[str]:
    """The names of a backend's steps."""
    return list(POINTS[backend, promise])


class Steps:
    """The run's side: whom it stops at a step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def arm(self, step: str) -> None:
        """The next one who comes to this step stops there."""
        (self._folder / "armed").write_text(step)

    def disarm(self) -> None:
        """Nobody does any more."""
        (self._folder / "armed").unlink(missing_ok=True)

    def reached(self) -> int | None:
        """The process that stopped there."""
        found = next(self._folder.glob("reached-*"), None)
        return None if found is None else int(found.name.partition("-")[2])

    def release(self) -> None:
        """It goes on, if it still can."""
        for found in self._folder.glob("reached-*"):
            found.unlink()


def patch() -> None:
    """Wrap the functions of all steps, of the backend that the environment names. Raises: AttributeError,
    ModuleNotFoundError: one is not where POINTS says."""
    folder = os.environ.get("STEP_FOLDER")
    if not folder:
        return
    for step, point in POINTS[os.environ["STEP_BACKEND"], os.environ["ONCE"]].items():
        owner, name = found(point)
        original = getattr(owner, name)
        # What decorators noted on it, such as which request it handles, goes along.
        setattr(owner, name, functools.wraps(original)(_wrapped(original, step, point, Path(folder))))


def found(point: Point) -> tuple[Any, str]:
    """The class that has the function, and its name there. Raises: AttributeError, ModuleNotFoundError."""
    module, _, path = point.where.partition(":")
    owner: Any = importlib.import_module(module)
    *classes, name = path.split(".")
    for one in classes:
        owner = getattr(owner, one)
    return owner, name


def _wrapped(original: Callable[..., Any], step: str, point: Point, folder: Path) -> Callable[..., Any]:
    def counts(arguments: tuple[Any, ...]) -> bool:
        return not point.with_outputs or bool(arguments[0])

    if not inspect.iscoroutinefunction(original):

        def blocking(self: Any, *arguments: Any, **named: Any) -> Any:
            if point.when == "before" and counts(arguments):
                _stop_blocking(folder, step)
            result = original(self, *arguments, **named)
            if point.when == "after" and counts(arguments):
                _stop_blocking(folder, step)
            return result

        return blocking

    async def waiting(self: Any, *arguments: Any, **named: Any) -> Any:
        if point.when == "before" and counts(arguments):
            await _stop(folder, step)
        result = await original(self, *arguments, **named)
        if point.when == "after" and counts(arguments):
            await _stop(folder, step)
        return result

    return waiting


def _taken(folder: Path, step: str) -> Path | None:
    """The file that says that this process has stopped; None: nobody is to stop at this step, or another one has."""
    armed, mine = folder / "armed", folder / f"reached-{os.getpid()}"
    try:
        if armed.read_text() != step:
            return None
        armed.rename(mine)
    except FileNotFoundError:
        return None
    return mine


async def _stop(folder: Path, step: str) -> None:
    """Only this call waits; whatever else the process does goes on."""
    mine = _taken(folder, step)
    while mine is not None and mine.exists():  # noqa: ASYNC110 - it is another process that takes it away
        await asyncio.sleep(LOOK_S)


def _stop_blocking(folder: Path, step: str) -> None:
    """The whole thread waits, as what is patched does not."""
    mine = _taken(folder, step)
    while mine is not None and mine.exists():
        time.sleep(LOOK_S)
