"""Cooperative groups: who holds which keys of a partition, and what is committed of it one by one.

The rules are `flowshare.cooperative`. `owner` decides for one partition, `writing` makes what was decided durable, for
all partitions of a group together, before anybody is told; `coordinator` loads them, ends what lapses and lets go of
what is idle; `beside` is where the group's ordinary committed offset stands, which every tool shows; `store` says where
state lies; `members`, `settle` (commits with outputs) and `tools` answer. `apart` are settles whose outputs lie
elsewhere than the state. Membership is somebody else's: Kafka's, or `server.groups`.
"""
