"""One process that runs an app: its two loops and the parts that all its agents share.

- `host`: `Host`, which starts and stops everything; `runtime`: one agent at work; `service`: the service loop's thread.
- `outbox`, `sending`: the process's producer for code on any loop, and for programs without one.
- `lease`, `candidate`: the process of an app that runs `on_leader` functions.
- `watchdog`: a handler loop that stands still; `outage`: a broker that does not answer; `inflight`: handlers' records.

Signals, drain deadlines and supervised processes are in `agents.worker`. A leader of share-partitions is something
else: see `flowshare.backend` and `flowshare.fleet`.
"""
