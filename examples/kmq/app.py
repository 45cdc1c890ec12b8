"""An agent of a KMQ queue: a topic and a topic of markers, which any Kafka has, and consumers of the JVM understand.

    flowshare send payments --lines --file payments.jsonl --app examples.kmq.app:app
    flowshare worker examples.kmq.app:app
    flowshare kmq tracker --queue payments --markers payments-markers --app examples.kmq.app:app

With `tracker=True` the worker would track the queue, too; then the third command is not needed.
"""

import os
from typing import TypedDict

import flowshare as fs

app = fs.App("till", broker=os.environ.get("FLOWSHARE_BROKER", "embedded:///tmp/flowshare-till"))
BOOKED: dict[str, int] = {}


class Payment(TypedDict):
    """Money that came in; less than nothing is a mistake of whoever sent it."""

    account: str
    cents: int


payments = app.topic("payments", value_type=Payment)


@app.kmq_agent(payments, markers="payments-markers", redeliver_after=2.0, timeout=1.0, tracker=True)
async def book(payment: Payment) -> None:
    """Book a payment. What raises has no end marker: the tracker sends it again, three times, then to
    payments__undelivered."""
    if payment["cents"] < 0:
        raise ValueError(f"{payment['cents']} cents of {payment['account']} are no payment")
    BOOKED[payment["account"]] = BOOKED.get(payment["account"], 0) + payment["cents"]
