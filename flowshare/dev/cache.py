"""Where flowshare keeps what it fetched: in the user's cache directory."""

from __future__ import annotations

import os
from pathlib import Path

from flowshare.dev.failure import DevFailure


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
