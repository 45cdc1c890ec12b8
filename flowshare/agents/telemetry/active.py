"""Finds out if telemetry is wanted. Imports nothing of OpenTelemetry if it is not."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from flowshare.agents.telemetry.telemetry import Telemetry

logger = logging.getLogger("flowshare.telemetry")

ASKS: Final = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_TRACES_EXPORTER",
    "OTEL_METRICS_EXPORTER",
)
"""Variables that ask for an SDK, each by itself (`sdk.set_up`)."""


def asked(environment: Mapping[str, str] = os.environ) -> bool:
    """Tell if the environment asks for an SDK."""
    disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return not disabled and any(environment.get(name, "").strip() for name in ASKS)


@contextmanager
def exporting(service: str) -> Iterator[Callable[[], None] | None]:
    """Yield a function that sets up an SDK from the environment (`sdk.set_up`); None: the environment asks for none.

    Call the function after the application had the chance to set up its own SDK. At the end of the block the SDK that
    was set up exports the rest.
    """
    if not asked():
        yield None
        return
    from flowshare.agents.telemetry.sdk import set_up

    ends: list[Callable[[], None]] = []

    def begin() -> None:
        if (end := set_up(service)) is not None:
            ends.append(end)

    try:
        yield begin
    finally:
        for end in ends:
            end()


def installed() -> bool:
    """Tell if the SDK is installed."""
    try:
        return importlib.util.find_spec("opentelemetry.sdk") is not None
    except ModuleNotFoundError:
        return False


def providers() -> tuple[Any, Any] | None:
    """Return the application's providers of tracers and meters; None: it has set neither."""
    if "opentelemetry" not in sys.modules:
        return None
    try:
        from opentelemetry import metrics, trace
    except ImportError:  # another package of that name
        return None
    tracers, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
    nothing = ("ProxyTracerProvider", "NoOpTracerProvider", "_ProxyMeterProvider", "NoOpMeterProvider")
    if type(tracers).__name__ in nothing and type(meters).__name__ in nothing:
        return None
    return tracers, meters


def find(*, client_id: str, backend: str) -> Telemetry | None:
    """Return a host's telemetry, opened; None: no telemetry is wanted, or it cannot be used."""
    found = providers()
    if found is None:
        return None
    from flowshare.agents.telemetry.telemetry import Telemetry

    try:
        telemetry = Telemetry(*found, client_id=client_id, backend=backend)
    except Exception:  # a broken or old SDK: agents work without it
        logger.exception("telemetry cannot be used with the providers that are set; nothing is told")
        return None
    telemetry.open()
    return telemetry
