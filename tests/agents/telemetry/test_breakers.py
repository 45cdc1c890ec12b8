"""Metrics of a group's circuit breaker: its state as the agent hears it, and how often it opened."""

from __future__ import annotations

from typing import Any

import flowshare as fs
from flowshare.agents.telemetry.breakers import BreakerMetrics
from flowshare.share.breaker import BreakerState
from tests.agents.telemetry.kit import Told, telling
from tests.agents.test_breaker import Downstream, lives, send


def states(told: Told) -> dict[str, int]:
    """Value of each state."""
    found = told.metrics().get("flowshare.breaker.status", [])
    return {attributes["flowshare.breaker.state"]: value for attributes, value in found}


def test_the_state_is_one_of_three_and_openings_are_counted(monkeypatch: Any) -> None:
    told = telling(monkeypatch)

    async def story(bus: Any, downstream: Downstream) -> None:
        await bus.advance(1)
        assert states(told) == {"closed": 1, "open": 0, "half-open": 0}
        downstream.broken = True
        await send(bus, 50)
        await bus.advance(4)
        found = told.metrics()
        assert states(told) == {"closed": 0, "open": 1, "half-open": 0}
        [(attributes, count)] = found["flowshare.breaker.openings"]
        assert count == 1
        assert attributes["messaging.consumer.group.name"] == "shop.bill"
        assert attributes["flowshare.agent"] == "bill"
        downstream.broken = False
        await bus.advance(60)

    lives(story)
    assert states(told) == {}, "who has ended hears nothing"


def test_without_a_breaker_there_is_nothing_of_it(monkeypatch: Any) -> None:
    told = telling(monkeypatch)

    async def story(bus: Any, _: Downstream) -> None:
        await send(bus, 1)
        await bus.run_until_idle()
        assert not {name for name in told.metrics() if "breaker" in name}

    lives(story, breaker=None)


def test_an_sdk_that_raises_touches_nothing() -> None:
    class Broken:
        client_id = backend = "x"

        def __init__(self) -> None:
            self.troubles: list[Exception] = []

        @property
        def instruments(self) -> Any:
            raise RuntimeError("the SDK is broken")

        def trouble(self, error: Exception) -> None:
            self.troubles.append(error)

    app, broken = fs.App("shop"), Broken()

    @app.share_agent("orders")
    async def bill(value: bytes) -> None: ...

    made: Any = BreakerMetrics(broken, bill)  # type: ignore[arg-type]
    made.hear(BreakerState.OPEN, 1)
    made.end()
    assert [str(one) for one in broken.troubles] == ["the SDK is broken"] * 2
