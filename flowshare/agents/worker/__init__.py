"""The processes that run an app: `flowshare worker`, one or many.

- `worker`: one process until a signal, ending in time whatever its handlers do; `signals`: how signals reach it.
- `keeper`: keeps a number of workers, starts each again, and ends all, wherever they run.
- `supervisor`: `--procs N`, worker processes under one that runs no handler, and a worker's side of it.
- `reload`: `--reload`, a worker that is restarted when a file changes.

The inside of a worker is `agents.host`; workers on Spark's executors are in `flowshare.spark.workers`.
"""
