"""Share groups: members, share-partitions, and the records that members hold (KIP-932).

The rules are `flowshare.share`. `service` puts the parts together, alone or in a fleet. The coordinator has the groups
(`coordinator`, `first_states`, `returning_members`, `group_configs`); the leader has the share-partitions
(`partitions`, one `owner` each, `waiters`, `loader`, `writing`, `partition_log`, `dead_letters`, `quotas`; in an
ordered group `ordered_fetch`, `opened_log`, `parked_keys`); `sessions`, `fetch`, `acknowledge`, `settle` and `resume`
serve members' frequent requests, `groups`, `offsets` and `state_apis` administration. `duties` and `leaders` are the
seam for a fleet: they know this server's groups and share-partitions, and reach the others.
"""
