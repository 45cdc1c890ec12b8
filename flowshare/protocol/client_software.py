"""The software name and version that flowshare's own clients send in ApiVersions (KIP-511). The version is the release.
A client in the process of a fleet's worker adds the worker's node id; a client of a server on this machine adds its own
process. So the coordinator of a group knows which members are gone with a worker, or with their process.

>>> version("0.1.0", 17)
'0.1.0-worker.17'
>>> worker_of("0.1.0-worker.17"), worker_of("0.1.0")
(17, None)
>>> version("0.1.0", None, (4711, 8899))
'0.1.0-process.4711.8899'
>>> process_of("0.1.0-process.4711.8899"), process_of("0.1.0-worker.17")
((4711, 8899), None)
"""

from __future__ import annotations

import re
from typing import Final

MEANT_FROM: Final = 5
"""The version of ApiVersions that names the meant broker and cluster (KIP-1242). Our clients use it only where both are
known: brokers before Kafka 4.4 do not know it and are then asked twice."""
OWN_SOFTWARE: Final = "flowshare"
"""The name of flowshare's clients; its servers answer them out of order, other clients in the order of the requests."""
_WORKER: Final = re.compile(r".*-worker\.([0-9]{1,10})", re.ASCII)
_PROCESS: Final = re.compile(r".*-process\.([0-9]{1,10})\.([0-9]{1,19})", re.ASCII)


def version(release: str, worker: int | None, process: tuple[int, int] | None = None) -> str:
    """Return the release, with the node id of the worker in the client's process, or with the process's number and
    birth."""
    if process is not None:
        return f"{release}-process.{process[0]}.{process[1]}"
    return release if worker is None else f"{release}-worker.{worker}"


def process_of(told: str) -> tuple[int, int] | None:
    """Return the process in a version; None: none."""
    found = _PROCESS.fullmatch(told)
    return None if found is None else (int(found[1]), int(found[2]))


def worker_of(told: str) -> int | None:
    """Return the node id in a version; None: none."""
    found = _WORKER.fullmatch(told)
    return None if found is None else int(found[1])
