"""Which of a query's batches are committed, read from its checkpoint by the source's own process.

Spark tells a source that a batch is committed with the next trigger, which may be minutes away, or never come: a stop
says nothing. So the source reads what Spark wrote: `offsets/<n>` before batch n is run (the write-ahead log: a version,
a line of metadata, a line a source), and `commits/<n>` when it is done. Only a checkpoint on a file system of this
machine can be read; with another one a batch is known as committed from the next trigger on.

A source is not told where its query's checkpoint is. The option `checkpoint` says it (declared pipelines set it), or
else the process in which the query was started does: it notes the checkpoints of its queries in this user's folder, and
the source finds the one that holds its own member.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from flowshare.errors import FlowshareError
from flowshare.log.folder import NotPrivate, OwnFolder
from flowshare.spark.errors import gone
from flowshare.spark.source.outcomes import user_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

NOTE_S: Final = 0.5
"""How often queries are looked for whose checkpoint is not noted yet."""
NOTES: Final = "flowshare"
"""OwnFolder of a checkpoint for what a source notes; Spark heeds its own names only."""
KEPT: Final = 1000
"""Notes of queries that are kept; the oldest go."""

ASYNC_PROGRESS: Final = (
    "Asynchronous progress tracking leaves batches out of the write-ahead log, and a source whose batches are not in "
    "it loses them at a crash: start the query without asyncProgressTrackingEnabled"
)

logger = logging.getLogger("flowshare.spark")


class NotWritten(FlowshareError, RuntimeError):
    """A batch that Spark says is committed is not in the checkpoint."""


class DamagedNote(FlowshareError, RuntimeError):
    """What a source noted in its query's checkpoint cannot be read: it may be what keeps records from being lost."""

    def __init__(self, path: Path, why: object) -> None:
        super().__init__(
            f"{path} is damaged ({why}). It says which batches were run empty, so the query is not run without it: "
            "restore it, or start with a new checkpoint, after which some records may be in batches again"
        )


class Checkpoint:
    """One query's checkpoint. root: its folder, as a path or a `file:` URL."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def committed(self, member: str) -> int:
        """The number of the newest committed offset of the source that has this member id; 0: there is none."""
        found = self._offsets(_newest(self._root / "commits"))
        return next((int(one.get("number", 0)) for one in found if one.get("member") == member), 0)

    def members(self) -> frozenset[str]:
        """Member ids of the query's sources, those of others' formats left out."""
        found = (one.get("member") for one in self._offsets(_newest(self._root / "offsets")))
        return frozenset(one for one in found if isinstance(one, str))

    def _offsets(self, batch: int) -> list[dict[str, Any]]:
        """An entry of the write-ahead log: what its lines hold that are objects; empty: it is not to be read."""
        try:
            lines = (self._root / "offsets" / str(batch)).read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            return []
        return [_parsed(line) for line in lines]

    def take_note(self, member: str, process: str) -> dict[str, Any]:
        """What this member's source noted beside Spark's own logs, which is this process's to change from now on.

        An earlier process of the query may live on for a while. What it found out comes too late: this one runs what
        stands in the note. process: an id of its own. Raises: OSError, DamagedNote.
        """
        with self._noting(member) as (folder, path):
            note = _noted(path)
            folder.write(path.name, json.dumps({**note, "process": process}).encode(), lasting=True)
        return {name: value for name, value in note.items() if name != "process"}

    def write_note(self, member: str, process: str, note: dict[str, Any]) -> bool:
        """Replace the note, durably; False: it is another process's now. Raises: OSError, DamagedNote."""
        with self._noting(member) as (folder, path):
            if _noted(path).get("process", process) != process:
                return False
            folder.write(path.name, json.dumps({**note, "process": process}).encode(), lasting=True)
        return True

    @contextlib.contextmanager
    def _noting(self, member: str) -> Iterator[tuple[OwnFolder, Path]]:
        """The notes' folder and the path of a member's note, for one process at a time. Raises: NotPrivate, OSError."""
        with (
            OwnFolder.own(self._root / NOTES) as folder,
            os.fdopen(folder.open(f"{member}.lock", os.O_RDWR | os.O_CREAT), "rb") as lock,
        ):
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder, folder.path / f"{member}.json"


def local_checkpoint(root: str) -> Checkpoint | None:
    """The checkpoint at a path or URL; None: it is not on a file system of this machine."""
    parts = urlsplit(root)
    if parts.scheme == "file":
        return Checkpoint(Path(unquote(parts.path)))
    return Checkpoint(Path(root)) if not parts.scheme and Path(root).is_absolute() else None


def find_checkpoint(member: str) -> Checkpoint | None:
    """The noted checkpoint whose query has this member; None: nobody noted one, or nothing is written to it yet."""
    with contextlib.suppress(OSError, NotPrivate):
        for note in sorted(_notes(), key=_age, reverse=True):
            found = local_checkpoint(note.read_text())
            if found is not None and member in found.members():
                return found
    return None


def note_checkpoints(spark: SparkSession) -> None:
    """Note from now on, in a thread, where the checkpoints of this session's queries are; ends with the session."""
    threading.Thread(target=_note_all, args=(spark,), name="flowshare checkpoints", daemon=True).start()


def _note_all(spark: SparkSession) -> None:
    noted: set[str] = set()
    while True:
        try:
            for query in spark.streams.active:
                if query.id not in noted:
                    _note(query.id, str(query._jsq.streamingQuery().resolvedCheckpointRoot()))  # noqa: SLF001
                    noted.add(query.id)
        except Exception as error:  # noqa: BLE001 - py4j's errors, of several kinds; a query may just have ended
            logger.debug("checkpoints are not noted: %s", error)
            if gone(spark.sparkContext, "") is not None:
                return
        time.sleep(NOTE_S)


def _note(query_id: str, root: str) -> None:
    for old in sorted(_notes(), key=_age)[:-KEPT]:
        old.unlink(missing_ok=True)
    with OwnFolder.own(user_folder()) as folder:
        folder.write(f"{query_id}.query", root.encode())


def _notes() -> Iterable[Path]:
    return user_folder().glob("*.query")


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _newest(folder: Path) -> int:
    """The highest batch number in one of the checkpoint's logs; −1: none."""
    try:
        return max((int(name) for name in os.listdir(folder) if name.isdigit()), default=-1)
    except OSError:
        return -1


def _noted(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise DamagedNote(path, error) from error
    if not isinstance(found, dict):
        raise DamagedNote(path, "it is no object")
    return found


def _parsed(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
