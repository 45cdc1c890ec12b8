"""The application whose groups tests look at in the console: what stands still stays so until somebody acts.

bill     in the order of keys: handlers of orders with "stuck" do not end, so that their keys stand still: "always", or
         "once", until somebody releases the order
mail     fails: some are tried again in an hour, some become dead letters
ledger   in the order of keys, and parks a key after a dead letter
archive  paused
"""

from __future__ import annotations

import asyncio
import os

import flowshare as fs

app = fs.App("shop", broker=os.environ["FLOWSHARE_BROKER"])
orders = app.topic("orders", key_type=str, value_type=dict)
mails = app.topic("mails", value_type=dict)


@app.share_agent(orders, order="key", concurrency=4)
async def bill(order: dict, delivery: fs.Delivery) -> None:
    """Bill an order."""
    if order.get("stuck") == "always" or (order.get("stuck") == "once" and delivery.attempt == 1):
        await asyncio.Event().wait()


@app.share_agent(mails, concurrency=4, retry=fs.Retry(max_attempts=3, delay=3600))
async def mail(message: dict) -> None:
    """Send a mail."""
    if message.get("broken"):
        raise fs.Reject("no address")
    if message.get("late"):
        raise ConnectionError(f"no answer from mx{message['n']}.example")


@app.share_agent(orders, order="key", after_dead_letter="park", concurrency=4)
async def ledger(order: dict) -> None:
    """Book an order."""
    if order.get("bad"):
        raise fs.Reject(f"no account for order {order['n']}")


@app.share_agent(orders, concurrency=4)
async def archive(_: dict) -> None:
    """Archive an order: this group is paused."""
