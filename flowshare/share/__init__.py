"""The core of share groups (KIP-932): the decisions of a share-partition and a share group. No I/O, no clock, no
asyncio.

A share-partition (`partition`) is one group's view of one partition of a log: which offsets are free, with whom, or
finished. `state` is the table of moves of one offset, `window` the offsets, `holds` the times until which they are
kept, `boundaries` the batches as they were acquired; `acquire`, `acknowledge` and `lapse` are the moves, and
`quarantine` delivers alone the records that may kill a process. `records` is the stored form, `shard` keeps it for
many, `reload` makes a window of it. A share group (`group`, `assignor`, `group_state`) has members and their
partitions; `session` orders a member's requests. `allotment`, `allowance`, `leases` and `priority` share out records
among members; `config`, `config_tables` and `settings` are the settings, `types` the words, `ranges` their arithmetic.
Time comes in as `now_ms`; a command returns the update to be written, and takes effect when that is durable.
`server.share` writes, waits and answers.
"""
