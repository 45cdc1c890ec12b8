"""The core of classic consumer groups: rebalances and committed offsets. No I/O, no clock.

`group` is one group and its members' requests, `phases` its way from one generation to the next, `states` the table;
`members` and `subscription` are about the members, `offsets` and `expiry` about their commits, `stored` is the form in
the store. Consumers assign partitions among themselves, as in Kafka's classic protocol. Time comes in as an argument.
`server.groups` writes, waits and answers.
"""
