"""Retries around an HTTP call: a payment service that is sometimes busy and sometimes says no.

Start the service (it fails every third call with 503 and refuses amounts above 1,000 with 422), send orders, work:

    python -m examples.http_retries.service
    flowshare send orders '{"id": "1", "amount": 40}' --app examples.http_retries.app:app
    flowshare worker examples.http_retries.app:app

What the service cannot do now is retried with back-off; what it refuses ends in the topic `payments.charge.dlq` with
the reason in its headers: flowshare dlq show payments.charge.dlq --app examples.http_retries.app:app
"""

import os
from dataclasses import dataclass

import aiohttp

import flowshare as fs

SERVICE = os.environ.get("PAYMENT_SERVICE", "http://127.0.0.1:8099")

app = fs.App("payments", broker=os.environ.get("FLOWSHARE_BROKER", "embedded:///tmp/flowshare-payments"))


@dataclass
class Order:
    """An order to be paid; `id` makes the call idempotent."""

    id: str
    amount: int


orders = app.topic("orders", value_type=Order)
http: aiohttp.ClientSession


@app.on_start
async def open_session() -> None:
    """One session for all calls, on the handlers' loop."""
    global http
    http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5))


@app.on_drain
async def close_session() -> None:
    """Close the session when the last handler is done."""
    await http.close()


@app.share_agent(
    orders,
    concurrency=32,
    timeout=10,
    retry=fs.Retry(
        max_attempts=6,
        delay=fs.exponential(0.2, cap=30, jitter=True),
        on=(aiohttp.ClientError, TimeoutError),
    ),
)
async def charge(order: Order) -> None:
    """Charge one order; the service sees the same idempotency key on each attempt."""
    async with http.post(f"{SERVICE}/charge", json={"key": order.id, "amount": order.amount}) as answer:
        if answer.status == 422:
            raise fs.Reject(f"refused: {await answer.text()}")
        answer.raise_for_status()
