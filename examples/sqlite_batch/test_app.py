"""The batch agent's test: one row a record, impossible readings rejected."""

import sqlite3
from pathlib import Path

import pytest

import flowshare as fs
from examples.sqlite_batch import app as warehouse


@pytest.mark.flowshare
async def test_each_reading_is_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warehouse, "DATABASE", str(tmp_path / "readings.sqlite"))

    async with fs.testing.harness(warehouse.app) as bus:
        for number in range(1200):
            await bus.send(warehouse.readings, value={"sensor": f"s{number % 7}", "celsius": 20.0})
        await bus.send(warehouse.readings, value={"sensor": "broken", "celsius": -500.0})
        report = await bus.run_until_idle()

    database = sqlite3.connect(tmp_path / "readings.sqlite")
    assert database.execute("SELECT count(*) FROM readings").fetchone() == (1200,)
    database.close()
    assert report[warehouse.store].accepted == 1200
    assert report[warehouse.store].rejected == 1
