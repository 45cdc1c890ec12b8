"""The core of a fleet's slots: who leads what, what lies in a slot's log, what makes a write count. No I/O, no clock.

A slot is one partition of a fleet's state topic, led by one worker. `placement` says what belongs to which slot;
`membership`, `planning`, `assignor` and `consumer_protocol` are who is to lead it; `records`, `replay` and `confirm`
what is in its log, which of it counts and when a write is confirmed; `table`, `pruning` and `summary` its state, when
the log is cut, and what is kept of a reader. Talking to Kafka and to other workers is `flowshare.fleet`.
"""
