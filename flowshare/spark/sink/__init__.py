"""The sinks: what Spark calls to write rows to topics, and outcomes to the source's group.

`sink` has the writers of `format("flowshare")`, at least once or, in transactions (`transactions`), exactly once for
each batch; `columns` and `options` say what a DataFrame and its writer may have, `broker` what a process has open
and `producing` what it sends there. `outcomes` takes a DataFrame of outcomes to the source's process. Which sinks a
declared pipeline has, tables of databases and Spark's own file sink among them, is `spark.pipeline`.
"""
