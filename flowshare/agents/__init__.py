"""Share agents: the decorator, how records reach handlers, and what becomes of each of them.

`app.py` and `agent.py` declare; `feeder.py` fetches and acknowledges on the service loop; `pool.py` and the three kinds
of pool run handlers; `outcomes.py` and `settle.py` hold the outcome table; `runtime.py` is one agent at work;
`host.py` runs all of them in a process. The only place that imports faust.
"""
