"""Agents of cooperative groups: records of one key one after the other, however many members share a partition.

- `agent`: the decorated function and its options.
- `member`: the agent's member of the group, with the interface that `agents.feed` needs: the work of a share group's
server is done in this process by the dispatcher of `client.cooperative`.
- `feeder`: `agents.feed.feeder` with agent and member, and the topics that they need.
"""
