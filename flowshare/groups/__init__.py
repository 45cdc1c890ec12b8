"""The core of classic consumer groups: rebalances and committed offsets. No I/O, no clock.

`group` is one group and what its members ask for, `phases` how it gets from one generation to the next, `states` the
table; `members` and `subscription` are about the members, `offsets` and `expiry` about what they commit,
`stored` is the form in the store. Consumers assign partitions among themselves, as Kafka's classic protocol has it.
Time comes in as an argument. Writing, waiting and answering is `server.groups`.
"""
