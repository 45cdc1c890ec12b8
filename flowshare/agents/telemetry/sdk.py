"""An SDK by the `OTEL_*` variables, for `flowshare worker`: with the extra installed, one variable is enough.

    OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 flowshare worker app:app

flowshare does not leave this to `opentelemetry-instrument`, because people try the variable first, and an API without
an SDK ignores all variables. An application that sets providers of its own, or runs under `opentelemetry-instrument`,
keeps them. The SDK and its exporters read endpoint, headers, protocol, sampler, limits, intervals and resource
themselves. This module only chooses the exporters (`otlp` over HTTP, or those that `OTEL_TRACES_EXPORTER` and
`OTEL_METRICS_EXPORTER` name) and two defaults of the resource: `service.name` is the app's id, and
`service.instance.id` tells processes apart, whose metrics would otherwise be one series.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any, Final

from flowshare.agents.handler.texts import named
from flowshare.agents.telemetry.active import asked, installed, providers

logger = logging.getLogger("flowshare.telemetry")

SHUTDOWN_S: Final = 2.0
"""Seconds that the end of a worker waits for the last exports."""
MISSING: Final = (
    "OTEL_* variables ask for telemetry, and OpenTelemetry's SDK is not installed: pip install flowshare[otel]"
)
PROTOCOLS: Final = {"": "otlp_proto_http", "http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


def set_up(service: str, environment: Mapping[str, str] = os.environ) -> Callable[[], None] | None:
    """Set providers if the environment asks for them and nobody has set some; return the function that ends them, in a
    limited time.

    service: default of the service's name. None: nothing was set; a warning says why if it was asked for.
    """
    if not asked(environment):
        return None
    if not installed():
        logger.warning(MISSING)
        return None
    from opentelemetry import metrics, trace

    if providers() is not None:
        return None
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create(_own_attributes(service, environment))
    ends: list[Callable[[], Any]] = []
    spans = _exporters("traces", environment)
    if spans:
        tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        for exporter in spans:
            tracers.add_span_processor(BatchSpanProcessor(exporter))
        trace.set_tracer_provider(tracers)
        ends.append(tracers.shutdown)
    readers = [PeriodicExportingMetricReader(exporter) for exporter in _exporters("metrics", environment)]
    if readers:
        meters = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
        metrics.set_meter_provider(meters)
        ends.append(meters.shutdown)
    return (lambda: _end(ends)) if ends else None


def _own_attributes(service: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the resource attributes that the environment leaves open."""
    said = environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    found: dict[str, str] = {}
    if not environment.get("OTEL_SERVICE_NAME") and "service.name=" not in said:
        found["service.name"] = service
    if "service.instance.id=" not in said:
        found["service.instance.id"] = f"{socket.gethostname()}-{os.getpid()}"
    return found


def _exporters(signal: str, environment: Mapping[str, str]) -> list[Any]:
    """Return the wanted exporters that can be made; a warning names the others."""
    found: list[Any] = []
    for name in _wanted(signal, environment):
        try:
            [entry, *_] = entry_points(group=f"opentelemetry_{signal}_exporter", name=name)
            found.append(entry.load()())
        except ValueError:
            logger.warning("no exporter of %s is called %r here: install the package that has it", signal, name)
        except Exception as error:  # noqa: BLE001 - whatever an exporter says of its settings
            logger.warning("the exporter of %s %r cannot be made: %s", signal, name, named(error))
    return found


def _wanted(signal: str, environment: Mapping[str, str]) -> Iterable[str]:
    """Return the names of exporters; `otlp` becomes the one for its protocol."""
    upper = signal.upper()
    said = environment.get(f"OTEL_{upper}_EXPORTER", "").strip()
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{upper}_ENDPOINT")
    if not said and not any(environment.get(name, "").strip() for name in endpoints):
        return
    protocol = environment.get(f"OTEL_EXPORTER_OTLP_{upper}_PROTOCOL") or environment.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", ""
    )
    for name in (one.strip() for one in (said or "otlp").split(",")):
        if name and name != "none":
            yield PROTOCOLS.get(protocol.strip(), protocol) if name == "otlp" else name


def _end(ends: Iterable[Callable[[], Any]]) -> None:
    """Export the rest, all exporters at once; an endpoint that does not answer costs SHUTDOWN_S."""
    threads = [
        threading.Thread(target=_quietly, args=(end,), name="flowshare-telemetry-end", daemon=True) for end in ends
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SHUTDOWN_S / len(threads))


def _quietly(end: Callable[[], Any]) -> None:
    try:
        end()
    except Exception as error:  # noqa: BLE001 - it is over, whatever an exporter says
        logger.warning("what was left of telemetry could not be exported: %s", named(error))
