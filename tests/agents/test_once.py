"""`fs.Once`: what a handler writes to a database is there once, whatever is delivered twice, late or side by side."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.handler.chunk import Chunk
from flowshare.protocol.key_hash import KeyOrder
from flowshare.protocol.messages import TopicPartition
from flowshare.testing import Bus
from tests.agents.agents_kit import Seen, one_agent, run_agent, run_app

DAY_MS = 86_400_000


@dataclass
class Raw:
    offset: int
    key: bytes | None
    value: bytes | None = b""
    timestamp: int = 0
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)


def delivered(
    offset: int, fence: int | None = None, *, key: bytes | None = b"ann", group: str = "bill", partition: int = 0
) -> fs.Delivery:
    """A delivery of the record at this offset; with a fence it is in the order of keys."""
    fenced = None if fence is None else (7, fence - offset)
    tp = TopicPartition("topic-1", partition)
    chunk = Chunk("agent", "in", tp, [], decode=None, deadline=1, generation=0, arrived=0, fence=fenced, group=group)
    if fence is not None:
        chunk.keep_order(KeyOrder())
    return fs.Delivery(chunk, Raw(offset, key))  # type: ignore[arg-type]


class Calendar:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.time_ms = 1_800_000_000_000

    def now_ms(self) -> int:
        return self.time_ms

    def next_day(self) -> None:
        self.time_ms += DAY_MS


class Shop:
    """A database with a table of effects."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calendar = Calendar()
        self.once = fs.Once(clock=self.calendar)  # type: ignore[arg-type]
        with self.open() as db, db:
            db.execute("CREATE TABLE effect (what)")
            self.once.create(db)

    @contextmanager
    def open(self, **options: Any) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=10, **options)) as db:
            yield db

    def handle(self, delivery: fs.Delivery, *, fails: bool = False, **options: Any) -> bool:
        """As a handler does: whether it was the first one."""
        with self.open() as db, db:
            first = self.once.first(db, delivery, **options)
            if first:
                db.execute("INSERT INTO effect VALUES (?)", (delivery.offset,))
            if fails:
                raise ConnectionError("the shop is on fire")
        return first

    def effects(self) -> list[int]:
        with self.open() as db:
            return [what for (what,) in db.execute("SELECT what FROM effect ORDER BY rowid")]

    def rows(self) -> list[tuple[Any, ...]]:
        with self.open() as db:
            return db.execute("SELECT scope, id, generation, serial FROM flowshare_once ORDER BY id").fetchall()


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop.db")


# --- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, "topic-1:0:5", 5])
def test_what_is_no_delivery_is_refused_before_anything_is_written(shop: Shop, given: Any):
    with pytest.raises(fs.errors.UsageError, match=r"takes the record's delivery, not .*fs\.current_delivery"):
        shop.handle(given)

    assert shop.rows() == []


def test_a_repeated_delivery_is_not_the_first(shop: Shop):
    assert shop.handle(delivered(5))
    assert not shop.handle(delivered(5))
    assert shop.handle(delivered(6))

    assert shop.effects() == [5, 6]


def test_the_row_of_a_record_names_group_record_and_fence(shop: Shop):
    shop.handle(delivered(5))
    shop.handle(delivered(6, fence=9, key=None))

    assert shop.rows() == [("bill", "topic-1:0:5", None, None), ("bill", "topic-1:0:6", 7, 9)]


def test_a_transaction_that_is_rolled_back_takes_its_row_with_it(shop: Shop):
    with pytest.raises(ConnectionError):
        shop.handle(delivered(5), fails=True)

    assert shop.rows() == []
    assert shop.handle(delivered(5))
    assert shop.effects() == [5]


def test_groups_that_read_one_topic_do_not_hide_each_other(shop: Shop):
    assert shop.handle(delivered(5, group="bill"))
    assert shop.handle(delivered(5, group="ship"))
    assert not shop.handle(delivered(5, group="ship"))


def test_a_second_transaction_of_a_handler_has_a_scope_of_its_own(shop: Shop):
    assert shop.handle(delivered(5))
    assert shop.handle(delivered(5), scope="bill, points")
    assert not shop.handle(delivered(5), scope="bill, points")


def test_of_two_transactions_side_by_side_one_is_the_first(shop: Shop):
    assert side_by_side(shop, delivered(5), delivered(5), first_commits=True) is False
    assert side_by_side(shop, delivered(6), delivered(6), first_commits=False) is True

    assert shop.effects() == [5, 6]


def side_by_side(shop: Shop, one: fs.Delivery, other: fs.Delivery, *, first_commits: bool) -> bool:
    """Run a second transaction while the first one has written its row, and return the second one's answer."""
    heard: list[bool] = []
    begun = threading.Event()

    def second() -> None:
        begun.set()
        heard.append(shop.handle(other))

    with shop.open() as db:
        assert shop.once.first(db, one)
        db.execute("INSERT INTO effect VALUES (?)", (one.offset,))
        thread = threading.Thread(target=second)
        thread.start()
        begun.wait()
        thread.join(0.05)
        assert heard == []
        db.commit() if first_commits else db.rollback()
    thread.join()
    return heard[0]


def test_many_threads_that_handle_the_same_records_have_each_effect_once(shop: Shop):
    def work() -> None:
        for offset in range(20):
            shop.handle(delivered(offset))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(shop.effects()) == list(range(20))


# --- fences -----------------------------------------------------------------------------------------------------------


def test_a_delivery_with_a_lower_fence_is_overtaken_and_writes_nothing(shop: Shop):
    shop.handle(delivered(6, fence=9))

    with pytest.raises(fs.errors.Overtaken, match="in-0@5"):
        shop.handle(delivered(5, fence=3))

    assert shop.effects() == [6]


def test_a_higher_fence_passes_and_a_repeated_record_with_one_is_not_the_first(shop: Shop):
    assert shop.handle(delivered(5, fence=3))
    assert shop.handle(delivered(6, fence=4))
    assert not shop.handle(delivered(6, fence=8))

    with pytest.raises(fs.errors.Overtaken):
        shop.handle(delivered(7, fence=7))


def test_asked_twice_by_one_delivery_it_is_not_the_first_any_more(shop: Shop):
    assert shop.handle(delivered(5, fence=3))
    assert not shop.handle(delivered(5, fence=3))


def test_the_generation_of_a_fence_comes_before_its_serial(shop: Shop):
    old = delivered(5, fence=900)
    new = delivered(6, fence=1)
    new._chunk.fence = (8, new._chunk.fence[1])

    assert shop.handle(new)
    with pytest.raises(fs.errors.Overtaken):
        shop.handle(old)


@pytest.mark.parametrize(
    "other",
    [
        delivered(5, fence=3, key=b"bob"),
        delivered(5, fence=3, key=b""),
        delivered(5, fence=3, key=None),
        delivered(5, fence=3, partition=1),
        delivered(5, fence=3, group="ship"),
        delivered(5),
    ],
    ids=["another key", "an empty key", "no key", "another partition", "another group", "no order"],
)
def test_what_another_key_has_written_keeps_nobody_out(shop: Shop, other: fs.Delivery):
    shop.handle(delivered(6, fence=9))

    assert shop.handle(other)


def test_a_fence_of_a_transaction_that_is_rolled_back_keeps_nobody_out(shop: Shop):
    with pytest.raises(ConnectionError):
        shop.handle(delivered(6, fence=9), fails=True)

    assert shop.handle(delivered(5, fence=3))


def test_who_comes_late_while_the_next_one_writes_waits_and_is_overtaken(shop: Shop):
    heard: list[object] = []

    def late() -> None:
        try:
            heard.append(shop.handle(delivered(5, fence=3)))
        except fs.errors.Overtaken as error:
            heard.append(type(error))

    with shop.open() as db:
        assert shop.once.first(db, delivered(6, fence=9))
        thread = threading.Thread(target=late)
        thread.start()
        thread.join(0.05)
        assert heard == []
        db.commit()
    thread.join()

    assert heard == [fs.errors.Overtaken]


# --- in agents --------------------------------------------------------------------------------------------------------


def test_a_handler_that_fails_after_its_commit_has_its_effect_once(shop: Shop):
    def handler(value: int, delivery: fs.Delivery) -> None:
        shop.handle(delivery)
        if delivery.attempt == 1:
            raise ConnectionError("after the commit")

    seen = run_agent(handler, range(5))

    assert sorted(shop.effects()) == list(range(5))
    assert seen.report.accepted == 5


def test_two_agents_on_one_topic_have_their_effects_each(shop: Shop):
    def handler(value: int, delivery: fs.Delivery) -> None:
        assert shop.handle(delivery)

    app = one_agent(handler)
    app.share_agent("in", name="other")(handler)

    run_app(app, [1, 2])

    assert sorted(scope for scope, *_ in shop.rows()) == ["t.agent", "t.agent", "t.other", "t.other"]
    assert sorted(shop.effects()) == [0, 0, 1, 1]


def run_in_order(handler: Callable[..., None], order: Any, **options: Any) -> Seen:
    async def send(bus: Bus) -> None:
        for number in range(4):
            await bus.send("in", number, key="ann", headers={"customer": b"c1"} if number else {})

    return run_app(one_agent(handler, order=order, **options), [], during=send)


@pytest.mark.parametrize(
    ("order", "keys"),
    [("key", [b"ann"] * 4), (fs.Header("customer"), [None, b"c1", b"c1", b"c1"]), (None, [None] * 4)],
    ids=["by key", "by header", "without"],
)
def test_a_delivery_says_what_orders_it(order: Any, keys: list[bytes | None]):
    seen: dict[int, bytes | None] = {}

    def handler(value: int, delivery: fs.Delivery) -> None:
        seen[value] = delivery.order_key

    run_in_order(handler, order)

    assert [seen[number] for number in range(4)] == keys


def test_an_agent_in_order_has_one_fence_of_its_key_in_the_table(shop: Shop):
    fences: list[fs.Fence | None] = []

    def handler(value: int, delivery: fs.Delivery) -> None:
        assert shop.handle(delivery)
        fences.append(delivery.fence)

    run_in_order(handler, "key")

    (of_key,) = [row[2:] for row in shop.rows() if row[1].startswith("key:")]
    assert of_key == fences[-1] == max(fences)
    assert shop.effects() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "options", [{"retry": fs.Retry(on=(OSError,))}, {"reject": (Exception,)}], ids=["not retried", "rejected"]
)
def test_an_overtaken_record_is_given_back_and_no_dead_letter(options: dict[str, Any]):
    def handler(value: int, delivery: fs.Delivery) -> None:
        if delivery.attempt == 1:
            raise fs.errors.Overtaken("somebody else has it")

    seen = run_agent(handler, [1], **options)

    assert seen.outcomes == ["released", "accepted"]
    assert seen.dead == []


# --- pruning ----------------------------------------------------------------------------------------------------------


def test_pruning_deletes_what_is_older_the_oldest_first_and_no_more_than_its_limit(shop: Shop):
    for offset in range(5):
        shop.handle(delivered(offset))
        shop.calendar.next_day()

    with shop.open() as db, db:
        assert shop.once.prune(db, timedelta(days=1, hours=12), limit=3) == 3
        assert shop.once.prune(db, timedelta(days=1, hours=12), limit=3) == 1
        assert shop.once.prune(db, 1.5 * 86_400) == 0

    assert [row[1] for row in shop.rows()] == ["topic-1:0:4"]
    assert shop.handle(delivered(0))


def test_pruning_leaves_the_fence_of_a_key_that_has_records(shop: Shop):
    for offset in range(3):
        shop.handle(delivered(offset, fence=offset + 1))
        shop.calendar.next_day()

    with shop.open() as db, db:
        assert shop.once.prune(db, timedelta(days=1, hours=12)) == 2

    with pytest.raises(fs.errors.Overtaken):
        shop.handle(delivered(1, fence=2))


def test_pruning_commits_nothing(shop: Shop):
    shop.handle(delivered(5))
    shop.calendar.next_day()
    with shop.open() as db:
        assert shop.once.prune(db, 60) == 1
        db.rollback()

    assert not shop.handle(delivered(5))


@pytest.mark.parametrize(("older_than", "limit"), [(-1, 10), ("1 day", 10), (60, 0), (60, 1.5), (None, 10)])
def test_pruning_refuses_what_is_no_age_and_no_number(shop: Shop, older_than: Any, limit: Any):
    with shop.open() as db, pytest.raises(fs.errors.OptionError, match="prune"):
        shop.once.prune(db, older_than, limit=limit)


# --- connections ------------------------------------------------------------------------------------------------------


def test_a_connection_that_commits_by_itself_is_refused_before_anything_is_written(shop: Shop):
    with shop.open(isolation_level=None) as db:
        with pytest.raises(fs.errors.UsageError, match="BEGIN"):
            shop.once.first(db, delivered(5))
        with pytest.raises(fs.errors.UsageError, match="commits each statement"):
            shop.once.prune(db, 60)

    assert shop.rows() == []


def test_with_a_transaction_begun_by_hand_it_is_taken(shop: Shop):
    with shop.open(isolation_level=None) as db:
        db.execute("BEGIN IMMEDIATE")
        assert shop.once.first(db, delivered(5))
        db.execute("ROLLBACK")

    assert shop.handle(delivered(5))


def test_a_connection_of_a_class_derived_from_the_drivers_is_taken(shop: Shop):
    class Traced(sqlite3.Connection):
        pass

    with shop.open(factory=Traced) as db, db:
        assert shop.once.first(db, delivered(5))


@pytest.mark.parametrize("given", [None, "shop.db", object(), SimpleNamespace(execute=print)])
def test_what_is_no_connection_is_refused_with_what_is_taken(given: Any):
    for call in (
        fs.Once().create,
        lambda one: fs.Once().first(one, delivered(5)),
        lambda one: fs.Once().prune(one, 60),
    ):
        with pytest.raises(fs.errors.UsageError, match=r"takes a connection of sqlite3, .*psycopg.*SQLAlchemy.*, not "):
            call(given)


def test_a_cursor_is_no_connection(shop: Shop):
    with shop.open() as db, pytest.raises(fs.errors.UsageError, match=r"not sqlite3\.Cursor"):
        shop.once.first(db.cursor(), delivered(5))


@pytest.mark.parametrize(
    "table",
    [
        "",
        "once; DROP TABLE x",
        "1st",
        "a.b.c",
        "Once",
        'on"ce',
        "once ",
        ".once",
        "app.",
        "x" * 56,
        "s" * 64 + ".once",
        5,
    ],
)
def test_what_is_no_name_of_a_table_is_refused(table: Any):
    with pytest.raises(fs.errors.OptionError, match="small letters"):
        fs.Once(table)


@pytest.mark.parametrize("table", ["order", "main.once", "_1", "x" * 55])
def test_a_table_may_have_any_name_and_a_schema(shop: Shop, table: str):
    once = fs.Once(table)

    with shop.open() as db, db:
        once.create(db)
        once.create(db)
        assert once.first(db, delivered(5))
        assert not once.first(db, delivered(5))
        assert once.prune(db, 60) == 0
    assert repr(once) == f"fs.Once({table!r})"
    assert once.table == table


def test_the_index_is_used_for_what_is_old(shop: Shop):
    with shop.open() as db:
        asked = "EXPLAIN QUERY PLAN SELECT id FROM flowshare_once WHERE at_ms < 5 ORDER BY at_ms"
        plan = str(db.execute(asked).fetchall())

    assert "flowshare_once_by_time" in plan


# --- drivers with another style of parameters, and with coroutines ----------------------------------------------------


class Cursor:
    """Of psycopg, as far as it is used, on SQLite: values are named `%(name)s`, any other `%` is an error."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._cursor = db.cursor()

    def execute(self, statement: str, values: Mapping[str, Any] | None = None) -> None:
        assert "?" not in statement
        assert not re.search(r"(?<!:):\w", statement)
        if statement.startswith("DO $$"):
            return  # PostgreSQL's own; the table is there
        assert values is not None
        assert set(re.findall(r"%\((\w+)\)s", statement)) <= set(values)
        statement = re.sub(r"%\((\w+)\)s", r":\1", statement)
        assert "%" not in statement
        self._cursor.execute(statement, values)

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    def close(self) -> None:
        self._cursor.close()


class Connection:
    def __init__(self, db: sqlite3.Connection, *, autocommit: bool = False) -> None:
        self.db = db
        self.autocommit = autocommit

    @property
    def info(self) -> SimpleNamespace:
        return SimpleNamespace(transaction_status=2 if self.db.in_transaction else 0)

    def cursor(self) -> Cursor:
        return Cursor(self.db)


class AsyncCursor(Cursor):
    async def close(self) -> None:  # type: ignore[override]
        super().close()


class AsyncConnection(Connection):
    async def execute(self, statement: str, values: Mapping[str, Any] | None = None) -> AsyncCursor:
        cursor = AsyncCursor(self.db)
        cursor.execute(statement, values)
        return cursor


Connection.__module__ = "psycopg"
AsyncConnection.__module__ = "psycopg"


def test_psycopgs_parameters_are_its_own(shop: Shop):
    with shop.open() as db, db:
        connection = Connection(db)
        shop.once.create(connection)
        assert shop.once.first(connection, delivered(5, fence=3))
        assert not shop.once.first(connection, delivered(5, fence=3))
        assert shop.once.prune(connection, 60) == 0
        with pytest.raises(fs.errors.Overtaken):
            shop.once.first(connection, delivered(4, fence=2))


def test_psycopgs_autocommit_is_refused_outside_of_a_transaction(shop: Shop):
    with shop.open(isolation_level=None) as db:
        connection = Connection(db, autocommit=True)
        with pytest.raises(fs.errors.UsageError, match=r"with connection.transaction\(\)"):
            shop.once.first(connection, delivered(5))
        db.execute("BEGIN")
        assert shop.once.first(connection, delivered(5))


def test_a_driver_that_cannot_say_how_many_rows_it_wrote_is_refused(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Cursor, "rowcount", -1)

    with shop.open() as db, pytest.raises(fs.errors.UsageError, match="pipeline"):
        shop.once.first(Connection(db), delivered(5))


def test_a_connection_with_coroutines_is_awaited(shop: Shop):
    async def main(db: sqlite3.Connection) -> None:
        connection = AsyncConnection(db)
        await shop.once.create_async(connection)
        assert await shop.once.first_async(connection, delivered(5, fence=3))
        assert not await shop.once.first_async(connection, delivered(5, fence=3))
        assert await shop.once.first_async(connection, delivered(5, fence=3), scope="more")
        assert await shop.once.prune_async(connection, 60) == 0
        with pytest.raises(fs.errors.Overtaken):
            await shop.once.first_async(connection, delivered(4, fence=2))
        db.rollback()
        with pytest.raises(fs.errors.UsageError, match="commits each statement"):
            await shop.once.first_async(AsyncConnection(db, autocommit=True), delivered(5))

    with shop.open() as db:
        asyncio.run(main(db))


def test_each_kind_of_connection_has_its_own_methods(shop: Shop):
    with shop.open() as db:
        with pytest.raises(fs.errors.UsageError, match=r"await once\.first_async"):
            shop.once.first(AsyncConnection(db), delivered(5))
        with pytest.raises(fs.errors.UsageError, match="no coroutines"):
            asyncio.run(shop.once.first_async(db, delivered(5)))


# --- SQLAlchemy, where it is installed --------------------------------------------------------------------------------


def test_a_connection_and_a_session_of_sqlalchemy_are_taken(shop: Shop):
    sqlalchemy = pytest.importorskip("sqlalchemy")
    orm = pytest.importorskip("sqlalchemy.orm")
    engine = sqlalchemy.create_engine(f"sqlite:///{shop.path}")

    with engine.begin() as connection:
        shop.once.create(connection)
        assert shop.once.first(connection, delivered(5, fence=3))
        assert not shop.once.first(connection, delivered(5, fence=3))
    with orm.Session(engine) as session:
        assert not shop.once.first(session, delivered(5, fence=3))
        assert shop.once.first(session, delivered(6, fence=4))
        session.rollback()
        assert shop.once.first(session, delivered(6, fence=4))
        session.commit()
    with engine.connect() as connection, pytest.raises(fs.errors.Overtaken):
        shop.once.first(connection, delivered(4, fence=2))
    by_itself = engine.execution_options(isolation_level="AUTOCOMMIT")
    with by_itself.connect() as connection, pytest.raises(fs.errors.UsageError, match="commits each statement"):
        shop.once.first(connection, delivered(7))
    with pytest.raises(fs.errors.UsageError, match="Engine"):
        shop.once.first(engine, delivered(7))
    engine.dispose()


def test_an_asynchronous_session_of_sqlalchemy_is_awaited(shop: Shop):
    pytest.importorskip("aiosqlite")
    sqlalchemy = pytest.importorskip("sqlalchemy.ext.asyncio")

    async def main() -> None:
        engine = sqlalchemy.create_async_engine(f"sqlite+aiosqlite:///{shop.path}")
        async with sqlalchemy.AsyncSession(engine) as session:
            assert await shop.once.first_async(session, delivered(5))
            await session.commit()
        async with engine.connect() as connection:
            assert not await shop.once.first_async(connection, delivered(5))
        await engine.dispose()

    asyncio.run(main())


@pytest.mark.parametrize("returns_early", [True, False])
def test_a_repeated_record_that_returns_nothing_for_its_sink_is_warned_of(
    returns_early: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    once = fs.Once()
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as db, db:
        once.create(db)

    def handler(value: int, delivery: fs.Delivery) -> int | None:
        with closing(sqlite3.connect(path)) as db, db:
            if not once.first(db, delivery) and returns_early:
                return None
        if delivery.attempt == 1:
            raise ConnectionError("after the commit")
        return value

    seen = run_agent(handler, [1, 2], sink=["out"])

    assert seen.report.accepted == 2
    warned = [one.message for one in caplog.records if "returned nothing for out" in one.message]
    assert len(warned) == returns_early
    assert len(seen.out) == 2 * (not returns_early)
