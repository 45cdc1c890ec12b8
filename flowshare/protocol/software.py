"""What flowshare's own clients say of themselves in ApiVersions (KIP-511): its name, its release, and in the process of
a fleet's worker that one's node id. The coordinator of a group so knows which members are gone with a worker.

>>> version("0.1.0", 17)
'0.1.0-worker.17'
>>> worker_of("0.1.0-worker.17"), worker_of("0.1.0")
(17, None)
"""

from __future__ import annotations

import re
from typing import Final

OWN_SOFTWARE: Final = "flowshare"
"""The name; its servers answer it as soon as they can, others in the order of the requests."""
_WORKER: Final = re.compile(r".*-worker\.([0-9]{1,10})", re.ASCII)


def version(release: str, worker: int | None) -> str:
    """The release, with the node id of the worker in whose process the client lives."""
    return release if worker is None else f"{release}-worker.{worker}"


def worker_of(told: str) -> int | None:
    """The node id in a version; None: there is none."""
    found = _WORKER.fullmatch(told)
    return None if found is None else int(found[1])
