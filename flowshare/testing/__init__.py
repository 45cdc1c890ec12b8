"""The test kit: run an app on a memory log with a clock that does not wait.

`harness(app)` gives a bus to send, run until idle, move time, inject failures and read outcomes; `run(coroutine)` and
the pytest marker `flowshare` give a whole event loop on virtual time.

Modules: `harness` has the bus and its reports, `runs` the order of handler runs, `clock` and `virtual` the time that
does not pass by itself, `plugin` the marker. The kit is shipped, for tests of apps; flowshare's own tests have more in
`tests/`. A real Kafka for tests is `flowshare.dev`.
"""

from flowshare.testing.clock import LoopTimeClock, ManualClock
from flowshare.testing.harness import AgentReport, Bus, DeadLetter, NotIdle, SentRecord, harness
from flowshare.testing.runs import HandlerRun
from flowshare.testing.virtual import Deadlock, VirtualTimeLoop, run

__all__ = [
    "AgentReport",
    "Bus",
    "DeadLetter",
    "Deadlock",
    "HandlerRun",
    "LoopTimeClock",
    "ManualClock",
    "NotIdle",
    "SentRecord",
    "VirtualTimeLoop",
    "harness",
    "run",
]
