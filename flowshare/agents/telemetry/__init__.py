"""OpenTelemetry: what handlers do, what they send and how records are settled, as spans and metrics.

- `conventions`: every name that is told to others, in one mapping of one version of the semantic conventions.
- `active`: whether anybody wants telemetry; `sdk`: an SDK by the `OTEL_*` variables for `flowshare worker`.
- `telemetry`: what one process has of it; `context`: W3C headers and OpenTelemetry's contexts.
- `processing`, `sending`, `settling`: the three kinds of spans, with the metrics beside them; `instruments`: these.
- `ender`: ends spans on a thread of its own, so that no exporter holds up a handler or a lock.

Only here is OpenTelemetry imported, and only when somebody set a provider or asked for one: without it pools, feeders
and producers have None in the place of what is here, and ask nothing of a record.
"""
