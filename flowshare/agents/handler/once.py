"""`fs.Once`: a handler's effects in a database, once for each record, however often that is delivered.

One table, whose rows are written in the transaction of the handler's own writes. They stand and fall together, so a row
is there exactly when the effects are:

    id                                  row of                      says
    topic id:partition:offset           a record (`delivery.id`)    its effects are there
    key:SHA-256 of partition and key    a key, with an `order`      the highest fence that has written for it

Both are of a *scope*, the agent's group by default. Correctness rests on the database: who inserts a row that another
transaction has inserted or changes waits until that one ends, and then sees what came of it.
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
"""Rows that one `prune` deletes at most, unless it is told otherwise."""
_TABLE: Final = re.compile(r"(?:(?P<schema>[a-z_][a-z0-9_]{0,62})\.)?(?P<table>[a-z_][a-z0-9_]{0,54})")
"""Names in small letters mean the same with quotes and without; PostgreSQL cuts a name at 63 characters, and the index
has 8 more than its table."""


class Once:
    """Which records' effects a database has: a table beside those that handlers write to.

    `once.create(connection)` makes the table; `if once.first(connection, delivery):` guards a handler's writes in the
    same transaction; `once.prune(connection, older_than)` keeps the table small. None of them commits. `create_async`,
    `first_async` and `prune_async` are for connections with coroutines.

    Connections: of sqlite3, psycopg, psycopg2, and SQLAlchemy's Connection and Session to SQLite or PostgreSQL; with
    coroutines of aiosqlite, psycopg (AsyncConnection), and SQLAlchemy's AsyncConnection and AsyncSession. All methods
    raise UsageError for another one, and let errors of the driver through. One object may be used by any number of
    threads and tasks, each with a connection of its own.
    """

    __slots__ = ("_clock", "_insert", "_names", "_prune", "_upsert", "table")

    def __init__(self, table: str = "flowshare_once", *, clock: Clock | None = None) -> None:
        """table: small letters, digits and underscores, at most 55; a schema may stand before it (`app.once`).
        clock: when rows were written.

        Raises: OptionError when the name is none.
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
        # the age is asked twice: a row that was written anew while this waited for it stays
        self._prune: Final = (
            f"DELETE FROM {quoted} WHERE at_ms < :before AND (scope, id) IN "  # noqa: S608
            f"(SELECT scope, id FROM {quoted} WHERE at_ms < :before ORDER BY at_ms LIMIT :most)"
        )

    def __repr__(self) -> str:
        return f"fs.Once({self.table!r})"

    # --- without coroutines -------------------------------------------------------------------------------------

    def create(self, connection: Any) -> None:
        """Make the table and its index where they are not there; several processes may do so at a time. Commit it."""
        run(connection, self._creating, writes=False)

    def first(self, connection: Any, delivery: Delivery, *, scope: str | None = None) -> bool:
        """Whether this record's effects are not in the database yet; then a row that says they are is written, in the
        connection's transaction, which has to be that of the effects.

        Waits for another transaction that has the record, or the key of an agent with an `order`, until it ends. Call
        it first in the transaction.
        scope: whose effects; None: of the agent's group. Another one for each further transaction of a handler.
        Raises: fs.errors.Overtaken when a later delivery of the record's key has written in the scope: roll back, and
        let it through. UsageError when the connection commits each statement by itself, or without a delivery.
        """
        return run(connection, lambda _: self._noting(delivery, scope))

    def prune(self, connection: Any, older_than: Seconds, *, limit: int = PRUNE_MAX) -> int:
        """Delete up to `limit` of the rows that are older than so many seconds (or a timedelta), the oldest first;
        returns how many. As many as the limit: there may be more, for another transaction.

        What is deleted is forgotten, records and fences of keys: a record that comes again after that is a first one.
        So it has to be longer than a record can come again after its effects: retries, delays, workers that are away;
        at most the topic's retention, which it has to be where offsets are set back.
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
        """The key before the record: of a key's transactions one goes on at a time, from their first statement on."""
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
        return bool((yield self._insert, row))

    def _creating(self, dialect: Dialect) -> Steps[None]:
        schema, table = self._names
        quoted = f'"{table}"' if schema is None else f'"{schema}"."{table}"'
        columns = "scope TEXT NOT NULL, id TEXT NOT NULL, generation BIGINT, serial BIGINT, at_ms BIGINT NOT NULL"
        make = f"CREATE TABLE IF NOT EXISTS {quoted} ({columns}, PRIMARY KEY (scope, id))"
        if dialect == POSTGRESQL:
            # of two that make a table at a time one would fail; one statement, so that the lock holds in any mode
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
    """Fences are of a share-partition: a key that has another partition since has others."""
    place = record_id.rpartition(":")[0]
    return f"key:{hashlib.sha256(f'{place}:'.encode() + key).hexdigest()}"
