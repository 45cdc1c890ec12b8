"""A slot of a fleet: a worker's number, and all that the driver knows of the worker that is there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flowshare.spark.control import Message, Peer
from flowshare.spark.task import Ended, WorkerTask


@dataclass(slots=True)
class Slot:
    """One slot; `fleet.py` says what its states are.

    leaving: set when it is to be given up. worker, job: the present run and its Spark job. peer: its connection, while
    there is one. called: whether the run ever had one; attempt: of which of Spark's attempts. fetched: whether its
    agents ever fetched; ready_s: since when. since_s: since when it is in its state or, without a connection, when it
    was heard last. why: how the run before ended. bye: how the present one says that it ends. away: waits for a
    connection that ended to be opened again. giving: takes its members out of their groups.
    """

    number: int
    leaving: asyncio.Event
    task: asyncio.Task[None] | None = None
    worker: WorkerTask | None = None
    job: asyncio.Future[Ended] | None = None
    peer: Peer | None = None
    called: bool = False
    fetched: bool = False
    ready_s: float = 0.0
    attempt: int = -1
    state: str = "waiting"
    since_s: float = field(default_factory=time.monotonic)
    runs: int = 0
    why: str = ""
    problems: Sequence[str] = ()
    bye: Ended | None = None
    away: asyncio.Task[None] | None = None
    giving: asyncio.Task[None] | None = None

    def begin(self, worker: WorkerTask) -> None:
        """A run is about to be submitted."""
        self.stop_waiting()
        self.worker, self.job = worker, None
        self.peer, self.called, self.fetched, self.attempt = None, False, False, -1
        self.problems, self.bye, self.giving = (), None, None
        self.runs += 1
        self.become("waiting")

    def become(self, state: str) -> None:
        """Change the state."""
        self.state = state
        self.since_s = time.monotonic()

    def stop_waiting(self) -> None:
        """Wait no longer for a connection to come back."""
        if self.away is not None:
            self.away.cancel()
            self.away = None

    def send(self, order: Message) -> None:
        """Send an order, if there is a connection."""
        if self.peer is not None:
            self.peer.send(order)

    @property
    def ready(self) -> bool:
        """Whether its agents fetch, as far as is known."""
        return self.state == "ready" and self.peer is not None

    @property
    def unheard_s(self) -> float:
        """Seconds without a connection, of a worker that should have one; 0.0 of any other."""
        lost = self.peer is None and self.state in ("starting", "ready")
        return time.monotonic() - self.since_s if lost else 0.0

    def row(self) -> dict[str, Any]:
        """All of it that can be shown, JSON-ready."""
        who = None if self.peer is None else self.peer.who
        return {
            "worker": self.number,
            "state": "silent" if self.unheard_s else self.state,
            "since_s": round(time.monotonic() - self.since_s, 1),
            "runs": self.runs,
            "host": None if who is None else who.host,
            "pid": None if who is None else who.pid,
            "problems": list(self.problems),
            "ended_before": self.why or None,
        }
