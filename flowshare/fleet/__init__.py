"""The workers that lead share groups themselves, on a Kafka that has none: a fleet.

`worker` is one of them from start to close, `server` what it answers. Who leads which slot is agreed in `slot_group`
and acted on by `slot_manager`; `directory` is what a worker knows of it. `state` is what lies in a slot's log, `log`
the users' topics as a leader reads them, `storage` both as the server's `Storage`. `groups` divides the server's work
among the workers, who ask each other by `peers` and prove who they are by `peer_login`. `rights` and `inspection` are
for commands.

The rules of share groups are the server's and the core's (`flowshare.server`, `flowshare.share`), how slots are divided
is `flowshare.slots`, and a fleet as an app's backend is `flowshare.backend.fleet`.
"""
