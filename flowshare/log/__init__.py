"""The storages of records and durable state that a server works on.

`base` has the interface that share groups need of any of them. `storage` is that of a server that is the broker itself:
topics, records and state over a `store`, by `commits`, `partition`, `recent`, `keys`, with `retention`, `compaction`
and `cleaner` for deletions. `embedded` keeps it in a directory with one RocksDB, written by one thread (`commits`),
with `owner`, `damage` and `folder` for a safe start; `memory` as long as the process lives. `topics` and `inspection`
have the rules for accepted topics and batches. `descriptors` divides the process's files. Record batches are stored as
they were produced; decoding them is the members' business. Groups keep bytes under keys here: their meaning is the
server's.
"""
