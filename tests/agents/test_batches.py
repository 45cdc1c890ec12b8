"""Batch handlers: how batches form, and an outcome for each record."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import flowshare as fs
from tests.agents.agents_kit import Seen, one_agent, run_agent, run_app


def batch_of(fun: Any, values: Sequence[Any], *, size: int = 100, within: float = 0.5, **options: Any) -> Seen:
    return run_agent(fun, values, batch=fs.Batch(size, within=within), **options)


def test_records_come_together_up_to_the_size():
    sizes: list[int] = []

    async def load(rows: fs.Records[int]) -> None:
        sizes.append(len(rows))
        assert all(isinstance(value, int) for value in rows.values())

    seen = batch_of(load, range(25), size=10, concurrency=1)

    assert sum(sizes) == 25
    assert max(sizes) == 10
    assert seen.report.accepted == 25


def test_a_batch_that_does_not_fill_is_handled_within_its_time():
    times: list[float] = []

    async def load(rows: fs.Records[int]) -> None:
        times.append(asyncio.get_running_loop().time())

    seen = batch_of(load, [1, 2, 3], size=1000, within=7)

    assert len(times) == 1
    assert 7 <= times[0] <= 8
    assert seen.report.accepted == 3


def test_each_record_of_a_batch_has_its_own_outcome():
    async def load(rows: fs.Records[dict], /) -> None:
        for row in rows:
            if row.value["n"] == 1:
                rows.reject(row, "bad row")
            elif row.value["n"] == 2 and row.delivery.attempt == 1:
                rows.release(row, delay=20)
            elif row.value["n"] == 3 and row.delivery.attempt == 1:
                rows.retry(row, ConnectionError("down"))

    seen = batch_of(load, [{"n": n} for n in range(5)], size=5)

    outcomes = sorted((one.offset, one.attempt, one.outcome) for one in seen.report.settled)
    assert outcomes == [
        (0, 1, "accepted"),
        (1, 1, "dead_lettered"),
        (2, 1, "released"),
        (2, 2, "accepted"),
        (3, 1, "retried"),
        (3, 2, "accepted"),
        (4, 1, "accepted"),
    ]
    assert seen.dead[0].headers["flowshare.dlq.reason"] == b"bad row"


def test_values_can_be_rejected_by_themselves_equal_ones_one_after_another():
    async def load(rows: fs.Records[int]) -> None:
        for value in rows.values():
            if value == 7:
                rows.reject(value, ValueError("seven"))

    seen = batch_of(load, [7, 1, 7], size=3)

    assert sorted((one.offset, one.outcome) for one in seen.report.settled) == [
        (0, "dead_lettered"),
        (1, "accepted"),
        (2, "dead_lettered"),
    ]
    assert seen.dead[0].headers["flowshare.dlq.reason"] == b"ValueError: seven"


def test_when_the_handler_raises_what_is_undecided_is_retried_and_what_is_decided_stands():
    async def load(rows: fs.Records[int]) -> None:
        if rows[0].delivery.attempt == 1:
            rows.reject(rows[0], "first")
            raise TimeoutError("warehouse")

    seen = batch_of(load, [1, 2, 3], size=3)

    assert sorted((one.offset, one.attempt, one.outcome) for one in seen.report.settled) == [
        (0, 1, "dead_lettered"),
        (1, 1, "retried"),
        (1, 2, "accepted"),
        (2, 1, "retried"),
        (2, 2, "accepted"),
    ]


def test_an_undecodable_record_does_not_spoil_its_batch():
    got: list[Any] = []

    async def load(rows: fs.Records[dict]) -> None:
        got.append(rows.values())

    seen = batch_of(load, [{"n": 1}, b"broken", {"n": 2}], size=3)

    assert got == [[{"n": 1}, {"n": 2}]]
    assert sorted(seen.outcomes) == ["accepted", "accepted", "dead_lettered"]


def test_what_a_batch_sends_is_confirmed_before_any_of_its_records_is_accepted():
    async def load(rows: fs.Records[int]) -> fs.Send:
        return fs.Send("out", sum(rows.values()))

    seen = batch_of(load, [1, 2, 3], size=3)

    assert [record.value for record in seen.out] == [6]
    assert seen.report.accepted == 3


def test_a_batch_that_returns_release_releases_all_of_it():
    async def load(rows: fs.Records[int]) -> Any:
        return fs.Release(delay=5) if rows[0].delivery.attempt == 1 else None

    seen = batch_of(load, [1, 2], size=2)

    assert seen.outcomes == ["released", "released", "accepted", "accepted"]


def test_a_batch_past_its_timeout_is_retried():
    async def load(rows: fs.Records[int]) -> None:
        if rows[0].delivery.attempt == 1:
            await asyncio.sleep(100)

    seen = batch_of(load, [1, 2], size=2, timeout=5)

    assert sorted(seen.outcomes) == ["accepted", "accepted", "retried", "retried"]


def test_a_plain_def_takes_batches_too():
    sizes: list[int] = []

    def load(rows: fs.Records[int]) -> None:
        sizes.append(len(rows))

    seen = batch_of(load, range(10), size=5)

    assert sum(sizes) == 10
    assert seen.report.accepted == 10


def test_middleware_of_a_batch_gets_its_records():
    got: list[int] = []

    async def load(rows: fs.Records[int]) -> None: ...

    app = one_agent(load, batch=fs.Batch(3))

    @app.middleware
    async def count(rows: fs.Records[int], call_next: Any) -> Any:
        got.append(len(rows))
        assert (rows.agent, rows.group) == ("agent", "t.agent")
        return await call_next()

    run_app(app, [1, 2, 3])

    assert sum(got) == 3


def test_a_record_of_another_batch_is_refused():
    records: fs.Records[int] = fs.Records([])

    with pytest.raises(ValueError, match="not a record of this batch"):
        records.reject(5, "x")
