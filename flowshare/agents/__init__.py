"""Share agents: a decorated function, the records that reach it, and the outcome of each record.

The packages; each imports only from packages below it in this list:

- `worker`: the processes: `flowshare worker`, the supervisor of several, signals, reload.
- `app`: `App`, which an application imports; pipelines, sinks; loading an app by its name.
- `faust`: the adapter to Faust, the only place that knows Faust: its part of `App`, topics, serializers, its agents.
- `host`: one process that runs an app: two loops, producer, the app's lease, watchdog.
- `feed`: records in, acknowledgements out, for one agent.
- `pages`: the right to ask for a web page, and the listeners of pages.
- `run`: pools that run handlers.
- `telemetry`: spans and metrics of OpenTelemetry, for applications that want them.
- `handler`: an agent's parts: signature, options, values, outcomes, retry. No I/O.

The share groups live in `flowshare.backend`, the members' client is `flowshare.client`; the pages themselves are in
`flowshare.web`, the test kit in `flowshare.testing`.
"""
