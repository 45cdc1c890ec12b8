"""Pools that run handlers, on the handler loop or in threads.

- `pool`: `Pool`, the base of all kinds, and its `Runner`s, as many as the agent's `concurrency`.
- `async_pool`, `thread_pool`, `batch_pool`: `async def` handlers, `def` handlers, handlers of batches;
`in_order`: the same for agents with an order.
- `stats`: counters of an agent, and durations of its handlers; `logs`: log lines name their record.

Handlers are defined in `agents.handler`; chunks come from `agents.feed`, which gets back finished records.
"""
