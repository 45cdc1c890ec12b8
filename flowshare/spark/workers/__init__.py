"""`flowshare worker --on MASTER`: an app's workers as long tasks of Spark, one a core.

At the driver `run` starts everything in order, `supervisor` keeps the workers running, `jobs` has Spark run
them, `pages` and `metrics` show all of them as one. In an executor `task` runs one worker. `control` is the connection
between them.

The handlers are those of any worker (`flowshare.agents`), and Spark's DataFrames play no part: streams of them are
`flowshare.spark.source` and `flowshare.spark.pipeline`.
"""
