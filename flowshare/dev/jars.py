"""Jars from Maven's repository, Kafka's above all, kept in the user's cache directory: all of them or none.

They are fetched into a directory beside the final one, which is renamed when Maven is done; a lock file makes a second
process wait instead of fetching them too. A Kafka has about 55 MB.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Final

from flowshare.dev import DevFailure, cache_dir
from flowshare.dev.java import maven
from flowshare.dev.processes import said

VERSION: Final = "4.3.1"
"""The Kafka that is started when none is named: the newest whose jars are complete, with share groups on."""

FETCH_LIMIT_S: Final = 900.0
_POLL_S: Final = 0.1


class FetchFailed(DevFailure):
    """Maven did not bring what a pom names."""


def jars(version: str = VERSION) -> Path:
    """The directory with the jars of this Kafka, fetched when it is not there. Raises: DevFailure."""
    pom = resources.files("flowshare.dev").joinpath("pom.xml").read_bytes()
    # From 3.0 on the command-line tools come apart from the broker, bit by bit; 2.8 has them all in its core.
    tools = ("-P", "tools") if numbers(version) >= (3, 0, 0) else ()
    try:
        return libraries(f"kafka/{version}", pom, (f"-Dkafka.version={version}", *tools))
    except FetchFailed as error:
        raise DevFailure(f"the jars of Kafka {version} are not to be had: check the version. {error}") from error


def libraries(name: str, pom: bytes, options: Sequence[str] = ()) -> Path:
    """The directory with the jars that a pom names, fetched when it is not there.

    name: of the directory, below the cache; a digest of the pom is put behind it. options: for Maven.
    Raises: FetchFailed, DevFailure.
    """
    place = cache_dir() / name
    place.parent.mkdir(exist_ok=True)
    target = place.with_name(f"{place.name}-{hashlib.sha256(pom).hexdigest()[:8]}")
    if target.is_dir():
        return target
    with locked(place.with_name(f"{place.name}.lock"), FETCH_LIMIT_S):
        if not target.is_dir():
            _fetch(pom, options, target)
    return target


def class_path(folder: Path) -> str:
    """Return the argument of Java's -cp for the jars in `folder`."""
    return f"{folder}{os.sep}*"


def numbers(version: str) -> tuple[int, ...]:
    """(4, 3, 1) for "4.3.1". Raises: DevFailure for anything else than three numbers."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise DevFailure(f"{version!r} is not a version of Kafka; name one like {VERSION}")
    return tuple(int(part) for part in version.split("."))


@contextmanager
def locked(file: Path, limit_s: float) -> Iterator[None]:
    """Hold the lock on `file`; the system drops it with the process. Raises: DevFailure after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    with file.open("ab") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise DevFailure(
                        f"another process has held {file} for {limit_s:.0f} s: end it and try again"
                    ) from None
                time.sleep(_POLL_S)
        yield


def _fetch(pom: bytes, options: Sequence[str], target: Path) -> None:
    draft = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=target.parent))
    command = [str(maven()), "-q", "-B", "-f", "pom.xml", *options, "dependency:copy-dependencies"]
    command += ["-DoutputDirectory=libs", "-DincludeScope=runtime"]
    try:
        (draft / "pom.xml").write_bytes(pom)
        done = said(command, FETCH_LIMIT_S, draft)
        if done.returncode != 0:
            # After the first empty line Maven explains how to run itself.
            lines = (done.stdout + done.stderr).replace("[ERROR] \n", "\n").partition("\n\n")[0].splitlines()
            why = "\n".join(f"  {line}" for line in lines[:12])
            raise FetchFailed(
                "Maven could not fetch: check the way to its repository (~/.m2/settings.xml names a mirror or a "
                f"proxy). Maven says:\n{why}"
            )
        (draft / "libs").rename(target)
    except subprocess.TimeoutExpired as error:
        raise FetchFailed(
            f"Maven did not fetch the jars within {FETCH_LIMIT_S:.0f} s: check the network and try again"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
