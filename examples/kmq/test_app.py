"""The queue's test: payments are booked, and what is none has been delivered four times and is undelivered."""

import asyncio
import importlib

import pytest

from examples.kmq import app as till

LIMIT_S = 60


@pytest.mark.slow
def test_a_payment_is_booked_and_what_is_none_is_undelivered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWSHARE_BROKER", "memory://")
    importlib.reload(till)
    letters: list[bytes | None] = []

    async def undelivered() -> None:
        host = till.app.host
        assert host is not None
        letters[:] = [record.value for record in await host.admin.read("payments__undelivered", 0)]

    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), till.app.running():
            await till.payments.send(value={"account": "a", "cents": 500})
            await till.payments.send(value={"account": "b", "cents": -1})
            await till.payments.send(value={"account": "a", "cents": 50})
            while not letters:
                await asyncio.sleep(0.05)
                assert till.app.host is not None
                await till.app.host.service.call(undelivered)

    asyncio.run(main())

    assert till.BOOKED == {"a": 550}
    assert len(letters) == 1
    assert b'"b"' in (letters[0] or b"")
