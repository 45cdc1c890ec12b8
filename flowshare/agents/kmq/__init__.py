"""Agents on KMQ's queues: a topic, and a topic of markers beside it; no share group.

- `agent`: `KmqAgent`, its options; `setup`: the topics that an agent needs.
- `feeder`: `KmqFeeder`: records in, each marked and committed before a handler gets it; `unmarked_records`: records
that were read and are not marked; `markers`: markers out; `completion`: how outcomes are carried out.

Handlers run in `agents.run`, as those of share agents. Bytes and rules are in `flowshare.kmq`, the tracker is in
`flowshare.client.kmq`.
"""
