"""Share groups: members, share-partitions, and the records that members hold (KIP-932).

The rules are `flowshare.share`. `service` puts the parts together, alone or in a fleet. The coordinator has the groups
(`coordinator`, `first_states`, `returns`, `group_configs`); the leader has the share-partitions (`partitions`, one
`owner` each, `waiters`, `loader`, `writing`, `partition_log`, `dead_letters`, `quotas`; where there is an order
`ordered_fetch`, `opened_log`, `parked_keys`); `sessions`, `fetch`, `acknowledge`, `settle` and `resume` are what
members ask for all the time, `groups`, `offsets` and `state_apis` the administration. `duties` and `leaders` are the
seam for a fleet: which groups and share-partitions are this server's, and how the others are reached.
"""
