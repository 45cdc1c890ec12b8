"""Shares of the process's file descriptors: the store has its files, listeners their connections.

The store opens files while it works, and a file that it cannot open is a write that fails. So the store has a bound
that it keeps, a reserve is for everything else in the process, and a listener takes at most the rest.

| may be open (`ulimit -n`) | store | reserve | connections |
|---------------------------|-------|---------|-------------|
| 160                       | 40    | 40      | 80          |
| 1,024                     | 256   | 256     | 512         |
| 20,000                    | 512   | 256     | 19,232      |
"""

from __future__ import annotations

from typing import Final

STORE_MAX: Final = 512
"""Most files that a store keeps open; it closes the least recently used ones."""
STORE_MIN: Final = 32
RESERVE_MAX: Final = 256
"""Most descriptors for everything else: threads, pipes, connections to others, files being written."""
PART: Final = 4
"""Divisor: with few descriptors, the store and the reserve have this part each."""


def store_files(limit: int | None) -> int:
    """Return the files that the store may keep open of `limit` in all; None: no limit."""
    return STORE_MAX if limit is None else max(min(STORE_MAX, limit // PART), STORE_MIN)


def connections(limit: int | None, wanted: int) -> int:
    """Return how many of `wanted` connections `limit` descriptors allow, at least one; None: no limit."""
    if limit is None:
        return wanted
    return max(min(wanted, limit - store_files(limit) - min(RESERVE_MAX, limit // PART)), 1)


def limit_now() -> int | None:
    """Return the descriptors that this process may have; None: no limit, or not known."""
    try:
        import resource
    except ImportError:  # not there on Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def raise_limit(wanted_connections: int) -> None:
    """Raise this process's limit of descriptors for so many connections, as far as the system allows."""
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
