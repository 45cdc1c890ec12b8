"""The record of handler runs and their times, so that a test can ask in which order they ran.

The caller of a handler notes in its `Runner` which records it holds; the test kit records these notes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowshare.agents.handler.delivery import Delivery
from flowshare.agents.handler.order import Header
from flowshare.agents.run.pool import Held, Runner

if TYPE_CHECKING:
    from flowshare.agents.handler.agent import ShareAgent


@dataclass(slots=True, kw_only=True)
class HandlerRun:
    """One call of a handler for one record; a call for a batch gives one `HandlerRun` per record.

    key: the key that orders, as handlers see it: the record's key, or with `order=fs.Header(…)` the header's value;
    None: no key. began, ended: seconds of the harness's clock; ended is None while the handler runs.
    """

    topic: str
    partition: int
    offset: int
    attempt: int
    key: Any
    began: float
    ended: float | None = None
    raw_key: bytes | None = None
    """The bytes of `key`, as they lie in the log."""
    began_step: int = 0
    """Position among all begins and ends of the agent, since time may stand still meanwhile; a batch shares one
    step."""
    ended_step: int | None = None

    @property
    def place(self) -> str:
        """`topic-partition@offset`, with the attempt when it is not the first."""
        attempt = "" if self.attempt == 1 else f" (attempt {self.attempt})"
        return f"{self.topic}-{self.partition}@{self.offset}{attempt}"


def note_runs(agent: ShareAgent, runners: Sequence[Runner], runs: list[HandlerRun], now: Callable[[], float]) -> None:
    """Append to `runs` each handler run that the agent begins from now on, in the order of their begins."""
    order = agent.options.order
    header = order.name if isinstance(order, Header) else None
    running: dict[int, list[HandlerRun]] = {}
    steps = itertools.count()
    slot: Any = vars(Runner)["held"]

    class NotingRunner(Runner):
        """A runner that records its held records."""

        __slots__ = ()

        @property
        def held(self) -> Held | list[Held] | None:
            """Same as the runner's own."""
            found: Held | list[Held] | None = slot.__get__(self)
            return found

        @held.setter
        def held(self, value: Held | list[Held] | None) -> None:
            step = next(steps)
            for run in running.pop(self.index, ()):
                run.ended, run.ended_step = now(), step
            slot.__set__(self, value)
            if value is not None:
                step, held = next(steps), value if isinstance(value, list) else [value]
                begun = running[self.index] = [_run(one, header, now(), step) for one in held]
                runs.extend(begun)

    for runner in runners:
        runner.__class__ = NotingRunner


def _run(held: Held, header: str | None, now_s: float, step: int) -> HandlerRun:
    chunk, record = held
    whole = chunk.whole(record)
    raw = whole.key
    key: Any = raw
    if header is not None:
        raw = key = next((value for name, value in reversed(whole.headers) if name == header), None)
    else:
        try:
            key = Delivery(chunk, record).key
        except Exception:  # noqa: BLE001 - its bytes say enough
            key = raw
    return HandlerRun(
        topic=chunk.topic,
        partition=chunk.partition,
        offset=chunk.place(record.offset),
        attempt=chunk.attempt(record.offset),
        key=key,
        began=now_s,
        raw_key=raw,
        began_step=step,
    )


def is_key(run: HandlerRun, key: Any) -> bool:
    """Tell if a run has this key; a test gives the key as handlers see it, as bytes, or as text."""
    return bool(run.key == key) or run.raw_key == (key.encode() if isinstance(key, str) else key)


def _overlap(one: HandlerRun, later: HandlerRun) -> bool:
    """Tell if the first run had not ended when the later one began; runs of one batch happen in their order in the
    batch."""
    runs = one.ended_step is None or later.began_step < one.ended_step
    return runs and one.began_step != later.began_step


def counted(runs: Sequence[HandlerRun]) -> list[HandlerRun]:
    """Drop runs whose attempt came again: a batch took the record up and did not handle it, or the record was released
    unrun because an earlier one failed."""
    last = {(run.topic, run.partition, run.offset, run.attempt): number for number, run in enumerate(runs)}
    kept = frozenset(last.values())
    return [run for number, run in enumerate(runs) if number in kept]


def disorder(runs: Iterable[HandlerRun]) -> str | None:
    """Describe the first disorder among runs, given in the order in which they began; None: all are in order."""
    of_keys: dict[tuple[str, int, bytes], list[HandlerRun]] = {}
    for run in runs:
        if run.raw_key is not None:
            of_keys.setdefault((run.topic, run.partition, run.raw_key), []).append(run)
    for found in of_keys.values():
        for number, run in enumerate(found):
            began = f"those of this key began in the order {', '.join(str(one.offset) for one in found[: number + 1])}"
            before = max(found[:number], key=lambda one: one.offset, default=run)
            if before.offset > run.offset:
                return f"key {run.key!r}: {run.place} began after {before.place}, which is later in the log; {began}"
            beside = next((one for one in found[:number] if _overlap(one, run)), None)
            if beside is not None:
                return f"key {run.key!r}: {run.place} began while {beside.place} was running; {began}"
    return None
