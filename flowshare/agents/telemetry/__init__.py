"""OpenTelemetry: spans and metrics of handlers, of sent records and of settling.

- `conventions`: all public names, in one mapping of one version of the semantic conventions.
- `active`: finds out if telemetry is wanted; `sdk`: an SDK by the `OTEL_*` variables for `flowshare worker`.
- `telemetry`: the telemetry of one process; `context`: W3C headers and OpenTelemetry's contexts.
- `processing`, `sending`, `settling`: the three kinds of spans, with the metrics beside them; `instruments`: these.
- `ender`: ends spans on a thread of its own, so that no exporter holds up a handler or a lock.

Only this package imports OpenTelemetry, and only when a provider was set or asked for. Without it pools, feeders and
producers have None in place of these objects, and do nothing for a record.
"""
