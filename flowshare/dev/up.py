"""The one broker of `flowshare dev up`: started once a user, remembered in a file, ended from any other process."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from flowshare.dev.broker import Broker, How, Wanted, start
from flowshare.dev.cache import cache_dir
from flowshare.dev.failure import DevFailure
from flowshare.dev.jars import FETCH_LIMIT_S, VERSION, locked

PORT: Final = 9092
"""Where it listens when no port is named: Kafka's own."""

STATE_FILE: Final = "dev-broker.json"


def current() -> Broker | None:
    """The broker that was started last and not ended; it may have died since (`Broker.runs`). Raises: DevFailure."""
    file = _file()
    try:
        return Broker.from_json(json.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DevFailure(
            f"{file} cannot be read ({error}): remove it, and end its broker by hand if one runs"
        ) from error


def up(
    *, version: str | None = None, port: int | None = None, data: Path | None = None, how: How | None = None
) -> tuple[Broker, bool]:
    """Start the broker unless it runs. Returns it, and whether it was started now.

    None leaves the choice: version 4.3.1, port 9092, a temporary directory, `broker.start`'s way; or what runs already.
    Raises: DevFailure, also when a broker runs that is not the one that is wanted.
    """
    with _alone():
        found = current()
        if found is not None and found.runs:
            _refuse_another(found, version, port, data)
            return found, False
        if found is not None:
            found.end()  # what a broker that died left behind
        wanted = Wanted(version=version or VERSION, port=PORT if port is None else port, data=data)
        broker = start(wanted, tied=False, how=how)
        _write(broker)
        return broker, True


def down() -> Broker | None:
    """End the broker; None when there was none. Only processes that are the very ones that `up` started are ended.

    Raises: DevFailure.
    """
    with _alone():
        found = current()
        if found is not None:
            found.end()
            _file().unlink(missing_ok=True)
        return found


def _refuse_another(found: Broker, version: str | None, port: int | None, data: Path | None) -> None:
    """Raises: DevFailure."""
    other = [
        f"{name} {there}, not {asked}"
        for name, there, asked in (
            ("version", found.version, version),
            ("port", int(found.addresses[0].rpartition(":")[2]), port or None),
            ("data", found.data if found.keep else "temporary", data.absolute() if data is not None else None),
        )
        if asked is not None and there != asked
    ]
    if other:
        raise DevFailure(
            f"a broker runs at {found.url} with {'; '.join(other)}: end it first with `flowshare dev down`"
        )


def _write(broker: Broker) -> None:
    draft = _file().with_suffix(".new")
    try:
        draft.write_text(json.dumps(broker.as_json()))
        draft.replace(_file())
    except OSError as error:
        broker.end()
        raise DevFailure(f"{draft} cannot be written ({error.strerror}); the broker was ended again") from error


def _file() -> Path:
    return cache_dir() / STATE_FILE


def _alone() -> AbstractContextManager[None]:
    return locked(cache_dir() / "dev-broker.lock", FETCH_LIMIT_S)
