"""An application for the manifests beside it: each order takes a while of waiting for somebody else.

The broker stands in the environment variable FLOWSHARE_BROKER.
"""

import asyncio

import flowshare as fs

app = fs.App("shop")
orders = app.topic("orders", value_type=str)


@app.share_agent(orders, concurrency=16, drain_timeout=25)
async def bill(order: str) -> None:
    await asyncio.sleep(0.5)
