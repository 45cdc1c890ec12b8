"""`fs.Once`: a handler's effects in a database, once for each record, however often the record is delivered.

The rows of one table are written in the transaction of the handler's own writes. Rows and effects stand and fall
together, so a row is there exactly when the effects are:

    id                                  row of                      says
    topic id:partition:offset           a record (`delivery.id`)    its effects are there
    key:SHA-256 of partition and key    a key, with an `order`      the highest fence that has written for it

Both rows have a *scope*, the agent's group by default. Correctness rests on the database: an insert of a row that
another transaction has inserted or changes waits until that transaction ends, and then sees its result.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

from flowshare.agents.handler.databases import POSTGRESQL, Dialect, Steps, run, run_async
from flowshare.agents.handler.delivery import Delivery
from flowshare.agents.handler.errors import OptionError, Overtaken, UsageError
from flowshare.agents.handler.retry import Seconds, count, seconds
from flowshare.agents.handler.texts import shown
from flowshare.clock import Clock, LoopClock

PRUNE_MAX: Final = 10_000
"""Default for the most rows that one `prune` deletes."""
_TABLE: Final = re.compile(r"(?:(?P<schema>[a-z_][a-z0-9_]{0,62})\.)?(?P<table>[a-z_][a-z0-9_]{0,54})")
"""Pattern of a table's name: small letters mean the same with quotes and without; PostgreSQL cuts a name at 63
characters, and the index has 8 more than its table."""


class Once:
    """A table in a handler's database that notes the records whose effects are done.

    `once.create(connection)` makes the table; `if once.first(connection, delivery):` guards a handler's writes in the
    same transaction; `once.prune(connection, older_than)` keeps the table small. None of them commits. `create_async`,
    `first_async` and `prune_async` are for connections with coroutines.

    Connections: of sqlite3, psycopg, psycopg2, and SQLAlchemy's Connection and Session to SQLite or PostgreSQL; with
    coroutines of aiosqlite, psycopg (AsyncConnection), and SQLAlchemy's AsyncConnection and AsyncSession. All methods
    raise UsageError for another connection, and let errors of the driver through. One object may be used by any number
    of threads and tasks, each with a connection of its own.
    """

    __slots__ = ("_clock", "_insert", "_names", "_prune", "_upsert", "table")

    def __init__(self, table: str = "flowshare_once", *, clock: Clock | None = None) -> None:
        """table: small letters, digits and underscores, at most 55; a schema may stand before it (`app.once`).
        clock: for the time of rows.

        Raises: OptionError when the name is not valid.
        """
        names = _TABLE.fullmatch(table) if isinstance(table, str) else None
        if names is None:
            raise OptionError(
                "fs.Once(table=…) takes a name of at most 55 small letters, digits and underscores, with or without a "
                f"schema before it (`app.once`), not {table!r}"
            )
        self.table: Final = table
        self._clock = clock or LoopClock()
        self._names = (names["schema"], names["table"])
        quoted = ".".join(f'"{name}"' for name in self._names if name is not None)
        insert = (
            f"INSERT INTO {quoted} AS seen (scope, id, generation, serial, at_ms) "  # noqa: S608 - a checked name
            "VALUES (:scope, :id, :generation, :serial, :at_ms) ON CONFLICT (scope, id) DO"
        )
        self._insert: Final = f"{insert} NOTHING"
        self._upsert: Final = (
            f"{insert} UPDATE SET generation = excluded.generation, serial = excluded.serial, at_ms = excluded.at_ms "
            "WHERE (seen.generation, seen.serial) <= (excluded.generation, excluded.serial)"
        )
        # the age is checked twice, so that a row stays that was written anew while this statement waited
        self._prune: Final = (
            f"DELETE FROM {quoted} WHERE at_ms < :before AND (scope, id) IN "  # noqa: S608
            f"(SELECT scope, id FROM {quoted} WHERE at_ms < :before ORDER BY at_ms LIMIT :most)"
        )

    def __repr__(self) -> str:
        return f"fs.Once({self.table!r})"

    # --- without coroutines -------------------------------------------------------------------------------------

    def create(self, connection: Any) -> None:
        """Make the table and its index if missing; several processes may do so at a time. Commit afterwards."""
        run(connection, self._creating, writes=False)

    def first(self, connection: Any, delivery: Delivery, *, scope: str | None = None) -> bool:
        """Tell if this record's effects are missing in the database; if so, note there that they are done.

        The note is a row, written in the connection's transaction. The effects must be written in the same transaction.

        Waits for another transaction that has the record (or, in an agent with an `order`, the key) until that one
        ends. Call this first in the transaction.

        scope: the name under which effects are noted; None: the agent's group. Each further transaction of a handler
        needs another scope.

        Raises: fs.errors.Overtaken: a later delivery of the record's key has written in the scope: roll back, and let
        the error through. UsageError: the connection commits each statement by itself, or `delivery` is no delivery.
        """
        return run(connection, lambda _: self._noting(delivery, scope))

    def prune(self, connection: Any, older_than: Seconds, *, limit: int = PRUNE_MAX) -> int:
        """Delete up to `limit` rows older than `older_than` seconds (or a timedelta), the oldest first; return their
        number. If it is `limit`, more may be left, for another transaction.

        Deleted records and fences of keys are forgotten: a record that comes again after that counts as a first one. So
        `older_than` must be longer than a record can come again after its effects: retries, delays, workers that are
        away; at most the topic's retention, which is needed where offsets are set back.
        Raises: OptionError; UsageError as `first`.
        """
        before_ms, most = self._before_ms(older_than), count(limit, "prune(limit=…)")
        return run(connection, lambda _: self._pruning(before_ms, most))

    # --- with coroutines ----------------------------------------------------------------------------------------

    async def create_async(self, connection: Any) -> None:
        """As `create`."""
        await run_async(connection, self._creating, writes=False)

    async def first_async(self, connection: Any, delivery: Delivery, *, scope: str | None = None) -> bool:
        """As `first`."""
        return await run_async(connection, lambda _: self._noting(delivery, scope))

    async def prune_async(self, connection: Any, older_than: Seconds, *, limit: int = PRUNE_MAX) -> int:
        """As `prune`."""
        before_ms, most = self._before_ms(older_than), count(limit, "prune(limit=…)")
        return await run_async(connection, lambda _: self._pruning(before_ms, most))

    # --- what is done -------------------------------------------------------------------------------------------

    def _noting(self, delivery: Delivery, scope: str | None) -> Steps[bool]:
        """Note the key before the record: of a key's transactions only one goes on at a time, from its first statement
        on."""
        if not isinstance(delivery, Delivery):
            raise UsageError(
                f"first(connection, delivery) takes the record's delivery, not {shown(delivery)}: that of a handler's "
                "parameter annotated fs.Delivery, fs.current_delivery(), or `row.delivery` in a batch"
            )
        fence, key = delivery.fence, delivery.order_key
        row = {
            "scope": delivery.group if scope is None else scope,
            "id": delivery.id,
            "generation": None if fence is None else fence.generation,
            "serial": None if fence is None else fence.serial,
            "at_ms": self._clock.now_ms(),
        }
        if fence is not None and key is not None and not (yield self._upsert, row | {"id": _key_id(delivery.id, key)}):
            raise Overtaken(
                f"{delivery!r} is not written: a later delivery of its key has been, in {self.table}. Its lock lapsed "
                "while this process stood still or reached no leader"
            )
        first = bool((yield self._insert, row))
        if not first:
            delivery.repeats()
        return first

    def _creating(self, dialect: Dialect) -> Steps[None]:
        schema, table = self._names
        quoted = f'"{table}"' if schema is None else f'"{schema}"."{table}"'
        columns = "scope TEXT NOT NULL, id TEXT NOT NULL, generation BIGINT, serial BIGINT, at_ms BIGINT NOT NULL"
        make = f"CREATE TABLE IF NOT EXISTS {quoted} ({columns}, PRIMARY KEY (scope, id))"
        if dialect == POSTGRESQL:
            # lock, as one of two concurrent CREATEs would fail; in one statement, so that the lock holds in any mode
            lock = int.from_bytes(hashlib.sha256(f"flowshare once {self.table}".encode()).digest()[:8], signed=True)
            index = f'CREATE INDEX IF NOT EXISTS "{table}_by_time" ON {quoted} (at_ms)'
            yield f"DO $$ BEGIN PERFORM pg_advisory_xact_lock({lock}); {make}; {index}; END $$", {}
        else:  # a schema is one of attached databases here, and stands before the index
            prefix = "" if schema is None else f'"{schema}".'
            yield make, {}
            yield f'CREATE INDEX IF NOT EXISTS {prefix}"{table}_by_time" ON "{table}" (at_ms)', {}

    def _pruning(self, before_ms: int, most: int) -> Steps[int]:
        return (yield self._prune, {"before": before_ms, "most": most})

    def _before_ms(self, older_than: Seconds) -> int:
        return self._clock.now_ms() - int(seconds(older_than, "prune(older_than=…)") * 1000)


def _key_id(record_id: str, key: bytes) -> str:
    """Return the row id of a key's fence, with its partition: a key that moves to another partition has other
    fences."""
    place = record_id.rpartition(":")[0]
    return f"key:{hashlib.sha256(f'{place}:'.encode() + key).hexdigest()}"
