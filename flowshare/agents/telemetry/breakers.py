"""Metrics of the circuit breaker of an agent's group, as the agent hears of the breaker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowshare.agents.telemetry import conventions as names

if TYPE_CHECKING:
    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.agents.telemetry.telemetry import Telemetry
    from flowshare.share.breaker import BreakerState


class BreakerMetrics:
    """Breaker metrics of one agent. No method raises."""

    def __init__(self, telemetry: Telemetry, agent: ShareAgent) -> None:
        self._telemetry = telemetry
        self._agent = agent.name
        self._opened = 0
        self._common = {
            names.SYSTEM: names.KAFKA,
            names.GROUP: agent.group,
            names.CLIENT_ID: telemetry.client_id,
            names.AGENT: agent.name,
            names.BACKEND: telemetry.backend,
        }

    def hear(self, state: BreakerState, opened: int) -> None:
        """Note the reported state. opened: how often it opened since the agent began."""
        try:
            instruments = self._telemetry.instruments
            instruments.breakers[self._agent] = self._common, state
            if opened > self._opened:
                instruments.openings.add(opened - self._opened, self._common)
            self._opened = opened
        except Exception as error:  # noqa: BLE001 - the SDK is the application's
            self._telemetry.trouble(error)

    def end(self) -> None:
        """Remove the agent's breaker."""
        try:
            self._telemetry.instruments.breakers.pop(self._agent, None)
        except Exception as error:  # noqa: BLE001 - as above
            self._telemetry.trouble(error)
