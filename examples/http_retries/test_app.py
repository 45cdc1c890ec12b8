"""The payments agent against its service on a real socket: nothing is charged twice, refusals end as dead letters."""

import asyncio

import pytest
from aiohttp.test_utils import TestServer

import flowshare as fs
from examples.http_retries import app as payments
from examples.http_retries.service import CHARGED, make_service


@pytest.mark.asyncio
async def test_busy_days_are_retried_and_refusals_are_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    service = make_service()
    async with TestServer(service) as server:
        monkeypatch.setattr(payments, "SERVICE", str(server.make_url("")).rstrip("/"))
        async with asyncio.timeout(30), fs.testing.harness(payments.app) as bus:
            for number in range(20):
                await bus.send(payments.orders, value=payments.Order(id=str(number), amount=40))
            await bus.send(payments.orders, value=payments.Order(id="big", amount=5000))
            report = await bus.run_until_idle()
            letters = bus.dead_letters(payments.charge)

    assert len(service[CHARGED]) == 20
    assert report[payments.charge].accepted == 20
    assert max(report[payments.charge].attempts) > 1
    assert [letter.reason for letter in letters] == ["refused: more than 1,000"]
