"""The core of a fleet's slots: their leaders, the content of their logs, the confirmation of writes. No I/O, no clock.

A slot is one partition of a fleet's state topic, led by one worker. `placement` maps things to slots; `membership`,
`planning`, `assignor` and `consumer_protocol` choose the leaders; `records`, `replay` and `confirm` are the content of
a log, its counting records, and the confirmation of writes; `table`, `pruning` and `summary` are a slot's state, the
cutting of its log, and the cached state of a reader. `flowshare.fleet` talks to Kafka and to other workers.
"""
