"""The test kit: run an app on a memory log with a clock that does not wait.

`harness(app)` gives a bus to send, run until idle, move time, inject failures and read outcomes; `run(coroutine)` and
the pytest marker `flowshare` give a whole event loop on virtual time.
"""

from flowshare.testing.clock import LoopTimeClock, ManualClock
from flowshare.testing.harness import Bus, NotIdle, harness
from flowshare.testing.report import AgentReport, DeadLetter, SentRecord
from flowshare.testing.virtual import Deadlock, VirtualTimeLoop, run

__all__ = [
    "AgentReport",
    "Bus",
    "DeadLetter",
    "Deadlock",
    "LoopTimeClock",
    "ManualClock",
    "NotIdle",
    "SentRecord",
    "VirtualTimeLoop",
    "harness",
    "run",
]
