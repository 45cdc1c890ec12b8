"""Backlog of share groups, and how many workers it needs.

- `lag`: rows for `/lag` and `flowshare lag`; `retention`: how long until a record is deleted unfinished.
- `stall_reason`: why a group stands still, in one sentence, for whoever shows groups.
- `in_hand`: who holds its records and what handlers raised, as workers say.
- `rates`: speeds out of counters; `scaling`: from figures to a number of workers, and resizing their supervisor by it.
- `load`: looks at the agents' groups in a worker.

The supervisor that is resized is `agents.worker.supervisor`.
"""
