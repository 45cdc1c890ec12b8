"""A batch agent that writes into SQLite, each record once however often it is delivered.

At least once means that a record can come again after a crash. The delivery's id (topic id, partition, offset) is the
row's primary key, so the second write of a record changes nothing.

    flowshare send readings --lines --file readings.jsonl --app examples.sqlite_batch.app:app
    flowshare worker examples.sqlite_batch.app:app
"""

import os
import sqlite3
from typing import TypedDict

import flowshare as fs

DATABASE = os.environ.get("READINGS_DB", "readings.sqlite")

app = fs.App("warehouse", broker=os.environ.get("FLOWSHARE_BROKER", "embedded:///tmp/flowshare-warehouse"))


class Reading(TypedDict):
    """One measurement."""

    sensor: str
    celsius: float


readings = app.topic("readings", value_type=Reading)


@app.share_agent(readings, batch=fs.Batch(500, within=0.5))
def store(rows: fs.Records[Reading]) -> None:
    """Write up to 500 readings in one transaction; impossible ones are rejected one by one."""
    good = []
    for row in rows:
        if row.value["celsius"] < -273.15:
            rows.reject(row, "below absolute zero")
        else:
            good.append((row.id, row.value["sensor"], row.value["celsius"]))
    with sqlite3.connect(DATABASE) as database:
        database.execute("CREATE TABLE IF NOT EXISTS readings (id TEXT PRIMARY KEY, sensor TEXT, celsius REAL)")
        database.executemany("INSERT OR IGNORE INTO readings VALUES (?, ?, ?)", good)
    database.close()
