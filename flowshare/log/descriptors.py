"""Who may have how many of the process's descriptors: the store its files, listeners their connections.

The store opens files while it works, and one that it does not get is a write that fails. So it has a bound that it
keeps, a reserve is for everything else in the process, and a listener takes at most what is left.

| may be open (`ulimit -n`) | store | reserve | connections |
|---------------------------|-------|---------|-------------|
| 160                       | 40    | 40      | 80          |
| 1,024                     | 256   | 256     | 512         |
| 20,000                    | 512   | 256     | 19,232      |
"""

from __future__ import annotations

from typing import Final

STORE_MAX: Final = 512
"""Files that a store keeps open; it closes those that it used longest ago."""
STORE_MIN: Final = 32
RESERVE_MAX: Final = 256
"""For everything else: threads, pipes, connections to others, files that are being written."""
PART: Final = 4
"""Where there are few, the store and the reserve have this part each."""


def store_files(limit: int | None) -> int:
    """Files that the store may keep open of `limit` in all; None: there is no limit."""
    return STORE_MAX if limit is None else max(min(STORE_MAX, limit // PART), STORE_MIN)


def connections(limit: int | None, wanted: int) -> int:
    """Of `wanted` connections those that `limit` descriptors leave, at least one; None: there is no limit."""
    if limit is None:
        return wanted
    return max(min(wanted, limit - store_files(limit) - min(RESERVE_MAX, limit // PART)), 1)


def limit_now() -> int | None:
    """Descriptors that this process may have; None: as many as it likes, or the system does not say."""
    try:
        import resource
    except ImportError:  # not there on Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def raise_limit(wanted_connections: int) -> None:
    """Let this process have descriptors for so many connections, as far as the system allows it to itself."""
    try:
        import resource
    except ImportError:  # not there on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted_connections + STORE_MAX + RESERVE_MAX
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
