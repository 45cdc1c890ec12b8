"""The core of share groups (KIP-932): what a share-partition and a share group decide. No I/O, no clock, no asyncio.

A share-partition (`partition`) is one group's view of one partition of a log: which offsets are free, with whom, or
finished. `state` is the table of what becomes of one offset, `window` the offsets, `holds` until when each is kept,
`boundaries` the batches as they were acquired; `acquire`, `acknowledge` and `lapse` are the moves, and `quarantine`
delivers alone what may kill. `records` is what is stored, `shard` keeps it for many, `reload` makes a window of it. A
share group (`group`, `assignor`, `group_state`) has members and what they fetch from; `session` orders a member's
requests. `allotment`, `allowance`, `leases` and `priority` share out records among members; `config`, `config_tables`
and `settings` are the settings, `types` the words, `ranges` their arithmetic. Time comes in as `now_ms`; a
command returns what is to be written, and takes effect when that is durable. Whoever writes, waits and answers is
`server.share`.
"""
