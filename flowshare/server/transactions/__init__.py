"""Idempotent producers and transactions: `coordinator` has all transactional ids, `apis` answers for them.

The rules are `flowshare.transactions`. What a partition knows of its producers stands with the partition's log
(`flowshare.log`); offsets that a transaction commits are `server.groups`'.
"""
