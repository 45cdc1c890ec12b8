"""What a share agent is, and what a handler sees and says; no I/O, but for `once`.

- `agent`: `ShareAgent`, the decorated function; `options`, `retry`, `rate_limit`: how it is to be run.
- `values`: annotation to decoder, value to bytes; `ddl`: annotation to a column of Spark's.
- `chunk`: records as they go from the feeder to a pool; `batch`, `delivery`: what handlers get to see of them.
- `order`: what orders records by key; `chains`: which of a chunk's records may be begun then.
- `outcomes`, `send`: what handlers return and raise; `sinks`: where results go; `retry_headers`: records that wait.
- `once`: a handler's effects in a database, once; `databases`: the connections that it takes.
- `middleware`, `tracing`: functions around handlers, trace headers; `errors`, `texts`: what is said of failures.

Handlers are called in `agents.run`; outcomes are carried out in `agents.feed.completion`.
"""
