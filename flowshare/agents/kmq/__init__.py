"""Agents on KMQ's queues: a topic, and a topic of markers beside it; no share group.

- `agent`: `KmqAgent`, its options; `setup`: the topics that it needs.
- `feeder`: `KmqFeeder`: records in, each marked and committed before a handler gets it; `ahead`: what was read and is
  not marked; `markers`: markers out; `completion`: what becomes of outcomes.

Handlers run in `agents.run`, as those of share agents. Bytes and rules are `flowshare.kmq`'s, the tracker is
`flowshare.client.kmq`'s.
"""
