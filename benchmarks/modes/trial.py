"""One arm at work on one topic: its processes, what they noted, and how long one waits for it."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from benchmarks.modes import journal
from benchmarks.modes import members as members_module
from benchmarks.modes.journal import Event, Kind
from benchmarks.modes.places import Broken
from benchmarks.modes.work import NO_OP, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.modes.arms import Arm
    from benchmarks.modes.places import Sending, Site

LIMIT_S = 30.0
LEASE_S, RETRY_S = 30.0, 100.0
LOOK_S = 0.02


class Trial:
    """A topic of its own, and an arm's processes on it. Used as a context.

    records: how many there are before anybody reads; more are sent. room: how many there will be. crews: processes,
    each with `members` members.
    """

    def __init__(
        self,
        site: Site,
        arm: Arm,
        *,
        work: Work = NO_OP,
        records: int = 0,
        room: int = 0,
        keys: int = 1_000,
        members: int = 1,
        crews: int = 1,
        concurrency: int = 100,
        lease_s: float = LEASE_S,
        retry_s: float = RETRY_S,
    ) -> None:
        self.arm, self.work, self.keys = arm, work, keys
        self.members, self.crews = members, crews
        self.concurrency = concurrency if arm.concurrent else 1
        self.records = records
        self._site = site
        self._room = max(room, records)
        self._times = {"lease_s": lease_s, "retry_s": retry_s}
        self._running: list[members_module.Running] = []
        self._sending: list[Sending] = []
        self._readers: list[journal.Reader] = []
        self._read: list[int] = []
        self.events: list[Event] = []
        self.ended: set[int] = set()
        self.begun_at = 0.0

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="flowshare-trial-"))
        try:
            self.place = self._site.open(self.arm, **self._times)
            self._site.fill(self.place, self.records, self.keys)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for sending in self._sending:
            sending.stop()
        for process in self._running:
            process.kill()
        for reader in self._readers:
            reader.close()
        if hasattr(self, "place"):
            self._site.close(self.place)
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- processes --------------------------------------------------------------------------------------------------

    def start(self, crews: int | None = None) -> None:
        """Start the processes, or so many more of them."""
        self.begun_at = time.monotonic()
        for _ in range(crews or self.crews):
            number = len(self._running)
            file = self._folder / f"journal-{number}"
            journal.create(file, 6 * self._room + 1_000)
            crew = members_module.Crew(
                arm=self.arm,
                place=self.place,
                work=self.work,
                journal=file,
                members=self.members,
                first=number * self.members,
                concurrency=self.concurrency,
            )
            self._readers.append(journal.Reader(file))
            self._read.append(0)
            self._running.append(members_module.start(crew, self._folder / "log"))

    def kill(self, number: int) -> float:
        """End a process as `kill -9` does; when."""
        at = time.monotonic()
        self._running[number].kill()
        return at

    def send(self, rate: float, records: int) -> Sending:
        """So many more records, one by one."""
        sending = self._site.send(self.place, rate, self.records, records, self.keys)
        self.records += records
        self._sending.append(sending)
        return sending

    def hurry(self) -> None:
        """Handlers sleep no more."""
        for reader in self._readers:
            reader.hurry()

    def bytes_kept(self) -> int:
        """Bytes of what is kept beside the records."""
        return self._site.bytes_kept(self.place)

    def outputs(self) -> dict[int, int]:
        """How often each record is in the sink."""
        return self._site.outputs(self.place)

    # --- what they noted --------------------------------------------------------------------------------------------

    def look(self) -> list[Event]:
        """All that was noted, as far as it is there, sorted by time."""
        new: list[Event] = []
        for number, reader in enumerate(self._readers):
            found = reader.events(self._read[number])
            self._read[number] += len(found)
            new += found
        if new:
            self.events = sorted([*self.events, *new])
            self.ended.update(one.record for one in new if one.kind == Kind.ENDED)
        return self.events

    def wait(self, what: str, until: Callable[[], bool], limit_s: float = LIMIT_S) -> float:
        """Wait for something; when it was seen. Raises: Broken."""
        deadline_s = time.monotonic() + limit_s
        while not until():
            self._check(what)
            if time.monotonic() >= deadline_s:
                self.look()
                raise Broken(f"{what}: not within {limit_s:g} s ({len(self.ended)} of {self.records} records ended)")
            time.sleep(LOOK_S)
        return time.monotonic()

    def wait_first(self, limit_s: float = LIMIT_S) -> float:
        """Until a record was noted; seconds since the start."""
        self.wait("the first record", lambda: any(reader.count() for reader in self._readers), limit_s)
        return self.look()[0].at - self.begun_at

    def wait_members(self, wanted: int, limit_s: float) -> int:
        """Until so many members had a record, or it is too late; how many had one."""

        def active() -> int:
            return len({one.member for one in self.look()})

        try:
            self.wait("all members", lambda: active() >= wanted, limit_s)
        except Broken:
            if not active():
                raise
        return active()

    def wait_ended(self, limit_s: float = LIMIT_S) -> None:
        """Until each record was handled. Raises: Broken."""
        least = self.records if self.work.quiet else 2 * self.records

        def over() -> bool:
            if sum(reader.count() for reader in self._readers) < least:
                return False
            self.look()
            return len(self.ended) >= self.records

        self.wait("all records", over, limit_s)

    def _check(self, what: str) -> None:
        if self._running and not any(one.runs for one in self._running):
            said = (self._folder / "log").read_text(errors="replace") if (self._folder / "log").exists() else ""
            raise Broken(f"{what}: its processes have ended: {said.strip()[-300:]}")
