"""Members of classic consumer groups over flowshare's own connections: on an embedded path, in memory, on any Kafka.

- `membership`: what a member asks and what answers mean, without I/O; `member`: `GroupMember`, which lives by it.
- `assignors`: which member reads which partitions; `reading`: records out of what was fetched.
- `consumer`: `GroupConsumer`, which reads what its member is assigned, and commits.
"""
