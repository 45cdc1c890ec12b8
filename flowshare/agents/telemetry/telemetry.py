"""`Telemetry`: a process's tracer and instruments, and the objects that pools, feeders and producers get."""

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
    """Telemetry of one host, from its start to its end.

    client_id: the app's id. backend: of its groups. From `open` on, produced records carry the current span.
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
        """End, and flush the spans for a limited time."""
        tracing.ambient.remove(context.AMBIENT)
        self.ender.close()

    def process(self, agent: ShareAgent) -> ProcessSpans:
        """Make the spans for an agent's pool."""
        return ProcessSpans(self, agent)

    def settle(self, agent: ShareAgent) -> SettleSpans:
        """Make the spans for an agent's feeder."""
        return SettleSpans(self, agent, retry_topic(agent.group))

    def breaker(self, agent: ShareAgent) -> BreakerMetrics:
        """Make the metrics for a breaker's listener."""
        return BreakerMetrics(self, agent)

    def sends(self, producer: Producer) -> TracedProducer:
        """Wrap the producer."""
        return TracedProducer(self, producer)

    def trouble(self, error: Exception) -> None:
        """Log the first error of the application's SDK, samplers or processors; no such error may affect a record."""
        if not self._troubled:
            self._troubled = True
            logger.error("telemetry failed, records are handled without it: %s (this is said once)", named(error))
