"""Finds a query's committed batches, and other facts, in its checkpoint, from the source's own process.

Spark tells a source that a batch is committed only with the next trigger, which may be minutes away, or never come: a
stop tells nothing. So the source reads Spark's logs: `offsets/<n>` is written before batch n is run (the write-ahead
log: a version, a line of metadata, a line a source), and `commits/<n>` when the batch is done. Only a checkpoint on a
file system of this machine can be read; with another one a commit is known from the next trigger on.

Spark does not tell a source its query's checkpoint. The option `checkpoint` does (declared pipelines set it), or else
the process in which the query was started: it notes the checkpoints of its queries in this user's folder, and the
source finds the one with its own member. Of copies, which have the same member, it is the one with the batch that the
source gave out last: each batch has its own tag.

Spark also does not tell a source why its query ended. The same process notes in the checkpoint which batch killed
Python workers (`QueryNotes`); an end of another kind, or without a note, is no record's fault.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import logging
import os
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flowshare.core_errors import FlowshareError
from flowshare.log.folder import NotPrivate, OwnFolder
from flowshare.spark.errors import gone
from flowshare.spark.source.narrowing import killed
from flowshare.spark.source.outcomes import user_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOCAL: Final = re.compile(r"(?:file:(?://[^/]*)?)?(/.*)", re.DOTALL)
"""A path on this machine, as Hadoop writes it: nothing in it is escaped, so `%`, `#` and `?` belong to names."""
NOTE_S: Final = 0.5
"""The seconds between two looks for queries whose checkpoint is not noted yet."""
NOTES: Final = "flowshare"
"""The folder in a checkpoint for a source's notes; Spark ignores names that are not its own."""
KILLS: Final = "kills"
"""The suffix of a member's file with the batch that killed workers."""
KEPT: Final = 1000
"""The most notes of queries that are kept; the oldest are deleted."""
RUNS_KEPT: Final = 10
"""The most runs of a query that are remembered to have killed workers with one batch."""

ASYNC_PROGRESS: Final = (
    "Asynchronous progress tracking leaves batches out of the write-ahead log, and a source whose batches are not in "
    "it loses them at a crash: start the query without asyncProgressTrackingEnabled"
)

logger = logging.getLogger("flowshare.spark")


class NotWritten(FlowshareError, RuntimeError):
    """A batch that Spark reports as committed is not in the checkpoint."""


class DamagedNote(FlowshareError, RuntimeError):
    """The note of a source in its query's checkpoint cannot be read. The note may keep records from being lost."""

    def __init__(self, path: Path, why: object) -> None:
        super().__init__(
            f"{path} is damaged ({why}). It says which batches were run empty, so the query is not run without it: "
            "restore it, or start with a new checkpoint, after which some records may be in batches again"
        )


class Checkpoint:
    """One query's checkpoint. root: its folder, as a path or a `file:` URL."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def committed(self, member: str) -> tuple[int, str]:
        """Return number and tag of the newest committed offset of the source with this member id; 0 and empty: none."""
        found = self._offsets(_newest(self.root / "commits"))
        mine = next((one for one in found if one.get("member") == member), {})
        return int(mine.get("number", 0)), str(mine.get("tag", ""))

    def newest(self) -> dict[str, dict[str, Any]]:
        """Return the newest offset of each of the query's sources, by member id; offsets of other formats are left
        out."""
        found = self._offsets(_newest(self.root / "offsets"))
        return {one["member"]: one for one in found if isinstance(one.get("member"), str)}

    def members(self) -> frozenset[str]:
        """Return the member ids of the query's sources."""
        return frozenset(self.newest())

    def kills(self, member: str, number: int) -> int:
        """Return the number of runs of the query that ended because this batch of a member's source killed Python
        workers."""
        try:
            found = _noted(self.root / NOTES / f"{member}.{KILLS}")
        except (OSError, DamagedNote) as error:
            logger.warning("which batches killed workers is not known: %s", error)
            return 0
        return len(found.get("runs", ())) if found.get("number") == number else 0

    def note_kill(self, run: str) -> None:
        """Note, for each source's batch under way, that a run of the query ended because Python workers were killed.

        Raises: NotPrivate, OSError.
        """
        if _newest(self.root / "offsets") <= _newest(self.root / "commits"):
            return  # it was no batch's end
        for member, offset in self.newest().items():
            with self._noting(member) as (folder, path):
                note = path.with_suffix(f".{KILLS}")
                found: dict[str, Any] = {}
                with contextlib.suppress(DamagedNote):
                    found = _noted(note)
                runs = found.get("runs", []) if found.get("number") == offset.get("number") else []
                if run not in runs:
                    told = {"number": offset.get("number"), "runs": [*runs, run][-RUNS_KEPT:]}
                    folder.write(note.name, json.dumps(told).encode(), lasting=True)

    def _offsets(self, batch: int) -> list[dict[str, Any]]:
        """Return the JSON objects in an entry of the write-ahead log; empty: it cannot be read."""
        try:
            lines = (self.root / "offsets" / str(batch)).read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            return []
        return [_parsed(line) for line in lines]

    def take_note(self, member: str, process: str) -> dict[str, Any]:
        """Return the note that this member's source keeps beside Spark's own logs, and make it this process's note.

        Only this process may change the note from now on. An earlier process of the query may live on for a while, but
        its findings come too late: this process runs by the note as it is now. process: this process's own id. Raises:
        OSError, DamagedNote.
        """
        with self._noting(member) as (folder, path):
            note = _noted(path)
            folder.write(path.name, json.dumps({**note, "process": process}).encode(), lasting=True)
        return {name: value for name, value in note.items() if name != "process"}

    def write_note(self, member: str, process: str, note: dict[str, Any]) -> bool:
        """Replace the note, durably; False: the note belongs to another process now. Raises: OSError, DamagedNote."""
        with self._noting(member) as (folder, path):
            if _noted(path).get("process", process) != process:
                return False
            folder.write(path.name, json.dumps({**note, "process": process}).encode(), lasting=True)
        return True

    @contextlib.contextmanager
    def _noting(self, member: str) -> Iterator[tuple[OwnFolder, Path]]:
        """Provide the notes' folder and the path of a member's note, to one process at a time. Raises: NotPrivate,
        OSError."""
        with (
            OwnFolder.own(self.root / NOTES) as folder,
            os.fdopen(folder.open(f"{member}.lock", os.O_RDWR | os.O_CREAT), "rb") as lock,
        ):
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder, folder.path / f"{member}.json"


def local_checkpoint(root: str) -> Checkpoint | None:
    """Return the checkpoint at a path or URL; None: it is not on a file system of this machine."""
    found = LOCAL.fullmatch(root)
    return None if found is None else Checkpoint(Path(found[1]))


def find_checkpoint(member: str, tag: str) -> Checkpoint | None:
    """Return the noted checkpoint whose query has this member; None: there is no note, or the checkpoint is still
    empty.

    Of several, which are copies, it is the one whose newest batch of the member has this tag.
    """
    found: dict[str, Checkpoint] = {}
    with contextlib.suppress(OSError, NotPrivate):
        for note in sorted(_notes(), key=_age, reverse=True):
            root = note.read_text()
            place = local_checkpoint(root)
            if place is not None and (newest := place.newest().get(member)) is not None:
                if newest.get("tag") == tag:
                    return place
                found[root] = place
    return next(iter(found.values())) if len(found) == 1 else None


class QueryNotes:
    """Notes the checkpoints of a session's queries, and which of their batches killed Python workers."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._running: dict[str, tuple[StreamingQuery, Checkpoint | None]] = {}
        """The running queries and their checkpoints, by run."""
        self._lock = threading.Lock()

    def follow(self) -> None:
        """Look every NOTE_S; return when the session has ended."""
        while True:
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - py4j's errors, of several kinds; a query may just have ended
                logger.debug("checkpoints are not noted: %s", error)
                if gone(self._spark.sparkContext, "") is not None:
                    return
            time.sleep(NOTE_S)

    def last_look(self) -> None:
        """Look once more, as this process ends: a script that does not catch its query's error ends with it."""
        with contextlib.suppress(Exception):
            if self._running:
                self.look()

    def look(self) -> None:
        """Note the checkpoints of queries that began, and the ends of queries that run no more. Raises: py4j's
        errors."""
        with self._lock:
            active: list[StreamingQuery] = []
            try:
                active = self._spark.streams.active
                for query in active:
                    self._begun(query)
            finally:
                for run in self._running.keys() - {query.runId for query in active}:
                    self._ended(run, *self._running.pop(run))

    def _begun(self, query: StreamingQuery) -> None:
        if query.runId not in self._running:
            root = str(query._jsq.streamingQuery().resolvedCheckpointRoot())  # noqa: SLF001 - Python has no name for it
            _note(query.id, root)
            self._running[query.runId] = query, local_checkpoint(root)

    def _ended(self, run: str, query: StreamingQuery, place: Checkpoint | None) -> None:
        error: Any = query._jsq.exception()  # noqa: SLF001 - Python's own says less
        if place is None or not error.isDefined():
            return
        utils: Any = self._spark.sparkContext._jvm  # noqa: SLF001
        if killed(str(utils.org.apache.spark.util.Utils.exceptionString(error.get()))):
            try:
                place.note_kill(run)
            except (OSError, NotPrivate) as wrong:
                logger.warning("what killed Python workers cannot be noted in the checkpoint: %s", wrong)


def note_checkpoints(spark: SparkSession) -> None:
    """Start a thread that notes the checkpoints of this session's queries, and the batches that killed workers."""
    notes = QueryNotes(spark)
    atexit.register(notes.last_look)
    threading.Thread(target=notes.follow, name="flowshare checkpoints", daemon=True).start()


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
    """Return the highest batch number in one of the checkpoint's logs; −1: none."""
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
