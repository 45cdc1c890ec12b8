"""Health and metrics over HTTP: of a worker (`server`), of a supervisor's workers as one (`supervisor`), of `flowshare
serve` (`broker`), as Prometheus text (`metrics`).

`flowshare.agents.pages` has the socket and the rights to each page; pages that an app declares are Faust's. Pipelines
and workers on Spark have pages of their own, made of these parts (`flowshare.spark`).
"""
