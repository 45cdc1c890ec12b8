"""A group's breaker in real processes that are killed, stopped and started again while it is not closed.

Judged by what handlers wrote: each record is done, none is a dead letter, and while what stands behind the handlers is
broken hardly any is begun.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.processes import Processes
from tests.waiting import blocking_pause

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
RECORDS = 400
LOCK_S = 5
LIMIT_S = 180.0
APP = f"""
import asyncio, os, time
from pathlib import Path
import flowshare as fs

LOG = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
here = Path(os.environ["HERE"])
app = fs.App("limits", broker=os.environ["URL"])

def note(word, delivery):
    os.write(LOG, f"{{word}} {{delivery.offset}} {{delivery.attempt}} {{os.getpid()}} {{time.time()}}\\n".encode())

@app.share_agent(
    "in", concurrency=4, retry=fs.Retry(max_attempts=3, delay=1), drain_timeout=2, lock_duration={LOCK_S},
    breaker=fs.Breaker(0.5, of=20, pause=2, pause_max=4),
)
async def work(value: bytes, delivery: fs.Delivery) -> None:
    note("begin", delivery)
    await asyncio.sleep(0.01)
    while (here / "hangs").exists():
        await asyncio.sleep(0.05)
    if (here / "broken").exists():
        note("fail", delivery)
        raise ConnectionError("it does not answer")
    note("done", delivery)
"""


class Workers(Processes):
    """Three workers, and what stands behind their handlers."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url, HERE=str(folder))
        (folder / "limits_app.py").write_text(APP)

    def mark(self, name: str, *, there: bool) -> None:
        """It is `broken`, or `hangs`, from now on, or no more."""
        if there:
            (self.folder / name).touch()
        else:
            (self.folder / name).unlink()

    def begin(self) -> None:
        """Three workers, half of the records, a downstream that breaks in the other half, and an open breaker."""
        self.send("in", *[b"v"] * (RECORDS // 4))
        for _ in range(3):
            self.cli("worker", "limits_app:app")
            if len(self.started) == 1:
                self.wait(self.ready, "the first one leads", limit_s=LIMIT_S)
        self.wait(lambda: self.ready() and self.done() == RECORDS // 4, "ready", limit_s=LIMIT_S)
        self.mark("broken", there=True)
        self.send("in", *[b"v"] * (RECORDS - RECORDS // 4))
        self.wait(self.is_known, "open, and all know it", limit_s=LIMIT_S)

    def is_known(self) -> bool:
        """True if each worker has heard that the breaker is open, and no handler runs."""
        ended = sum(words[0] in ("fail", "done") for words in self.notes())
        return self.log().count("breaker is open, as") >= len(self.started) and ended == self.begun()

    def done(self) -> int:
        """Records whose handler succeeded."""
        return len({words[1] for words in self.notes() if words[0] == "done"})

    def begun(self) -> int:
        """How often a handler began."""
        return sum(words[0] == "begin" for words in self.notes())

    def end(self, number: signal.Signals, pid: int) -> None:
        """End a worker, and start another one in its place."""
        [worker] = [one for one in self.started if one.pid == pid]
        worker.send_signal(number)
        worker.wait(60)
        self.cli("worker", "limits_app:app")

    def ready(self) -> bool:
        """True if all workers are ready."""
        return self.log().count("flowshare.worker: ready") >= len(self.started)

    def tried(self) -> int:
        """Wait until a worker hangs with what it was given to try; its pid."""
        before = self.begun()
        self.mark("hangs", there=True)
        self.wait(lambda: self.begun() > before, "a try", limit_s=LIMIT_S)
        return int([words for words in self.notes() if words[0] == "begin"][-1][3])

    def mend(self) -> None:
        """Repair the handlers' dependency, wait until all records are done, and check that the outage cost no record
        more than one attempt."""
        self.mark("broken", there=False)
        self.wait(lambda: self.done() == RECORDS, "all done", limit_s=LIMIT_S)
        dead = [words for words in self.notes() if words[0] == "fail" and int(words[2]) > 2]
        assert dead == [], "the outage cost no record more than an attempt"


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """Three of an embedded path; the first one leads."""
    found = Workers(tmp_path, f"embedded://{tmp_path}/path")
    try:
        found.begin()
        yield found
    finally:
        found.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("who", ["leader", "member"])
def test_whoever_ends_while_it_is_open_it_stays_open_and_nothing_is_lost(
    workers: Workers, who: str, number: signal.Signals
) -> None:
    workers.end(number, workers.started[0 if who == "leader" else 2].pid)
    before = workers.begun()
    blocking_pause(8, "nothing is to be handed out, but tries")
    print(f"{workers.begun() - before} begun in 8 s while it was broken")
    assert workers.begun() - before <= 8
    workers.mend()


@pytest.mark.parametrize("who", ["leader", "member that tries", "both"])
def test_a_try_whose_worker_or_leader_is_killed_is_followed_by_another_and_not_lost(workers: Workers, who: str) -> None:
    trying, leader = workers.tried(), workers.started[0].pid
    before = workers.begun()
    for pid in {"leader": [leader], "both": {leader, trying}}.get(who, [trying]):
        workers.end(signal.SIGKILL, pid)
    workers.wait(lambda: workers.begun() > before, "another try", limit_s=LIMIT_S)
    blocking_pause(LOCK_S, "no more than one each lock duration")
    print(f"{workers.begun() - before} tried")
    assert workers.begun() - before <= 3
    workers.mark("hangs", there=False)
    workers.mend()
