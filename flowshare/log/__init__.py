"""Where records and durable state are kept: the places that a server works on.

`base` says what share groups need of any of them. `storage` is that of a server that is the broker itself: topics,
records and state over a `store`, by `commits`, `partition`, `recent`, `keys`, with `retention`, `compaction` and
`cleaner` for what is to go. `embedded` keeps it in a directory with one RocksDB, written by one thread (`commits`),
with `owner`, `damage` and `folder` for a safe start; `memory` as long as the process lives. `topics` and
`inspection` say what is taken. `descriptors` divides the process's files.
Record batches are stored as they were produced; decoding them is the members' business. What groups keep here is bytes
under keys: what they mean is the server's.
"""
