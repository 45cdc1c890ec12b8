"""The application whose group tests look at in the console where Kafka's brokers lead it: an order there is not.

carry    a parcel that "hangs" does not end; a "late" one fails and is tried again in an hour, in a topic; a "broken"
         one becomes a dead letter
"""

from __future__ import annotations

import asyncio
import os

import flowshare as fs

app = fs.App("post", broker=os.environ["FLOWSHARE_BROKER"])
parcels = app.topic(os.environ["POST_TOPIC"], key_type=str, value_type=dict)


@app.share_agent(parcels, group=os.environ["POST_GROUP"], concurrency=4, retry=fs.Retry(max_attempts=3, delay=3600))
async def carry(parcel: dict) -> None:
    """Carry a parcel."""
    if parcel.get("broken"):
        raise fs.Reject("no address")
    if parcel.get("late"):
        raise ConnectionError("nobody opens")
    if parcel.get("hangs"):
        await asyncio.Event().wait()
