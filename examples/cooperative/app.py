"""An agent that adds up each customer's payments, with as many workers as you like on one partition.

A worker holds ranges of keys, so it gets all payments of its customers, one after the other, in the order in which they
were made; so the offset that was booked last tells a payment that comes again after a crash from a new one.

    flowshare topics create payments --partitions 1
    flowshare send payments --key alice '{"cents": 500}'
    flowshare worker examples.cooperative.app:app --procs 4
"""

import os
import sqlite3
from contextlib import closing
from typing import TypedDict

import flowshare as fs

DATABASE = os.environ.get("BALANCES_DB", "balances.sqlite")

app = fs.App("bank", broker=os.environ.get("FLOWSHARE_BROKER", "embedded:///tmp/flowshare-bank"))


class Payment(TypedDict):
    """Cents that a customer pays in."""

    cents: int


payments = app.topic("payments", key_type=str, value_type=Payment)


@app.cooperative_agent(payments, group="balances", retry=fs.Retry(max_attempts=5, delay=5))
def book(payment: Payment, delivery: fs.Delivery) -> None:
    """Add a payment, once: a record that comes again after a crash has an offset that was booked."""
    with closing(sqlite3.connect(DATABASE, timeout=30)) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS balance (customer PRIMARY KEY, cents, booked)")
        database.execute(
            "INSERT INTO balance VALUES (?, ?, ?) ON CONFLICT (customer) DO UPDATE"
            " SET cents = cents + excluded.cents, booked = excluded.booked WHERE booked < excluded.booked",
            (delivery.key, payment["cents"], delivery.offset),
        )
