"""The source of `format("flowshare")`: a share group's records as Spark's micro-batches.

Two places run it. The process that Spark keeps for a query on the driver's machine is one member of the group: it
acquires ranges of offsets and acknowledges them when their batch is committed (`microbatches`, which holds `member`,
`accepts`, `checkpoint`, `narrowing` and `progress` together). Executors read the ranges from the log by plain Fetch
and make Arrow of them (`reading`, `columns`, `avro`), and write dead letters. `ranges` is what both speak of.

Spark's own names for all that are one floor up (`flowshare.spark.datasource`); writing is `flowshare.spark.sink`.
"""
