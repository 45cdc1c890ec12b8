"""The core of cooperative groups: members share a partition by ranges of keys, and commit records one by one. No I/O,
no clock, no asyncio.

`partition` is one group's view of one partition and all that its owner asks of it; `decisions` has what was decided
there and is not written yet; `offsets` is the committed set, `claims` who holds which keys, `pending` what open
transactions will commit and who waits for the stable offset, `attempts` what members that are gone had begun.
`assignor` deals partitions and ranges of keys to members. `stored` is the form in the store, `types` the words,
`ranges` their arithmetic. Time comes in as an argument; a decision says what is to be written, and its answer leaves
when that is durable.
"""
