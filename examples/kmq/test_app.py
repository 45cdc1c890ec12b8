"""The queue's test: payments are booked, and what is none has been delivered four times and is undelivered."""

import pytest

import flowshare as fs
from examples.kmq import app as till


@pytest.mark.flowshare
async def test_a_payment_is_booked_and_what_is_none_is_undelivered() -> None:
    till.BOOKED.clear()
    async with fs.testing.harness(till.app) as bus:
        await bus.send(till.payments, {"account": "a", "cents": 500})
        await bus.send(till.payments, {"account": "b", "cents": -1})
        await bus.send(till.payments, {"account": "a", "cents": 50})
        report = await bus.run_until_idle()

    assert till.BOOKED == {"a": 550}
    assert [one.attempt for one in report[till.book].settled if one.outcome != "accepted"] == [1, 2, 3, 4]
    assert [record.value for record in bus.records("payments__undelivered")] == [{"account": "b", "cents": -1}]
