"""The example's test: each customer's payments are booked in order, one after the other, and once."""

import sqlite3
from pathlib import Path

import pytest

import flowshare as fs
from examples.cooperative import app as bank


@pytest.mark.flowshare
async def test_balances_are_sums_and_each_customer_keeps_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bank, "DATABASE", str(tmp_path / "balances.sqlite"))

    async with fs.testing.harness(bank.app) as bus:
        for number in range(60):
            await bus.send(bank.payments, {"cents": number}, key=f"customer {number % 6}")
        report = await bus.run_until_idle()

    report[bank.book].assert_in_order()
    assert report[bank.book].accepted == 60
    database = sqlite3.connect(tmp_path / "balances.sqlite")
    assert database.execute("SELECT count(*), sum(cents) FROM balance").fetchone() == (6, sum(range(60)))
    database.close()
