"""Members of cooperative groups: they share partitions by ranges of keys, and commit records one by one.

- `dispatch`: which record of a partition is begun next, by key; `scan`: what a member scanned, holds, begins and
  commits of a partition that is shared by keys; both without I/O and without a clock.
- `assigning`: what members tell each other in their rounds; `partitions`: what a member has to do with, begins, and
  waits for.
- `reading`: fetches, for the scans; `commits`: what is finished, and starts, told to the server; `settles`: commits
  with outputs, asked until it is known what became of them; `ordinary`: the group's ordinary offset.
- `member`: `CooperativeMember`, which lives by them, on `shell`; `consumer`: `CooperativeConsumer`, which hands out
  records.
"""
