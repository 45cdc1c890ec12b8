"""Data that outlives the console's process: figures of each group for a day, and the audit of actions. A small SQLite.

Figures are kept by the second for an hour, and by the minute (means, and the largest age) for a day. Unchanged figures
are written once a minute, so that 10,000 groups that stand still cost nothing. Bounds: `SUBJECTS_MAX` groups a second,
the busiest; `AUDIT_MAX` actions.

A disk that takes no writes, or a folder that cannot be written, costs the history and is reported; pages go on. A file
that is no database any more is set aside, and a new one begun. A file that was removed or replaced is opened anew,
because data written into the old one would be gone with the process.

Everything here runs on one thread; the methods may be called from any loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from flowshare.log.base import StorageError
from flowshare.log.folder import OwnFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

T = TypeVar("T")
logger = logging.getLogger("flowshare.console")

FILE: Final = "console.sqlite"
SECONDS_KEPT_S: Final = 3600
MINUTES_KEPT_S: Final = 24 * 3600
AGAIN_S: Final = 60
"""Seconds after which unchanged figures are written again."""
SUBJECTS_MAX: Final = 500
AUDIT_MAX: Final = 100_000
TEXT_MAX: Final = 8_000
"""The most characters of a text of the audit. A command that is longer is not carried out."""
_QUEUE_MAX: Final = 8
"""The most looks that wait to be written; later ones are dropped."""


class Figures(NamedTuple):
    """Figures of a group at a moment; None: unknown."""

    backlog: float | None = None
    in_flight: float | None = None
    delayed: float | None = None
    blocked: float | None = None
    arriving: float | None = None
    finished: float | None = None
    redelivered: float | None = None
    oldest_s: float | None = None


class AgentFigures(NamedTuple):
    """Figures of an agent's handlers at a moment, all workers together; None: unknown."""

    handled: float | None = None
    """Per second, as the next two."""
    failed: float | None = None
    timed_out: float | None = None
    mean_s: float | None = None
    """The mean time of a handler, in s."""


F = TypeVar("F", bound="Figures | AgentFigures")


class Point(NamedTuple, Generic[F]):
    """Figures at a time, seconds since 1970."""

    at_s: int
    figures: F


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One line of the audit: an action of a user. outcome: `begun` until the outcome is known."""

    at_ms: int
    who: str
    role: str
    peer: str
    action: str
    command: str
    outcome: str
    number: int = 0


class Kept(Generic[F]):
    """Figures of many things of one kind: two tables, `<name>_second` and `<name>_minute`.

    largest: columns whose minute has the largest figure; the minutes of others have the mean over time. mass: the
    measure by which the busiest are chosen, when there are more than `SUBJECTS_MAX`.
    """

    def __init__(self, name: str, kind: type[F], mass: Callable[[F], float], largest: Collection[str] = ()) -> None:
        self.name = name
        self.kind = kind
        self.mass = mass
        columns = kind._fields
        self.columns = ", ".join(columns)
        self.marks = ", ".join("?" * len(columns))
        self.means = ", ".join(
            f"max({one})" if one in largest else f"1.0 * sum({one} * held) / sum(held) FILTER (WHERE {one} IS NOT NULL)"
            for one in columns
        )
        self._last: dict[str, tuple[int, F]] = {}

    def schema(self) -> str:
        """Return the tables' SQL."""
        return "".join(
            f"CREATE TABLE IF NOT EXISTS {self.name}_{unit} "
            f"(subject TEXT, at INTEGER, {self.columns}, PRIMARY KEY (subject, at)) WITHOUT ROWID;\n"
            f"CREATE INDEX IF NOT EXISTS {self.name}_{unit}_at ON {self.name}_{unit} (at);\n"
            for unit in ("second", "minute")
        )

    def forget(self) -> None:
        """Forget the last figures, so that the next look is written whole."""
        self._last.clear()

    def changed(self, at_s: int, figures: Mapping[str, F]) -> list[tuple[str, F]]:
        """Return the figures of a look that are to be written: those that differ from the last written, the rest once a
        minute."""
        for gone in self._last.keys() - figures.keys():
            del self._last[gone]
        found: list[tuple[str, F]] = []
        for subject, one in figures.items():
            last = self._last.get(subject)
            if last is None or last[1] != one or not 0 <= at_s - last[0] < AGAIN_S:
                found.append((subject, one))
        if len(found) > SUBJECTS_MAX:
            found.sort(key=lambda pair: -self.mass(pair[1]))
            del found[SUBJECTS_MAX:]
        self._last.update((subject, (at_s, one)) for subject, one in found)
        return found


GROUPS: Final = Kept(
    "groups",
    Figures,
    lambda one: (one.finished or 0) + (one.arriving or 0) + (one.backlog or 0),
    ("oldest_s",),
)
AGENTS: Final = Kept("agents", AgentFigures, lambda one: one.handled or 0)
_DEEDS: Final = """
CREATE TABLE IF NOT EXISTS deed (
  number INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER, who TEXT, role TEXT, peer TEXT, action TEXT, command TEXT,
  outcome TEXT);
"""


class Store:
    """The file of figures and audit, opened by `open`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, "console store")
        self._db: sqlite3.Connection | None = None
        self._place: tuple[int, int] | None = None
        """Device and inode of the open file."""
        self._minutes_s: dict[str, int] = {}
        self._waiting = 0
        self._closed = False
        self.trouble: str | None = None
        """The reason why figures are not kept at the moment."""

    async def open(self) -> None:
        """Open the file. Raises NotPrivate (another user's folder)."""
        await self._run(self._open)

    async def close(self) -> None:
        """Write the queued looks and close; harmless twice."""
        if not self._closed:
            self._closed = True
            await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
            self._thread.shutdown(wait=False)

    # --- figures ----------------------------------------------------------------------------------------------------

    def keep(self, kind: Kept[F], at_s: int, figures: Mapping[str, F]) -> None:
        """Queue figures for writing; a disk that is slower than the looks loses some of them."""
        if self._waiting >= _QUEUE_MAX:
            return
        changed = kind.changed(at_s, figures)
        self._waiting += 1
        self._thread.submit(self._keep, kind, at_s, changed)

    async def figures(self, kind: Kept[F], subject: str, since_s: int, *, minutes: bool = False) -> list[Point[F]]:
        """Return the known figures from a time on, oldest first; the first point has the figures at that time."""
        table = f"{kind.name}_{'minute' if minutes else 'second'}"
        select = f"SELECT at, {kind.columns} FROM {table} WHERE subject = ? AND at "  # noqa: S608 - names are the code's
        before, query = f"{select} < ? ORDER BY at DESC LIMIT 1", f"{select} >= ? ORDER BY at LIMIT 5000"

        name = _encodable(subject)

        def read() -> list[tuple[Any, ...]]:
            return [*self._rows(before, (name, since_s)), *self._rows(query, (name, since_s))]

        return [Point(max(row[0], since_s), kind.kind(*row[1:])) for row in await self._run(read)]

    # --- who did what -------------------------------------------------------------------------------------------------

    async def note(self, line: AuditLine) -> int:
        """Write down an action before it begins; return its number. Raises sqlite3.Error: then the action must not
        begin."""
        return await self._run(lambda: self._note(line))

    async def end(self, number: int, outcome: str) -> None:
        """Write down an action's outcome; if that fails, the next console shows the outcome as not known."""
        try:
            await self._run(
                lambda: self._write(
                    "UPDATE deed SET outcome = ? WHERE number = ?", (_encodable(outcome)[:TEXT_MAX], number)
                )
            )
        except sqlite3.Error as error:
            logger.warning("what became of deed %s is not written down: %s path=%s", number, error, self.path)

    async def deeds(self, *, before: int | None = None, limit: int = 100) -> list[AuditLine]:
        """Return actions, the newest first. before: only those with smaller numbers."""
        query = (
            "SELECT at_ms, who, role, peer, action, command, outcome, number FROM deed WHERE number < ? "
            "ORDER BY number DESC LIMIT ?"
        )
        rows = await self._run(lambda: self._rows(query, (2**62 if before is None else before, limit)))
        return [AuditLine(*row) for row in rows]

    # --- on the thread ------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        try:
            with OwnFolder.own(self._folder) as folder:
                self.path = folder.path / FILE
                try:
                    self._db = _opened(self.path)
                except sqlite3.DatabaseError as error:
                    if error.sqlite_errorcode not in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                        raise
                    aside = _set_aside(self.path)
                    logger.warning("history and audit are damaged and begin anew: %s; they are in %s", error, aside)
                    self._db = _opened(self.path)
                self._place = _place(self.path)
        except (OSError, sqlite3.Error) as error:
            self._fail(error)

    def _ready(self) -> sqlite3.Connection | None:
        """Return the open file, opened anew if it was missing or moved; None: it cannot be opened."""
        if self._db is not None and _place(self.path) != self._place:
            logger.warning("history and audit were removed or replaced, and are opened anew: path=%s", self.path)
            self._close()
            for kind in (GROUPS, AGENTS):
                kind.forget()
        if self._db is None and not self._closed:
            try:
                self._open()
            except StorageError as error:
                self._fail(error)
        return self._db

    def _close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()

    def _keep(self, kind: Kept[F], at_s: int, changed: Sequence[tuple[str, F]]) -> None:
        try:
            if (db := self._ready()) is not None:
                self._insert(db, kind, at_s, changed)
                self.trouble = None
        except (sqlite3.Error, OverflowError) as error:
            self._fail(error)
        finally:
            self._waiting -= 1

    def _insert(self, db: sqlite3.Connection, kind: Kept[F], at_s: int, changed: Sequence[tuple[str, F]]) -> None:
        minute_s, seconds = at_s - at_s % 60, f"{kind.name}_second"
        with _transaction(db):
            db.executemany(
                f"INSERT OR REPLACE INTO {seconds} VALUES (?, ?, {kind.marks})",  # noqa: S608
                [(_encodable(subject), at_s, *one) for subject, one in changed],
            )
            if minute_s != self._minutes_s.get(kind.name):
                self._add_minutes(db, kind, minute_s, at_s)
                self._minutes_s[kind.name] = minute_s

    def _add_minutes(self, db: sqlite3.Connection, kind: Kept[F], minute_s: int, at_s: int) -> None:
        """Add the minutes that have ended since the last stored one; drop rows that are old, or in the future after the
        clock was set back."""
        seconds, minutes = f"{kind.name}_second", f"{kind.name}_minute"
        for table in (seconds, minutes):
            db.execute(f"DELETE FROM {table} WHERE at > ?", (at_s,))  # noqa: S608 - names are the code's
        ((last_s,),) = db.execute(f"SELECT max(at) FROM {minutes}").fetchall()  # noqa: S608
        for begun_s in range(max(minute_s - SECONDS_KEPT_S, -1 if last_s is None else last_s) + 60, minute_s, 60):
            db.execute(
                f"INSERT OR REPLACE INTO {minutes} SELECT subject, :begun, {kind.means} FROM ("  # noqa: S608
                "SELECT *, lead(at, 1, :end) OVER (PARTITION BY subject ORDER BY at) - max(at, :begun) AS held "
                f"FROM {seconds} WHERE at > :before AND at < :end) WHERE held > 0 GROUP BY subject",
                {"begun": begun_s, "end": begun_s + 60, "before": begun_s - AGAIN_S},
            )
        db.execute(f"DELETE FROM {seconds} WHERE at < ?", (at_s - SECONDS_KEPT_S,))  # noqa: S608
        db.execute(f"DELETE FROM {minutes} WHERE at < ?", (at_s - MINUTES_KEPT_S,))  # noqa: S608

    def _note(self, line: AuditLine) -> int:
        values = [_encodable(one)[:TEXT_MAX] if isinstance(one, str) else one for one in astuple(line)[:-1]]
        if (opened := self._ready()) is None:
            raise sqlite3.OperationalError(self.trouble or "it is closed")
        with _transaction(opened) as db:
            number = db.execute(
                "INSERT INTO deed (at_ms, who, role, peer, action, command, outcome) VALUES (?, ?, ?, ?, ?, ?, ?)",
                values,
            ).lastrowid
            db.execute("DELETE FROM deed WHERE number <= ?", ((number or 0) - AUDIT_MAX,))
        return number or 0

    def _write(self, query: str, values: tuple[object, ...]) -> None:
        if self._db is not None:
            self._db.execute(query, values)

    def _rows(self, query: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        try:
            return [] if self._db is None else self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            self._fail(error)
            return []

    def _fail(self, error: Exception) -> None:
        """Note the failure for the pages; log it once."""
        if self.trouble is None:
            logger.warning("history and audit cannot be used: %s path=%s", error, self.path)
        self.trouble = str(error)

    async def _run(self, call: Callable[[], T]) -> T:
        if self._closed:
            raise sqlite3.OperationalError("the console has ended")
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def _place(path: Path) -> tuple[int, int] | None:
    """Return device and inode; None: no such file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


class _transaction:  # noqa: N801 - used as a statement
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> sqlite3.Connection:
        self._db.execute("BEGIN IMMEDIATE")
        return self._db

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:  # a transaction that failed for want of room has rolled back by itself
                self._db.execute("ROLLBACK")


def _encodable(text: str) -> str:
    """Return the text with half surrogates, which names in others' JSON may have, as their escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _opened(path: Path) -> sqlite3.Connection:
    """Open. Raises sqlite3.Error, OSError."""
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        path.chmod(0o600)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA busy_timeout = 2000")
        db.executescript(GROUPS.schema() + AGENTS.schema() + _DEEDS)
        db.execute("UPDATE deed SET outcome = 'not known: the console ended meanwhile' WHERE outcome = 'begun'")
    except BaseException:
        db.close()
        raise
    return db


def _set_aside(path: Path) -> Path:
    """Rename the file, and its side files. Raises OSError."""
    aside = path.with_name(f"{path.name}.damaged-{secrets.token_hex(4)}")
    for end in ("-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}{end}", f"{aside}{end}")
    return aside
