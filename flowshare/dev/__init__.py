"""Throw-away Kafka brokers, to try flowshare out; no worker needs them.

`broker` starts and ends a Kafka, in a container (`by_docker`) or from its `jars` (`by_jars`, with `java`), and has the
one of `flowshare dev up`. An app's tests need none: `flowshare.testing` has a log in memory.
"""

from __future__ import annotations

import os
from pathlib import Path


class DevFailure(Exception):
    """A broker cannot be had, started or ended. The text says what to do, and shows the end of its log."""


def cache_dir() -> Path:
    """flowshare's directory under XDG_CACHE_HOME (default ~/.cache); made when it is not there. Raises: DevFailure."""
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "flowshare"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DevFailure(
            f"{folder} cannot be made ({error.strerror}): set XDG_CACHE_HOME to a place to write to"
        ) from error
    return folder
