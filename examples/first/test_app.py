"""The first agent's test: no broker, no waiting."""

import pytest

import flowshare as fs
from examples.first.app import app, greet, greetings


@pytest.mark.flowshare
async def test_everybody_is_greeted(capsys: pytest.CaptureFixture[str]) -> None:
    async with fs.testing.harness(app) as bus:
        await bus.send(greetings, value="world")
        report = await bus.run_until_idle()

    assert report[greet].accepted == 1
    assert capsys.readouterr().out == "Hello, world!\n"
