"""The process that holds an embedded path, and what its health pages say: for commands that need not open the log."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flowshare.cli.errors import Failure

OWNER_FILE: Final = "owner.json"
LOCK_FILE: Final = "lock"
_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a path. `address` is `host:port` of its health pages, or empty."""

    pid: int
    host: str
    address: str

    def get(self, page: str) -> Any:
        """JSON of one of its pages. Raises: Failure."""
        url = f"http://{self.address}{page}"
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise Failure(f"process {self.pid} answered {error.code} at {url}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise Failure(f"process {self.pid} does not answer at {url}: {reason}") from None


def find(path: Path) -> Holder | None:
    """The running process that holds the embedded path; None when there is none (a file that was left counts not)."""
    try:
        data = json.loads((path / OWNER_FILE).read_bytes())
        holder = Holder(pid=int(data["pid"]), host=str(data.get("host", "")), address=str(data.get("address") or ""))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return holder if _runs(holder) and _locked(path) else None


def _runs(holder: Holder) -> bool:
    if holder.host and holder.host != os.uname().nodename:
        return True  # another machine's process: it cannot be looked at from here
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _locked(path: Path) -> bool:
    """Whether somebody has the path's lock: a process number alone may be another process's by now."""
    import fcntl

    try:
        descriptor = os.open(path / LOCK_FILE, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)  # lets the lock go
    return False
