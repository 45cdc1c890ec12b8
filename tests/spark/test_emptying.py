"""A run that empties the backlog, while others hold records and the group is away for a while."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from flowshare.client.errors import ConnectionLost
from flowshare.spark.source import microbatches, progress
from flowshare.spark.source.microbatches import AWAY_S, MicroBatches
from flowshare.spark.source.options import SourceOptions
from flowshare.spark.source.progress import BacklogEnd
from flowshare.spark.source.ranges import Offset, Range

BEGUN_S = 1_000.0
RECORDS = Range("t", 0, 0, 9, 2)


@dataclass
class World:
    """A group that is not reached at times, and whose records others hold until `free_s`; times since the begin."""

    free_s: float
    away: tuple[tuple[float, float], ...] = ()
    lock_s: float = 30.0
    now_s: float = BEGUN_S
    refused: bool = False
    member_id: str = "m"
    topics: dict[str, str] = field(default_factory=lambda: {"t": "id"})

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    @property
    def facts(self) -> Any:
        return SimpleNamespace(endless=True)

    def acquire(self, _records_max: int, _wait_s: float) -> list[Range]:
        return [RECORDS] if self._reached() >= self.free_s else []

    def ask(self, question: Any, *_: Any) -> Any:
        self._reached()
        return 10 if question is progress.left else {}

    def _reached(self) -> float:
        self.now_s += 0.5
        since_s = self.now_s - BEGUN_S
        if any(first <= since_s < last for first, last in self.away):
            raise ConnectionLost("away")
        return since_s


class Accepts:
    """No accepts are owed."""

    pending = False

    def settle(self, *_: Any) -> None: ...
    def begin(self) -> None: ...
    def prune(self, _starts: Any) -> None: ...

    def meet(self, _topics: Any) -> list[str]:
        return []

    def swallow(self, got: list[Range]) -> list[Range]:
        return got

    def ranges(self) -> tuple[Range, ...]:
        return ()


def tried(monkeypatch: pytest.MonkeyPatch, world: World) -> list[Range]:
    """The ranges of the run's next batch; its clock is the world's."""
    monkeypatch.setattr(microbatches, "time", world)
    batches: Any = MicroBatches(SourceOptions.parse({"broker": "kafka://h:1", "group": "g", "topics": "t"}))
    batches._accepts, batches._backlog, batches._restored = Accepts(), BacklogEnd({("t", 0): 10}), True
    batches._prune_s = 1e9
    return list(batches._tried(world, Offset(member="m")))


def test_records_that_became_free_while_the_group_was_away_are_read(monkeypatch):
    assert tried(monkeypatch, World(free_s=30, away=((5, 50),))) == [RECORDS]


def test_short_troubles_with_answers_between_them_fail_no_run(monkeypatch):
    away = tuple((at, at + 1) for at in range(5, 85, 10))
    assert tried(monkeypatch, World(free_s=90, lock_s=120, away=away)) == [RECORDS]


def test_a_group_that_stays_away_fails_the_run(monkeypatch):
    world = World(free_s=0, away=((0, 1e9),))
    with pytest.raises(ConnectionLost):
        tried(monkeypatch, world)
    assert AWAY_S <= world.now_s - BEGUN_S < AWAY_S + 5


def test_a_run_ends_when_others_hold_the_records_for_longer_than_their_locks_last(monkeypatch):
    assert tried(monkeypatch, World(free_s=1e9)) == []


def test_troubles_that_come_again_and_again_keep_no_run_from_its_end(monkeypatch):
    away = tuple((at, at + 1) for at in range(5, 3_600, 20))
    world = World(free_s=1e9, away=away)
    assert tried(monkeypatch, world) == []
    assert world.now_s - BEGUN_S < 120


def test_a_group_that_answers_but_whose_records_cannot_be_acquired_fails_the_run(monkeypatch):
    world = World(free_s=0)

    def away(*_: object) -> list[Range]:
        raise ConnectionLost("the partition's leader is away")

    monkeypatch.setattr(World, "acquire", away)
    with pytest.raises(ConnectionLost):
        tried(monkeypatch, world)
    assert AWAY_S <= world.now_s - BEGUN_S < AWAY_S + 5
