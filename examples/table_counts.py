"""A share agent and a Faust table in one app: orders are priced in any order, revenue is counted per customer in order.

The share agent works on many orders at a time and writes each result, with the customer as its key, to a topic. A
Faust agent reads that topic partition by partition and keeps one total per customer in a table, whose changelog is a
topic, too: a worker that is killed and started again has its totals back.

    flowshare worker examples.table_counts:app
    flowshare send orders '{"customer": "ann", "cents": 250}' --app examples.table_counts:app
"""

import os
from dataclasses import dataclass

import faust

import flowshare as fs

app = fs.App("revenue", broker=os.environ.get("FLOWSHARE_BROKER", "embedded:///tmp/flowshare-revenue"))


@dataclass
class Order:
    """An order: a customer and a net price."""

    customer: str
    cents: int


orders = app.topic("orders", value_type=Order)
priced = app.topic("orders.priced", key_type=str, value_type=int)
revenue = app.Table("revenue", default=int)


@app.share_agent(orders, concurrency=32)
async def price(order: Order) -> fs.Send:
    """Add the tax."""
    return fs.Send(priced, order.cents * 119 // 100, key=order.customer)


@app.agent(priced)
async def count(stream: faust.StreamT[int]) -> None:
    """Add up per customer; runs for one record at a time, in the partition's order."""
    async for customer, cents in stream.items():
        revenue[customer] += cents


@app.timer(interval=2)
async def show() -> None:
    """Print the totals that this process holds."""
    totals = {str(customer): cents for customer, cents in revenue.items()}
    print("revenue", {customer: totals[customer] for customer in sorted(totals)}, flush=True)
