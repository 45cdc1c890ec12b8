"""Connections of `fs.Once`: a few statements run on each kind, within the transaction that the connection is in.

The work is a generator of steps, `(statement, values)` with named values (`:name`); each step's number of written rows
is sent back to it. So one generator serves drivers with and without coroutines. Drivers are known by the names of their
classes; none is imported but SQLAlchemy, when a connection is SQLAlchemy's.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeVar

from flowshare.agents.handler.errors import UsageError

T = TypeVar("T")
Dialect = Literal["sqlite", "postgresql"]
Step = tuple[str, Mapping[str, Any]]
Steps = Generator[Step, int, T]
Work = Callable[[Dialect], Steps[T]]
"""Function from a database's dialect to the steps."""

SQLITE: Final = "sqlite"
POSTGRESQL: Final = "postgresql"
_NAMED: Final = re.compile(r":(\w+)")


class _Kind(NamedTuple):
    """A kind of connection. dialect: None for SQLAlchemy, where each connection tells its dialect."""

    dialect: Dialect | None
    asynchronous: bool = False


_KINDS: Final[Mapping[tuple[str, str], _Kind]] = {
    ("sqlite3", "Connection"): _Kind(SQLITE),
    ("aiosqlite", "Connection"): _Kind(SQLITE, asynchronous=True),
    ("psycopg", "Connection"): _Kind(POSTGRESQL),
    ("psycopg", "AsyncConnection"): _Kind(POSTGRESQL, asynchronous=True),
    ("psycopg2", "connection"): _Kind(POSTGRESQL),
    ("sqlalchemy", "Connection"): _Kind(None),
    ("sqlalchemy", "Session"): _Kind(None),
    ("sqlalchemy", "scoped_session"): _Kind(None),
    ("sqlalchemy", "AsyncConnection"): _Kind(None, asynchronous=True),
    ("sqlalchemy", "AsyncSession"): _Kind(None, asynchronous=True),
}
"""Kinds by the package and the name of a class, which may be a base of the connection's class."""
_TAKEN: Final = (
    "fs.Once takes a connection of sqlite3, aiosqlite, psycopg or psycopg2, or a Connection, Session, AsyncConnection "
    "or AsyncSession of SQLAlchemy to SQLite or PostgreSQL"
)


def run(connection: Any, work: Work[T], *, writes: bool = True) -> T:
    """Run the steps on a connection without coroutines; nothing is committed.

    writes: the steps are effects of a handler: refused where each step would be a transaction of its own.
    Raises: UsageError, and the driver's errors.
    """
    kind = _kind(connection, asynchronous=False)
    if kind.dialect is None:
        return _run_sqlalchemy(connection, work, writes)
    if writes:
        _refuse_autocommit(connection, kind.dialect)

    def execute(statement: str, values: Mapping[str, Any]) -> int:
        cursor = connection.cursor()
        try:
            cursor.execute(*_said_to(kind.dialect, statement, values))
            return _counted(cursor.rowcount, writes)
        finally:
            cursor.close()

    return _drive(work(kind.dialect), execute)


async def run_async(connection: Any, work: Work[T], *, writes: bool = True) -> T:
    """Run the steps on a connection with coroutines, as `run`."""
    kind = _kind(connection, asynchronous=True)
    if kind.dialect is None:
        done: T = await connection.run_sync(_run_sqlalchemy, work, writes)
        return done
    if writes:
        _refuse_autocommit(connection, kind.dialect)
    steps = work(kind.dialect)
    try:
        statement, values = next(steps)
        while True:
            cursor = await connection.execute(*_said_to(kind.dialect, statement, values))
            count = _counted(cursor.rowcount, writes)
            await cursor.close()
            statement, values = steps.send(count)
    except StopIteration as end:
        result: T = end.value
        return result


def _drive(steps: Steps[T], execute: Callable[[str, Mapping[str, Any]], int]) -> T:
    try:
        step = next(steps)
        while True:
            step = steps.send(execute(*step))
    except StopIteration as end:
        result: T = end.value
        return result


def _run_sqlalchemy(given: Any, work: Work[T], writes: bool) -> T:
    """Run the steps on SQLAlchemy. given: a Connection, or a Session with one; of an asynchronous one, its synchronous
    part."""
    text = importlib.import_module("sqlalchemy").text
    connection = given if hasattr(given, "exec_driver_sql") else given.connection()
    dialect = connection.dialect.name
    if dialect not in (SQLITE, POSTGRESQL):
        raise UsageError(f"{_TAKEN}, not to {dialect}")
    if not connection.in_transaction():
        connection.begin()  # as its first statement would; autocommit shows only then
    if writes:
        _refuse_autocommit_below(connection.connection)

    def execute(statement: str, values: Mapping[str, Any]) -> int:
        return _counted(connection.execute(text(statement), values).rowcount, writes)

    return _drive(work(dialect), execute)


def _refuse_autocommit_below(pooled: Any) -> None:
    """Refuse autocommit of a connection in SQLAlchemy's pool, which may have an adapter before the driver's."""
    kind = _kind_of(pooled.driver_connection)
    if kind is not None and kind.dialect is not None:
        _refuse_autocommit(pooled.driver_connection, kind.dialect)
    elif getattr(pooled.dbapi_connection, "autocommit", False) is True:
        raise UsageError(_autocommit("a Connection without isolation_level='AUTOCOMMIT'"))


def _refuse_autocommit(connection: Any, dialect: Dialect) -> None:
    """Refuse autocommit before the first write: a row committed at once stays, even when the handler fails."""
    if dialect == POSTGRESQL:
        if connection.autocommit and int(connection.info.transaction_status) == 0:  # idle: in no transaction
            raise UsageError(_autocommit("`with connection.transaction():` (psycopg), or autocommit=False"))
        return
    mode = getattr(connection, "autocommit", None)  # of sqlite3 since 3.12; neither True nor False: by isolation_level
    by_itself = mode is True or (mode is not False and connection.isolation_level is None)
    if by_itself and not connection.in_transaction:
        raise UsageError(_autocommit("connection.execute('BEGIN') before, or a connection with an isolation_level"))


def _autocommit(remedy: str) -> str:
    return (
        "fs.Once: this connection is in no transaction and commits each statement by itself, so its row would not "
        f"stand and fall with what the handler writes. Open a transaction around both: {remedy}"
    )


def _counted(count: int, writes: bool) -> int:
    if writes and count < 0:
        raise UsageError(
            "fs.Once: the driver does not say how many rows a statement has written. In a pipeline of psycopg it "
            "cannot: call it before the pipeline begins"
        )
    return count


def _said_to(dialect: Dialect | None, statement: str, values: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the arguments for a driver's `execute`."""
    if dialect == POSTGRESQL:
        statement = _NAMED.sub(r"%(\1)s", statement)
    return (statement, values) if values else (statement,)


def _kind(connection: Any, *, asynchronous: bool) -> _Kind:
    kind = _kind_of(connection)
    if kind is None:
        raise UsageError(f"{_TAKEN}, not {_named(connection)}")
    if kind.asynchronous and not asynchronous:
        raise UsageError(
            f"fs.Once: {_named(connection)} has coroutines: await once.first_async(…), create_async(…), prune_async(…)"
        )
    if asynchronous and not kind.asynchronous:
        raise UsageError(f"fs.Once: {_named(connection)} has no coroutines: once.first(…), create(…), prune(…)")
    return kind


def _named(given: Any) -> str:
    kind = type(given)
    return f"{kind.__module__}.{kind.__qualname__}"


def _kind_of(connection: Any) -> _Kind | None:
    """Return the connection's kind by `__class__`, which a proxy around a driver's connection (tracing) copies."""
    for base in connection.__class__.__mro__:
        kind = _KINDS.get((base.__module__.partition(".")[0], base.__name__))
        if kind is not None:
            return kind
    return None
