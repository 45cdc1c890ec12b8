"""One process that runs an app: its two loops and what all agents of it share.

- `host`: `Host`, which starts and stops everything; `runtime`: one agent at work; `service`: the service loop's thread.
- `outbox`, `sending`: the process's producer for code on any loop, and for programs without one.
- `lease`, `candidate`: which process of an app runs what is `on_leader`.
- `watchdog`: the handler loop stands still; `outage`: the broker does not answer; `inflight`: what handlers work on.

Signals, drain deadlines and supervised processes are `agents.worker`'s. A leader of share-partitions is something
else: see `flowshare.backend` and `flowshare.fleet`.
"""
