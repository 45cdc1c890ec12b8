"""The users' topics, read from Kafka: `KafkaLog` is the `Log` of a fleet's workers.

`watch` and `ends` keep a parked fetch at each broker for the ends of the `followed` logs; `read_ahead` keeps its
records in memory, from which `reader` serves all groups, with `lookups` for the rest. `topics` knows the existing
topics. This package writes nothing: state goes to the slots (`flowshare.fleet.state`), records to the brokers.
"""
