"""The processes that run an app: `flowshare worker`, one or many.

- `worker`: one process until a signal, ending in time whatever its handlers do; `signals`: how signals reach it.
- `keeper`: which workers are kept, that each comes back, how all end, wherever they run.
- `supervisor`: `--procs N`, worker processes under one that runs no handler, and a worker's side of it.
- `reload`: `--reload`, a worker that is restarted when a file changes.

What runs inside of a worker is `agents.host`; workers on Spark's executors are `flowshare.spark.workers`'.
"""
