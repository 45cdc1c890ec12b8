"""Pools that run handlers, on the handler loop or in threads.

- `pool`: `Pool`, what the kinds have in common, and its `Runner`s, as many as the agent's `concurrency`.
- `async_pool`, `thread_pool`, `batch_pool`: `async def` handlers, `def` handlers, handlers of batches;
  `in_order`: the same for agents with an order.
- `stats`: what an agent counts, and how long its handlers take; `logs`: log lines say whose they are.

What they run is in `agents.handler`; chunks come from `agents.feed`, which gets back what is finished.
"""
