"""`Telemetry`: a process's tracer and instruments, and what pools, feeders and producers get of them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from flowshare.agents.handler import tracing
from flowshare.agents.handler.retry_headers import retry_topic
from flowshare.agents.handler.texts import named
from flowshare.agents.telemetry import context
from flowshare.agents.telemetry import conventions as names
from flowshare.agents.telemetry.breakers import BreakerMetrics
from flowshare.agents.telemetry.ender import Ender
from flowshare.agents.telemetry.instruments import Instruments
from flowshare.agents.telemetry.processing import ProcessSpans
from flowshare.agents.telemetry.sending import TracedProducer
from flowshare.agents.telemetry.settling import SettleSpans

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.client.producer.producer import Producer

logger = logging.getLogger("flowshare.telemetry")


class Telemetry:
    """Of one host, from its start to its end.

    client_id: the app's id. backend: where its groups live. From `open` on, what is produced carries the current span.
    """

    def __init__(self, tracers: TracerProvider, meters: MeterProvider, *, client_id: str, backend: str) -> None:
        self.client_id = client_id
        self.backend = backend
        self.tracer = tracers.get_tracer(names.SCOPE, schema_url=names.SCHEMA_URL)
        self.instruments = Instruments(meters.get_meter(names.SCOPE, schema_url=names.SCHEMA_URL))
        self.ender = Ender()
        self._troubled = False

    def open(self) -> None:
        """Begin."""
        tracing.ambient.append(context.AMBIENT)

    def close(self) -> None:
        """End what is to be ended, for a limited time."""
        tracing.ambient.remove(context.AMBIENT)
        self.ender.close()

    def process(self, agent: ShareAgent) -> ProcessSpans:
        """For the pool of an agent."""
        return ProcessSpans(self, agent)

    def settle(self, agent: ShareAgent) -> SettleSpans:
        """For the feeder of an agent."""
        return SettleSpans(self, agent, retry_topic(agent.group))

    def breaker(self, agent: ShareAgent) -> BreakerMetrics:
        """For what hears of the breaker of an agent's group."""
        return BreakerMetrics(self, agent)

    def sends(self, producer: Producer) -> TracedProducer:
        """For all that is sent."""
        return TracedProducer(self, producer)

    def trouble(self, error: Exception) -> None:
        """What the application's SDK, samplers or processors raised: nothing of it may touch a record."""
        if not self._troubled:
            self._troubled = True
            logger.error("telemetry failed, records are handled without it: %s (this is said once)", named(error))
