"""The users' topics, read from Kafka: `KafkaLog` is the `Log` of a fleet's workers.

`watch` and `ends` keep a parked fetch at each broker for the ends of the logs that are `followed`; what comes with it
lies in memory by `read_ahead`, out of which `reader` serves all groups, with `lookups` for the rest. `topics` knows
what topics there are. Nothing is written here: state goes to the slots (`flowshare.fleet.state`), records to the
brokers.
"""
