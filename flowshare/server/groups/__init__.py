"""Consumer groups of both protocols and the offsets they commit.

The rules are `flowshare.groups`. `coordinator` has all groups in memory, an `entry` each, and writes their decisions;
`store` has their keys, `sweep` lets offsets expire, `waiting` has joins and syncs that wait. `members`, `consumer` (of
the consumer protocol) and `offsets` answer the APIs. Share groups are `server.share`; a group id belongs to one of the
two kinds.
"""
