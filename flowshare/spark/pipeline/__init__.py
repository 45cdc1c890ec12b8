"""`flowshare pipeline`: an app's declared pipelines as Spark queries that are kept running.

`query` makes one query of a pipeline: source, the user's function, sinks. `supervisor` runs those of an app in one
session, starts again what fails and counts; `pages` shows that over HTTP. How a pipeline is declared is in
`flowshare.agents.app`; sources and sinks work without any of this, in a Spark program of one's own.
"""
