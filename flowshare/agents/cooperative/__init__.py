"""Agents of cooperative groups: records of one key one after the other, however many members share a partition.

- `agent`: the decorated function and its options.
- `member`: its member of the group, as `agents.feed` wants one: what a server does for a share group, the dispatcher of
  `client.cooperative` does here, in this process.
- `feeder`: `agents.feed.feeder` with the two, and the topics that they need.
"""
