"""A process with one worker of a fleet that leads, for tests that reach it over sockets.

`python -m tests.fleet.serving BROKER_URL` prints `listening on host:port`, then a line `serves 0,3` whenever the slots
that it serves change. SIGTERM: it leaves in order, and prints `left`.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys

from flowshare.backend.fleet import WorkersBackend
from flowshare.backend.url import parse_broker

LOOK_S = 0.05


async def main(url: str) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    backend = WorkersBackend(parse_broker(url))
    await backend.start()
    assert backend.worker is not None
    print(f"listening on {backend.bootstrap}", flush=True)
    shown: frozenset[int] | None = None
    while not ended.is_set():
        if backend.worker.served != shown:
            shown = backend.worker.served
            print("serves", ",".join(map(str, sorted(shown))), flush=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), LOOK_S)
    await backend.close()
    print("left", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
