"""Backlog of share groups, and the number of workers that it needs.

- `lag`: rows for `/lag` and `flowshare lag`; `retention`: the time until a record is deleted unfinished.
- `stall_reason`: the reason why a group stands still, in one sentence, for all displays of groups.
- `in_hand`: the holders of a group's records and the last errors of handlers, as workers report.
- `rates`: speeds from counters; `scaling`: the number of workers from figures, and resizing their supervisor by it.
- `load`: looks at the agents' groups in a worker.

The supervisor that is resized is `agents.worker.supervisor`.
"""
