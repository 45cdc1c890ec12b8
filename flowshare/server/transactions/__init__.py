"""Idempotent producers and transactions: `coordinator` has all transactional ids, `apis` answers for them.

The rules are `flowshare.transactions`. A partition's knowledge of its producers is a part of its log (`flowshare.log`);
offsets that a transaction commits are `server.groups`'.
"""
