"""Members of cooperative groups: they share partitions by ranges of keys, or record by record, and commit one by one.

- `dispatch`: which record of a partition is begun next, by key; `scan`: what a member scanned, holds, begins and
  commits of a partition that is shared by keys; both without I/O and without a clock.
- `assigning`: what members tell each other in their rounds; `reading`: what a fetch brought, as a scan wants it.
- `settles`: commits with outputs, asked until it is known what became of them; `outputs`: what a consumer gives them.
- `member`: `CooperativeMember`, which lives by them, over its `partitions`; `consumer`: `CooperativeConsumer`, which
  hands out records.
"""
