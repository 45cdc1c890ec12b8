"""Share agents, and everything that a handler sees and returns; no I/O, except in `once`.

- `agent`: `ShareAgent`, the decorated function; `options`, `retry`, `rate_limit`: an agent's settings.
- `values`: annotation to decoder, value to bytes; `ddl`: annotation to a column of Spark's.
- `chunk`: records on their way from the feeder to a pool; `batch`, `delivery`: the handler's view of them.
- `order`: the option that orders records by key; `chains`: the records of a chunk that may be begun under an order.
- `outcomes`, `send`: results and exceptions of handlers; `sinks`: their destinations; `retry_headers`: waiting records.
- `once`: a handler's effects in a database, once; `databases`: the connections that `once` takes.
- `middleware`, `tracing`: functions around handlers, trace headers; `errors`, `texts`: how failures are told.

Handlers are called in `agents.run`; outcomes are carried out in `agents.feed.completion`.
"""
