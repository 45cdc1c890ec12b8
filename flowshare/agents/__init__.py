"""Share agents: a decorated function, the records that reach it, and what becomes of each of them.

The rooms, each importing only what stands below it:

- `worker`: the processes: `flowshare worker`, the supervisor of several, signals, reload.
- `app`: what an application imports, `App`; pipelines, sinks; loading an app by its name.
- `faust`: the adapter to Faust, the only place that knows it: its part of `App`, topics, serializers, its own agents.
- `host`: one process that runs an app: two loops, producer, the app's lease, watchdog.
- `feed`: records in, acknowledgements out, for one agent.
- `scale`: backlog, and how many workers it needs.
- `pages`: who may ask for a web page, and where pages are listened for.
- `run`: pools that run handlers.
- `telemetry`: spans and metrics of OpenTelemetry, where an application wants some.
- `handler`: what an agent is: signature, options, values, outcomes, retry. No I/O.

Where the share groups live is `flowshare.backend`, the members' client `flowshare.client`; the pages themselves are in
`flowshare.web`, the test kit in `flowshare.testing`.
"""
