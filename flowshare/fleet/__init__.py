"""The workers that lead share groups themselves, on a Kafka that has none: a fleet.

`worker` is one of them from start to close, `server` answers its clients. The workers agree in `slot_group` on each
slot's leader, and `slot_manager` acts on it; `directory` is a worker's knowledge of it. `state` is the content of a
slot's log, `log` the users' topics as a leader reads them, `storage` both as the server's `Storage`. `groups` divides
the server's work among the workers, which ask each other by `peers` and prove their identity by `peer_login`. `rights`
and `inspection` are for commands.

The rules of share groups are the server's and the core's (`flowshare.server`, `flowshare.share`), `flowshare.slots`
divides the slots, and a fleet as an app's backend is `flowshare.backend.fleet`.
"""
